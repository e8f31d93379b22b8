"""Shares of ceilings, goals, and the card."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tests.lab.gpu.report import GpuReport, gpu_card
from tests.lab.gpu.settings import SECTIONS, GpuBench

CEILINGS = {"copy_bytes_per_s": 4e12, "read_bytes_per_s": 3e12, "flop_per_s": {"bfloat16": 8e14}}


def report_of(**results) -> GpuReport:
    """A report with these results, each section done."""
    report = GpuReport(GpuBench(), SECTIONS, {"device": {"name": "Some GPU"}, "packages": {"torch": "2.11"}})
    for name, result in results.items():
        report.part(name, result)
        report.ended(name, {"done": 1.0}, 1.0)
    return report


def step(streams: int, context: int, milliseconds: float, *, operations: float = 1e9, size: float = 16e9):
    """A row of a decode step that reads so many bytes."""
    tokens = streams / milliseconds * 1e3
    return {
        "streams": streams, "context": context, "bytes": size, "operations": operations,
        "graph_ms": milliseconds / 2, "engine_ms": milliseconds, "host_ms": 0.3, "tokens_per_s": tokens,
    }  # fmt: skip


def verdicts(report: GpuReport) -> list[bool | None]:
    """True if each goal is met."""
    return [bar.is_met for bar in report.bars()]


def test_shares_of_the_ceilings_of_the_same_run() -> None:
    """16 GB at 4 TB/s take 4 ms; what multiplies longer than it reads has another limit."""
    report = report_of(ceilings=CEILINGS, decode={"rows": [step(1, 128, 5.0), step(256, 128, 20.0, operations=8e12)]})
    first, second = report.outcome()["sections"]["decode"]["rows"]
    assert (first["bandwidth_ms"], first["engine_of_bandwidth"], first["engine_of_limit"]) == (4.0, 0.8, 0.8)
    assert (second["engine_of_bandwidth"], second["engine_of_limit"]) == (0.2, 0.5)
    assert first["graph_of_bandwidth"] == 1.6


def test_goals_that_are_met() -> None:
    """Each goal has its figure."""
    crowd = {"crowd": {"equal": True}}
    rows = [{**step(1, 128, 5.0), "engine_ms": 5.0}, {**step(64, 128, 6.0), "engine_ms": 6.0}]
    report = report_of(
        tests={"passed": 168, "failed": 0, "skipped": 1, "unfinished": []},
        ceilings=CEILINGS,
        decode={"rows": [step(1, 128, 4.5), step(1, 16384, 9.0), step(64, 128, 5.5)]},
        transformers={"rows": [{"way": "continuous batching", "context": 128, "streams": 64, "tokens_per_s": 2000.0}]},
        deterministic={"rows": rows, **crowd},
        bias=crowd,
        arrival={"rows": [{"compiled": [], "longest_gap_ms": 40.0}]},
        second_load={"loads": [{"blocks": 900}, {"blocks": 900}]},
    )
    assert verdicts(report) == [True] * 8
    measured = [bar.measured for bar in report.bars()][1:5]
    assert measured == ["89% (behind 128 tokens)", "73% (behind 128 tokens)", "5.8", "1.11 (at 1)"]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(gpu_card(report))
    shown = console.export_text()
    assert shown.count(" met") == 8
    assert "copies 4000 GB/s" in shown
    assert verdicts(replace(report, bench=replace(report.bench, device="cpu"))) == [None] * 8


def test_goals_that_are_missed() -> None:
    """One stream too slow, one id that differs, one kernel compiled: each is seen."""
    report = report_of(
        tests={"passed": 160, "failed": 8, "skipped": 0, "unfinished": [], "failures": [{"test": "t", "why": "w"}]},
        ceilings=CEILINGS,
        decode={"rows": [step(1, 128, 4.1), step(1, 2048, 5.0), step(64, 128, 9.0)]},
        transformers={"rows": [{"way": "continuous batching", "context": 128, "streams": 64, "tokens_per_s": 4000.0}]},
        deterministic={"rows": [step(1, 128, 8.0)], "crowd": {"equal": True}},
        bias={"crowd": {"equal": False}},
        arrival={"rows": [{"compiled": ["_decode"], "longest_gap_ms": 900.0}]},
        second_load={"loads": [{"blocks": 900}, {"blocks": 100}]},
    )
    assert verdicts(report) == [False] * 8


def test_goals_without_figures() -> None:
    """Where nothing was measured nothing is met, and nothing missed."""
    report = report_of()
    report.ended("load", {"failed": {"error": "RuntimeError: no\nmore"}}, 3.0)
    assert verdicts(report) == [None] * 8
    assert report.line("load") == "failed after 3 s: RuntimeError: no"
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(gpu_card(report))
    shown = console.export_text()
    assert shown.count("not measured") == 9  # and the ceilings
    assert "load: failed after 3 s: RuntimeError: no" in shown


def test_a_pytest_that_did_not_end() -> None:
    """Its tests are not known to pass."""
    report = report_of(tests={"passed": 100, "failed": 0, "skipped": 0, "unfinished": [{"why": "its time was over"}]})
    assert verdicts(report)[0] is False


def test_figures_that_nobody_expected(tmp_path: Path) -> None:
    """They are saved as they are, and the file says why it has no goals."""
    report = report_of(ceilings=CEILINGS, decode={"rows": ["not a row"]})
    report.save(tmp_path / "gpu.json")
    saved = json.loads((tmp_path / "gpu.json").read_text())
    assert saved["sections"]["decode"]["rows"] == ["not a row"]
    assert saved["report_error"].startswith("TypeError")
