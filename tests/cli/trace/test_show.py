"""`lmtool trace show`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.trace_runner import CONVERSATION, trace


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A cut trace of one stream."""
    path = tmp_path / "a.lmtp.jsonl"
    path.write_text(CONVERSATION)
    return path


def test_lines(file: Path) -> None:
    """What the trace is, then a line an event; stderr tells that it is cut."""
    result = trace("show", file)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == "a.lmtp.jsonl · proxy · one stream"
    assert lines[2] == "    0.001000  1/1     > GENERATE · m · 2 ids · max_tokens 3"
    assert lines[4] == "    0.010000  1/1     <     11 · p .607"
    assert lines[6] == '    0.020000  1/1     <     12 "⟨f0 9f⟩"'
    assert "is cut" in result.stderr


def test_jsonl(file: Path) -> None:
    """One JSON object an entry or other event, all of them finite."""
    found = [json.loads(line) for line in trace("show", file, "--jsonl").stdout.splitlines()]
    assert [one["event"] for one in found] == [
        *("open", "GENERATE", "vocab", "TOKEN", "vocab", "TOKEN", "TOKEN", "close"),
    ]
    assert found[5]["logprob"] is None


def test_one_connection(file: Path) -> None:
    """Events of other connections are left out."""
    assert len(trace("show", file, "-c", "2").stdout.splitlines()) == 3


def test_a_bad_line_ends_with_7(file: Path) -> None:
    """The lines before it are shown, then the line's number and the reason; no traceback."""
    file.write_text(CONVERSATION + "nonsense\n")
    result = trace("show", file)
    assert result.exit_code == 7
    assert "line 10: not JSON" in result.stderr
    assert "Traceback" not in result.output


def test_filter(file: Path) -> None:
    """`--filter` prints what matches; a wrong expression ends with 2 and says what is possible."""
    lines = trace("show", file, "--filter", "tok:12").stdout.splitlines()
    assert [line.split()[:4] for line in lines[1:]] == [["0.020000", "1/1", "<", "12"]]
    wrong = trace("show", file, "--filter", "p<x")
    assert wrong.exit_code == 2
    assert "gap>50ms" in wrong.stderr
    assert trace("show", file, "--filter", "err", "--jsonl").exit_code == 2
    nothing = trace("show", file, "--filter", '"no such text"')
    assert (nothing.exit_code, len(nothing.stdout.splitlines())) == (0, 1)
    assert "nothing passes the filter '\"no such text\"'" in nothing.stderr
