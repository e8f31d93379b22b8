"""Tokens for the inspector to show."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lmtool.bench.inspect_load import ALTERNATIVES, Load, LoadSource, write_trace
from lmtool.trace.events import Event, token_entries
from lmtool.trace.reader import TraceReader
from tests.tui.sources.watching import watching


async def test_a_live_load() -> None:
    """Every frame has a token of each stream with its alternatives, at about the rate that was asked for."""
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
