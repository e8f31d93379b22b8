"""Reading and writing of trace files for the `trace` commands, with warnings about incomplete ones."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.settings.option import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.settings.terminal import Output
    from lmtool.trace.codec import Header
    from lmtool.trace.events import Event
    from lmtool.trace.exchanges import Recording
    from lmtool.trace.reader import TraceReader

TraceFile = Annotated[Path, typer.Argument(metavar="FILE", help="A trace: NAME.lmtp.jsonl, or packed with gzip.")]
NewFile = Annotated[Path, typer.Option("--output", "-O", metavar="FILE", help="The trace to write; .gz packs it.")]
FORCE = option(False, "Replace the file if it exists.")


def warn_if_incomplete(out: Output, reader: TraceReader) -> None:
    """Warn when a trace that was read to its end is not complete."""
    if reader.ending is not None and reader.ending.state != "complete":
        out.warn(f"{reader.path} is {reader.ending.state}: {reader.ending.reason}")


def read_events(out: Output, path: Path) -> tuple[Header, list[Event]]:
    """Header and events of a trace, large values in their places; warns when it is not complete. Raises `FileError`."""
    from lmtool.trace.reader import TraceReader

    reader = TraceReader(path)
    events = [event for _, event in reader.with_offsets(whole=True)]
    warn_if_incomplete(out, reader)
    return reader.header, events


def read_recording(out: Output, path: Path) -> Recording:
    """Exchanges of a trace that are compared and answered; warns if the trace is incomplete. Raises `FileError`."""
    from lmtool.trace.events import Message
    from lmtool.trace.exchanges import Recording
    from lmtool.trace.reader import TraceReader

    reader = TraceReader(path)
    recording = Recording.of(event for _, event in reader.with_offsets(whole=True))
    warn_if_incomplete(out, reader)
    if reader.header.redacted and any(isinstance(event, Message) for event in recording.session_events):
        out.warn(f"{path} was redacted: the removed parts of its Evergreen sessions cannot be answered")
    return recording


def write_trace(path: Path, header: Header, events: Iterable[Event], *, force: bool, sources: Iterable[Path]) -> int:
    """Write a trace of these events; return their number. Raises `FileError`."""
    from lmtool.core.errors import UsageError
    from lmtool.trace import writer

    if path.exists() and any(path.samefile(source) for source in sources):
        raise UsageError(f"{path} is being read", "write into another file")
    return writer.write_trace(path, header, events, overwrite=force)


@contextmanager
def text_output(path: Path | None, *, force: bool) -> Iterator[typer.FileTextWrite]:
    """A file to write text into, or stdout. Raises `FileError`."""
    from lmtool.trace.writer import in_place_of

    if path is None:
        yield sys.stdout  # type: ignore[misc] # a TextIO is all that is needed
        return
    with in_place_of(path, overwrite=force) as new, new.open("w", encoding="utf-8", newline="\n") as file:
        yield file  # type: ignore[misc] # a TextIO is all that is needed
