"""`lmtool trace drive`, against a real server."""

from __future__ import annotations

import json
from pathlib import Path

from lmtool.trace.reader import TraceReader
from tests.cli.trace_runner import trace
from tests.conftest import ROOT

GREEDY = ROOT / "recordings/one_greedy_stream.lmtp.jsonl"


def altered(tmp_path: Path, old: str, new: str) -> Path:
    """The greedy recording with something changed, and without the end record that would tell."""
    path = tmp_path / "altered.lmtp.jsonl"
    lines = GREEDY.read_text(encoding="utf-8").splitlines()
    assert any(old in line for line in lines)
    path.write_text("\n".join(line.replace(old, new) for line in lines if '"end"' not in line) + "\n", encoding="utf-8")
    return path


def test_the_same_again(served: str, tmp_path: Path) -> None:
    """What came is compared, told and kept; the kept trace agrees with the recording."""
    kept = tmp_path / "kept.lmtp.jsonl"
    done = trace("drive", GREEDY, "--to", served, "--save", kept)
    assert (done.exit_code, done.stdout) == (0, "pass       1/1     GENERATE\n")
    assert "1 requests · 0 failed · level numbers" in done.stderr
    reader = TraceReader(kept)
    assert reader.header.at == "client"
    assert trace("diff", GREEDY, kept).exit_code == 0
    assert trace("drive", GREEDY, "--to", served, "--save", kept).exit_code == 7
    assert trace("drive", GREEDY, "--to", served, "--save", kept, "--force").exit_code == 0


def test_a_difference_is_status_1(served: str, tmp_path: Path) -> None:
    """Another recorded token fails at level ids, and not at level shape."""
    token = next(
        entry["token"]
        for line in GREEDY.read_text(encoding="utf-8").splitlines()
        if '"TOKEN"' in line
        for entry in json.loads(line)[4]
    )
    path = altered(tmp_path, f'"token":{token},', '"token":3,')
    done = trace("drive", path, "--to", served, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["findings"][0]["message"].startswith("expected token 3, got ")
    assert trace("drive", path, "--to", served, "--level", "shape").exit_code == 0


def test_another_model_is_asked_for(served: str) -> None:
    """With --model the requests name that one: here one that the server does not have."""
    done = trace("drive", GREEDY, "--to", served, "--model", "no-such-model")
    assert done.exit_code == 1
    assert "no-such-model" in done.stdout


def test_no_server() -> None:
    """Without a server there is a sentence, and status 3."""
    done = trace("drive", GREEDY, "--to", "ws://127.0.0.1:9/")
    assert done.exit_code == 3
    assert "no LMTP server at ws://127.0.0.1:9/" in done.stderr
