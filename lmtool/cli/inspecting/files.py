"""What `lmtool inspect` writes without a screen: a picture of a moment, one stream in another form."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.errors import FileError, UsageError
from lmtool.trace.writer import exists

if TYPE_CHECKING:
    from lmtool.cli.output import Output
    from lmtool.tui.lines import TraceFile
    from lmtool.tui.options import InspectorOptions


def export(out: Output, file: Path, target: Path, label: str | None, options: InspectorOptions, *, force: bool) -> None:
    """Write a stream of a trace, up to `options.at`. Raises `FileError`, `UsageError`."""
    from lmtool.tui.exports import form_of
    from lmtool.tui.lines import TraceFile

    form = form_of(target)
    with closing(TraceFile(file)) as trace:
        while not trace.load(1.0):
            pass
        _export(out, trace, target, form, label, options, force=force)


def _export(
    out: Output, trace: TraceFile, target: Path, form: str, label: str | None, options: InspectorOptions, *, force: bool
) -> None:
    from lmtool.tui.exports import write_to
    from lmtool.tui.view import View

    file = trace.path
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
    out.note(f"{target} has stream {stream.label}: {stream.count(view.seen)} tokens")


async def snapshot(
    out: Output, files: list[Path], target: Path, size: str, options: InspectorOptions, *, force: bool
) -> None:
    """Write a picture of a trace, or of two compared. Raises `FileError`, `UsageError`."""
    from lmtool.tui.lines import TraceFile
    from lmtool.tui.snapshot import size_of
    from lmtool.tui.snapshot import snapshot as made

    sides = size_of(size)
    _refuse_existing(target, force=force)
    with ExitStack() as opened:
        first, *rest = [opened.enter_context(closing(TraceFile(file))) for file in files[:2]]
        svg = await made(first, options, sides, other=rest[0] if rest else None)
    _write(target, svg)
    out.note(f"{target} shows {files[0]} at {sides[0]}x{sides[1]}")


def _refuse_existing(target: Path, *, force: bool) -> None:
    if target.exists() and not force:
        raise exists(target, force=True)


def _write(target: Path, text: str) -> None:
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror}") from None
