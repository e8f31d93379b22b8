"""The inspector under measurement (run by tests/bench/test_inspect_run.py in a terminal)."""

from __future__ import annotations

import asyncio
import io

from lmtool.bench.inspect_load import Load, write_trace
from lmtool.bench.inspect_worker import _tell_ready
from lmtool.tui.lines import TraceFile


async def test_readiness_is_told_when_the_whole_file_is_there(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Not before: a screen that shows the beginning is no opened file."""
    path = tmp_path / "a.lmtp.jsonl"
    write_trace(path, Load(streams=4, rate=400.0), 40)
    file, out, up = TraceFile(path), io.StringIO(), asyncio.Event()
    telling = asyncio.create_task(_tell_ready(file, out, 0.0, up))
    await asyncio.sleep(0)
    assert out.getvalue() == ""
    while not file.load(1.0):
        pass
    assert out.getvalue() == ""
    up.set()
    await telling
    assert '"tokens": 40' in out.getvalue()
    file.close()
