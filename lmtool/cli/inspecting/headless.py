"""The inspector without a screen: lines or sentences on stdout until the source is over or somebody ends it."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmtool.cli.output import Output
    from lmtool.trace.filter import Filter
    from lmtool.trace.reader import TraceReader
    from lmtool.tui.plain import PlainLines, Sentences
    from lmtool.tui.sources.source import Source


def has_screen() -> bool:
    """Whether there is a terminal that can be drawn on, with a keyboard. Textual draws on stderr and never checks."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream is not None and stream.isatty() for stream in streams) and os.environ.get("TERM") != "dumb"


async def tell(out: Output, source: Source, *, chosen: Filter | None, sentences: bool) -> None:
    """Print what a source feeds until it is over; Ctrl-C ends it in good order. Raises what the source raises."""
    from lmtool.cli.serving import interrupts
    from lmtool.tui.plain import PlainLines, Sentences

    printer: PlainLines | Sentences = (Sentences if sentences else PlainLines)(out.line, chosen)
    with interrupts.watch() as asked:
        running = asyncio.create_task(source.run(printer.feed))
        stopped = asyncio.create_task(asked.first.wait())
        await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (running, stopped):
            task.cancel()
        ends = await asyncio.gather(running, stopped, return_exceptions=True)
    printer.finish()
    if isinstance(ends[0], Exception):
        raise ends[0]


def print_trace(out: Output, path: str, *, chosen: Filter | None, sentences: bool) -> TraceReader:
    """Print a trace file; what has read it knows how it ends. Raises `FileError`."""
    from lmtool.trace.reader import TraceReader
    from lmtool.tui.plain import PlainLines, Sentences
    from lmtool.tui.sieve import load_selection

    printed = False

    def put(line: str) -> None:
        nonlocal printed
        printed = True
        out.line(line)

    reader = TraceReader(path)
    with load_selection(path, chosen) as selection:
        printer: PlainLines | Sentences = (Sentences if sentences else PlainLines)(put, selection=selection)
        for event in reader:
            printer.feed((event,))
        printer.finish()
    if chosen is not None and not printed:
        out.note_nothing_passed(chosen.source)
    return reader
