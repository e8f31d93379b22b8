"""The card of `bench inspect`."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lmtool.bench.inspect_card import inspect_card
from lmtool.bench.inspect_run import InspectBench, InspectReport

KEYS = {"key_ms_p50": 4.0, "key_ms_p95": 61.0, "key_ms_max": 99.0, "keys": 50}
REPORT = InspectReport(
    InspectBench(),
    {**KEYS, "cpu_share": 0.41, "cpu_share_keys": 0.62, "shown_per_s": 49900.0},
    {**KEYS, "open_s": 1.5, "open_cpu_s": 1.9, "tokens": 1_000_000, "rss_mb": 250.0},
)


@pytest.mark.parametrize("columns", [50, 120])
def test_everything_is_told_beside_what_it_should_be(columns: int) -> None:
    """Each number with its goal, at any width."""
    out = io.StringIO()
    Console(file=out, width=columns).print(inspect_card(REPORT, columns))
    text = out.getvalue()
    for part in ("49,900", "0.41", "≤ 0.5", "4.0", "61.0", "1.50", "≤ 2", "250", "≤ 300", "1,000,000"):
        assert part in text
    assert all(len(line) <= columns for line in text.splitlines())
