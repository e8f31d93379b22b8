"""`lab inspect`: its load, the inspector under it in a real pseudo-terminal, the card."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from lmtool.core.errors import ResourceError
from lmtool.terminal.tui.event_store import TraceFile
from lmtool.trace.events import Event, token_entries
from lmtool.trace.reader import TraceReader
from tests.lab.inspector import run as inspect_run
from tests.lab.inspector.run import InspectBench, InspectReport, inspect_card, run
from tests.lab.inspector.worker import ALTERNATIVES, Load, LoadSource, _report_ready, write_trace
from tests.terminal.tui.sources_running import watching


def test_no_answer_to_keys() -> None:
    """An inspector that answers no key is not measured as fast."""
    with pytest.raises(ResourceError, match="answered no key"):
        inspect_run._delays([1.0, 2.0], [])


def test_figures_of_keys() -> None:
    """From press to the end of its action, without the key that quits; CPU time over time, first key to last."""
    done = [(0.5, 0.0), (1.004, 0.2), (2.01, 0.3), (3.0, 0.5)]
    delays = inspect_run._delays([1.0, 2.0], done)
    assert delays == pytest.approx({"key_ms_p50": 7.0, "key_ms_p95": 9.7, "key_ms_max": 10.0, "keys": 2})
    assert inspect_run._cpu_share(done) == pytest.approx(0.2)


def test_systems_without_pseudo_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused."""
    monkeypatch.setattr(os, "name", "nt")
    with pytest.raises(ResourceError, match="pseudo-terminals"):
        run(InspectBench(), print)


async def test_a_live_load() -> None:
    """Every frame has a token of each stream with its alternatives, at about the requested rate."""
    async with watching(LoadSource(Load(streams=4, rate=4000.0))) as watch:  # type: ignore[arg-type]
        await watch.until(lambda: len(watch.frames("<")) >= 50)
        entries = token_entries(watch.events[-1])
        assert [entry["stream_id"] for entry in entries] == [1, 2, 3, 4]
        top = entries[0]["top_logprobs"]
        assert isinstance(top, dict)
        assert len(top) == ALTERNATIVES
        assert watch.events[-1].time >= 49 / 1000
        await asyncio.sleep(0)


def test_a_trace(tmp_path: Path) -> None:
    """A whole trace of the same load, the same for the same seed."""
    paths = [tmp_path / "a.lmtp.jsonl", tmp_path / "b.lmtp.jsonl"]
    for path in paths:
        write_trace(path, Load(streams=4, rate=400.0), 100)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    reader = TraceReader(paths[0])
    events: list[Event] = list(reader)
    assert sum(len(token_entries(event)) for event in events) == 100
    assert reader.ending is not None
    assert reader.ending.state == "complete"


async def test_a_file_is_ready_when_all_of_it_is_loaded(tmp_path: Path) -> None:
    """Not before: a screen that shows the beginning is no opened file."""
    path = tmp_path / "a.lmtp.jsonl"
    write_trace(path, Load(streams=4, rate=400.0), 40_000)
    file, out, up = TraceFile(path), io.StringIO(), asyncio.Event()
    reporting = asyncio.create_task(_report_ready(file, out, 0.0, up))
    up.set()
    while not len(file.state.tokens):
        file.load(0.0)
    assert not file.is_loaded
    assert not (await asyncio.wait({reporting}, timeout=0.1))[0]
    up.clear()
    while not file.load(1.0):
        pass
    assert not (await asyncio.wait({reporting}, timeout=0.1))[0]
    up.set()
    await reporting
    assert '"tokens": 40000' in out.getvalue()
    file.close()


KEYS = {"key_ms_p50": 4.0, "key_ms_p95": 61.0, "key_ms_max": 99.0, "keys": 50}
REPORT = InspectReport(
    InspectBench(),
    {**KEYS, "cpu_share": 0.41, "cpu_share_keys": 0.62, "shown_per_s": 49900.0},
    {**KEYS, "open_s": 1.5, "open_cpu_s": 1.9, "tokens": 1_000_000, "rss_mb": 250.0},
)


@pytest.mark.parametrize("columns", [50, 120])
def test_the_card_has_every_figure_beside_its_goal(columns: int) -> None:
    """Each number with its goal, at any width."""
    out = io.StringIO()
    Console(file=out, width=columns).print(inspect_card(REPORT, columns))
    text = out.getvalue()
    for part in ("49,900", "0.41", "≤ 0.5", "4.0", "61.0", "1.50", "≤ 2", "250", "≤ 300", "1,000,000"):
        assert part in text
    assert all(len(line) <= columns for line in text.splitlines())
