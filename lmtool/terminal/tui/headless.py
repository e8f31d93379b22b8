"""The inspector without a screen: lines or sentences, one stream in another form, a picture of a moment of a trace."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from lmtool.core.errors import UsageError
from lmtool.trace.writer import in_place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lmtool.terminal.tui.event_store import TraceFile
    from lmtool.terminal.tui.options import InspectorOptions
    from lmtool.terminal.tui.plain import PlainLines, Sentences
    from lmtool.terminal.tui.sources.source import Source
    from lmtool.trace.filter import Filter
    from lmtool.trace.reader import TraceReader

LARGEST = 400
"""Columns or rows of a picture."""
_FRAMES = 2
"""Drawings until the panes have their final heights."""


def has_screen() -> bool:
    """True if stdin, stdout and stderr are a terminal. Textual draws on stderr without checking it."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream is not None and stream.isatty() for stream in streams) and os.environ.get("TERM") != "dumb"


def need_screen(option: str) -> None:
    """Raise `UsageError` unless there is a terminal to draw on."""
    if not has_screen():
        raise UsageError(f"{option} needs a terminal", "leave it out, or run it where stdin, stdout and stderr are one")


async def print_source(
    put: Callable[[str], None],
    source: Source,
    stop: asyncio.Event,
    *,
    expression: Filter | None = None,
    sentences: bool = False,
) -> None:
    """Print the events of a source until it ends or `stop` is set. Raises the source's errors."""
    from lmtool.terminal.tui.plain import PlainLines, Sentences

    printer: PlainLines | Sentences = (Sentences if sentences else PlainLines)(put, expression)
    running = asyncio.create_task(source.run(printer.feed))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for task in (running, stopped):
        task.cancel()
    ends = await asyncio.gather(running, stopped, return_exceptions=True)
    printer.finish()
    if isinstance(ends[0], Exception):
        raise ends[0]


def print_trace(put: Callable[[str], None], path: str, *, expression: Filter | None, sentences: bool) -> TraceReader:
    """Print a trace file; its reader, which knows the ending. Raises `FileError`."""
    from lmtool.terminal.tui.measures import load_selection
    from lmtool.terminal.tui.plain import PlainLines, Sentences
    from lmtool.trace.reader import TraceReader

    reader = TraceReader(path)
    with load_selection(path, expression) as selection:
        printer: PlainLines | Sentences = (Sentences if sentences else PlainLines)(put, selection=selection)
        for event in reader:
            printer.feed((event,))
        printer.finish()
    return reader


def export(file: Path, target: Path, label: str | None, options: InspectorOptions, *, force: bool) -> str:
    """Write a stream of a trace, up to `options.at`; a sentence on it. Raises `FileError`, `UsageError`."""
    from lmtool.terminal.tui.event_store import TraceFile
    from lmtool.terminal.tui.exports import form_of, write_to
    from lmtool.terminal.tui.view import View

    form = form_of(target)
    with closing(TraceFile(file)) as trace:
        while not trace.load(1.0):
            pass
        view = View(trace.state, trace, live=False, moment=options.at, heat=options.heat, palette=options.palette)
        labels = [stream.label for stream in trace.state.streams]
        if not labels:
            raise UsageError(f"{file} has no stream to export", f"what it has:  lmtool trace show {file}")
        stream = trace.state.find(label or labels[0])
        if stream is None:
            raise UsageError(f"{file} has no stream {label}", f"it has {', '.join(labels[:20])}")
        if target.exists() and target.samefile(file):
            raise UsageError(f"{target} is being read", "write into another file")
        write_to(target, form, view, stream, overwrite=force)
        return f"{target} has stream {stream.label}: {stream.count(view.token_count)} tokens"


async def save_snapshot(
    files: Sequence[Path], target: Path, size: str, options: InspectorOptions, *, force: bool
) -> str:
    """Write a picture of a trace, or of two compared; a sentence on it. Raises `FileError`, `UsageError`."""
    from lmtool.terminal.tui.event_store import TraceFile

    sides = size_of(size)
    with in_place_of(target, overwrite=force) as new, ExitStack() as opened:
        first, *rest = [opened.enter_context(closing(TraceFile(file))) for file in files[:2]]
        svg = await snapshot(first, options, sides, other=rest[0] if rest else None)
        new.write_text(svg, encoding="utf-8")
    return f"{target} shows {files[0]} at {sides[0]}x{sides[1]}"


def size_of(text: str) -> tuple[int, int]:
    """`120x36` as columns and rows. Raises `UsageError`."""
    match = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)
    size = (int(match[1]), int(match[2])) if match else (0, 0)
    if not all(10 <= side <= LARGEST for side in size):
        raise UsageError(f"--size {text} is not a screen size", f"columns x rows, 10 to {LARGEST} each, such as 120x36")
    return size


async def snapshot(
    file: TraceFile, options: InspectorOptions, size: tuple[int, int], *, other: TraceFile | None = None
) -> str:
    """The screen as SVG, as it looks at `options.at`, or at the end of the trace. Raises `FileError`."""
    from lmtool.terminal.tui.app import InspectorApp
    from lmtool.terminal.tui.exports import picture

    for trace in (file, other):
        while trace is not None and not trace.load(1.0):
            pass
    app = InspectorApp(file, None, options, other)
    app.animation_level = "none"
    async with app.run_test(size=size) as pilot:
        if options.at is None:
            app.view.playing, app.view.moment, app.view.from_beginning = False, None, True
        await pilot.pause()
        if other is not None and app.top_screen is app.main:
            app.do(app.keys.by_id("compare"))
        for _ in range(_FRAMES):
            app.changed()
            await pilot.pause(0.1)  # the next frame draws what has changed
        return picture(app)
