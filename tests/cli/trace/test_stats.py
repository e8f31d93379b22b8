"""`lmtool trace stats`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.trace_runner import CONVERSATION, trace


def test_table_and_json(tmp_path: Path) -> None:
    """Sums and a row a stream; an infinite logprob is left out, not printed."""
    (tmp_path / "a").write_text(CONVERSATION)
    result = trace("stats", tmp_path / "a")
    assert result.exit_code == 0
    assert "1 requests · 3 tokens · 1 > 3 < frames" in result.stdout
    assert "inf" not in result.stdout.lower().replace("model_info", "")
    assert result.stdout.splitlines()[-1].endswith("length")
    assert "is cut" in result.stderr
    found = json.loads(trace("stats", tmp_path / "a", "--json").stdout)
    assert found["state"] == "cut"
    assert found["listed"][0]["perplexity"] == 2.718


def test_a_bad_last_line(tmp_path: Path) -> None:
    """The figures of all that stands before it, then the error with its line, status 7; --json likewise."""
    lines = CONVERSATION.splitlines(keepends=True)
    (tmp_path / "a").write_text("".join([*lines, "[1.0, 7]\n"]))
    result = trace("stats", tmp_path / "a")
    assert result.exit_code == 7
    assert "1 requests · 3 tokens · 1 > 3 < frames" in result.stdout
    assert f"line {len(lines) + 1}" in result.stderr
    found = json.loads(trace("stats", tmp_path / "a", "--json").stdout)
    assert (found["state"], found["tokens"]) == ("unreadable", 3)
