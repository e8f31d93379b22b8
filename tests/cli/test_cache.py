"""`lmtool cache why`."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from lmtool.cli.app import build

RECORDINGS = Path(__file__).parents[2] / "recordings"


def test_lines_and_json() -> None:
    """Of each request what it has in common, why no more, and what the server had; sums at the end."""
    path = RECORDINGS / "anthropic_tool_loop.lmtp.jsonl"
    words = ["cache", "why", str(path)]
    result = CliRunner().invoke(build(), words)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("1/1    178 tokens; the first of scripted; cached 0, computed 178")
    assert "in common with 1/1; cached 176, computed 66" in lines[1]
    assert lines[2].strip() == "goes on with it: message 2 (assistant) is new"
    assert lines[-1].startswith("2 requests · 420 tokens read · 176 cached")
    found = json.loads(CliRunner().invoke(build(), [*words, "--json"]).stdout)
    assert [one["tokens"]["cached"] for one in found["listed"]] == [0, 176]
    assert found["listed"][1]["differs"]["kind"] == "new"
