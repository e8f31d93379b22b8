"""`lab inspect`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conftest import Run


def test_card_and_json(lab: Run) -> None:
    """A card, and one JSON line last; the load is the one that was asked for."""
    words = ("--rate", "1000", "--streams", "4", "--seconds", "0.6", "--tokens", "400", "--size", "80x24")
    result = lab("inspect", *words)
    assert result.returncode == 0, result.stderr
    *card, last = result.stdout.splitlines()
    assert any("share of a core" in line for line in card)
    outcome = json.loads(last)
    assert outcome["settings"]["streams"] == 4
    assert outcome["file"]["tokens"] == 400
    live, file = outcome["live"], outcome["file"]
    assert live["shown_per_s"] > 250
    assert 0 < live["key_ms_p50"] <= live["key_ms_p95"] <= live["key_ms_max"]
    assert file["rss_mb"] > 10
    assert outcome["metrics"]["live: key_ms p95"] == {"value": live["key_ms_p95"], "better": "lower"}
    assert outcome["metrics"]["live: shown_per_s"] == {"value": live["shown_per_s"], "better": "higher"}
    assert outcome["metrics"]["file: open_s"] == {"value": file["open_s"], "better": "lower"}
    assert len(outcome["metrics"]) == 10


def test_a_size_that_is_none(lab: Run) -> None:
    """It ends with 2 before anything is measured."""
    result = lab("inspect", "--size", "8")
    assert result.returncode == 2
    assert "120x36" in result.stderr
