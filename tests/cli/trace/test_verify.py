"""`lmtool trace verify`, with its reports, lists and exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from lmtool.cli.trace.verify import running_server
from lmtool.core.errors import ConnectError
from tests.cli.trace_runner import trace
from tests.conftest import ROOT

GREEDY = ROOT / "recordings/one_greedy_stream.lmtp.jsonl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two recordings, of which the second is not what the server says."""
    made = tmp_path / "recordings"
    made.mkdir()
    shutil.copy(GREEDY, made / "good.lmtp.jsonl")
    lines = GREEDY.read_text(encoding="utf-8").splitlines()
    changed = [line.replace('"finish_reason":"length"', '"finish_reason":"stop"') for line in lines[:-1]]
    (made / "wrong.lmtp.jsonl").write_text("\n".join([*changed, ""]), encoding="utf-8")
    return made


def test_list(folder: Path) -> None:
    """Every recording is two checks; a glob chooses."""
    assert trace("verify", folder, "--list").stdout.split() == [
        "good[mock]",
        "good[drive]",
        "wrong[mock]",
        "wrong[drive]",
    ]
    assert trace("verify", folder, "--list", "--only", "*[drive]").stdout.split() == ["good[drive]", "wrong[drive]"]
    assert trace("verify", folder, "--list", "--only", "good").stdout.split() == ["good[mock]", "good[drive]"]
    assert trace("verify", folder, "--list", "--only", "none").exit_code == 2


def test_reports_and_what_came(folder: Path, served: str, tmp_path: Path) -> None:
    """A failure is status 1; reports are written whole; what came is kept, with the commands to compare it."""
    report = tmp_path / "report"
    report.mkdir()
    (tmp_path / "kept").write_text("mine")
    (report / "junit.xml").symlink_to(tmp_path / "kept")
    done = trace("verify", folder, "--to", served, "--report", report, "-j", 2)
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert sorted(line.split()[1] for line in lines if line.startswith("pass")) == [
        "good[drive]",
        "good[mock]",
        "wrong[mock]",
    ]
    actual = report / "wrong.actual.lmtp.jsonl"
    for command in ("inspect", "trace diff"):
        assert f"    lmtool {command} {folder / 'wrong.lmtp.jsonl'} {actual}" in lines
    assert "    fail (ids) stream 1/1 token 7: expected finish_reason 'stop', got 'length'" in lines
    assert trace("diff", folder / "wrong.lmtp.jsonl", actual).exit_code == 1
    assert ET.parse(report / "junit.xml").getroot().get("failures") == "1"
    assert json.loads((report / "report.json").read_text())["summary"] == {"pass": 3, "fail": 1}
    assert "| wrong[drive] | fail |" in (report / "report.md").read_text()
    assert "4 checks · 3 pass · 1 fail" in done.stderr
    assert (tmp_path / "kept").read_text() == "mine"


def test_known_failing_must_still_fail(folder: Path, served: str, tmp_path: Path) -> None:
    """What is known to fail is no failure; what is known to fail and passes is one."""
    known = tmp_path / "known.txt"
    known.write_text("wrong[drive]  # it was changed by hand\nnowhere  # gone\n")
    done = trace("verify", folder, "--to", served, "--known-failing", known)
    assert done.exit_code == 0
    assert "known-failing wrong[drive]  (it was changed by hand)" in done.stdout
    assert "known-failing lists nowhere, which matches no check" in done.stderr
    known.write_text("good[drive]  # it was\n")
    done = trace("verify", folder, "--to", served, "--known-failing", known, "--known-flaky", tmp_path / "known.txt")
    assert done.exit_code == 1
    assert "remove it from the list" in done.stdout
    known.write_text("wrong[drive]  # now and then\n")
    assert trace("verify", folder, "--to", served, "--known-flaky", known).exit_code == 0
    known.write_text("wrong[drive]\n")
    assert trace("verify", folder, "--known-failing", known).exit_code == 2


def test_update(folder: Path, served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server says now replaces a recording that says otherwise, and nothing else; never in CI."""
    before = (folder / "good.lmtp.jsonl").read_bytes()
    monkeypatch.setenv("CI", "true")
    refused = trace("verify", folder, "--to", served, "--update")
    assert refused.exit_code == 2
    assert "--update is refused in CI" in refused.stderr
    monkeypatch.delenv("CI")
    done = trace("verify", folder, "--to", served, "--update")
    assert done.exit_code == 0
    assert "wrong[drive]  (recorded again)" in done.stdout
    assert "expected finish_reason 'stop', got 'length'" in done.stdout
    assert (folder / "good.lmtp.jsonl").read_bytes() == before
    assert trace("verify", folder, "--to", served).exit_code == 0


def test_without_a_server(folder: Path) -> None:
    """Without a server recordings are only played to our client, and the other half says why it is skipped."""
    done = trace("verify", folder)
    assert done.exit_code == 0
    assert "skipped       good[drive]  (no server was named)" in done.stdout
    assert trace("verify", folder, "--to", "ws://127.0.0.1:9/").exit_code == 3


def test_a_bad_file_keeps_no_other_from_being_checked(folder: Path, tmp_path: Path) -> None:
    """A file that is no trace, cut in its middle or altered fails its checks by name; the others are done."""
    (folder / "a.lmtp.jsonl").write_text('{"lmtp_trace": 1}\nnonsense\n')
    (folder / "b.lmtp.jsonl").write_bytes(b"\xff\xfe")
    (folder / "c.lmtp.jsonl").write_text(GREEDY.read_text(encoding="utf-8").replace("GENERATE", "GENERALE"))
    (folder / "d.lmtp.jsonl").mkdir()
    done = trace("verify", folder, "--report", tmp_path / "report")
    assert done.exit_code == 1
    assert "line 2" in done.stdout
    assert not done.stderr.startswith("error")
    judged = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")}
    assert judged == {
        **{f"{name}[{direction}]": "fail" for name in "abcd" for direction in ("mock", "drive")},
        **{f"{name}[mock]": "pass" for name in ("good", "wrong")},
        **{f"{name}[drive]": "skipped" for name in ("good", "wrong")},
    }
    assert ET.parse(tmp_path / "report/junit.xml").getroot().get("failures") == "8"


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    """Nothing can be checked: status 7."""
    assert trace("verify", tmp_path / "none").exit_code == 7


async def test_a_running_server(served: str) -> None:
    """A server is asked for its model; one of HTTP is not."""
    assert (await running_server(served, None)).model == "stories260K"
    assert (await running_server("http://127.0.0.1:9/v1", None)).model is None
    with pytest.raises(ConnectError):
        await running_server("ws://127.0.0.1:9/", None)


def test_serve_here(lmtool, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """`--serve MODEL` serves the model for the checks, in float32 on the CPU."""
    recording = ROOT / "recordings/one_greedy_stream.lmtp.jsonl"
    done = lmtool("trace", "verify", str(recording), "--serve", str(ROOT / "tests/data/stories260K"))
    assert (done.returncode, done.stdout.split()) == (
        0,
        ["pass", "one_greedy_stream[mock]", "pass", "one_greedy_stream[drive]"],
    ), done.stderr
