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
