"""`bench inspect` itself, with a small load in a real pseudo-terminal."""

from __future__ import annotations

import os

import pytest

from lmtool.bench import inspect_run
from lmtool.bench.inspect_run import InspectBench, as_outcome, run
from lmtool.errors import ResourceError


def test_a_small_load() -> None:
    """Keys are answered, tokens shown, a trace opened; the outcome has a metric for each."""
    told: list[str] = []
    report = run(InspectBench(rate=2000.0, streams=8, seconds=1.0, tokens=4000, columns=80, rows=24), told.append)
    assert report.live["shown_per_s"] > 500
    assert 0 < report.live["key_ms_p50"] <= report.live["key_ms_p95"] <= report.live["key_ms_max"]
    assert report.file["tokens"] == 4000
    assert report.file["rss_mb"] > 10
    found = as_outcome(report)
    assert found["bench"] == "inspect"
    assert set(found["metrics"]) >= {"live: key_ms p95", "live: cpu_share", "file: open_s", "file: rss_mb"}
    assert len(told) == 3


def test_no_answer_to_keys() -> None:
    """An inspector that answers no key is not measured as fast."""
    with pytest.raises(ResourceError, match="answered no key"):
        inspect_run._delays([1.0, 2.0], [])


def test_systems_without_pseudo_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are told so."""
    monkeypatch.setattr(os, "name", "nt")
    with pytest.raises(ResourceError, match="pseudo-terminals"):
        run(InspectBench(), print)
