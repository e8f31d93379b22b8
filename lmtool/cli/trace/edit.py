"""`lmtool trace cut`, `merge` and `redact`: new traces out of old ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.common_options import Common
from lmtool.cli.trace.files import FORCE, NewFile, TraceFile, warn_if_incomplete, write_trace
from lmtool.settings.option import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.trace.events import Event
    from lmtool.trace.reader import TraceReader


def cut(
    common: Common,
    file: TraceFile,
    output: NewFile,
    start: float = option(0.0, "First second; becomes second 0.", flag="--from", metavar="S", minimum=0),
    stop: float | None = option(None, "Last second.", flag="--to", shown_default="the end", metavar="S", minimum=0),
    connection: list[int] | None = option(None, "Only this connection; repeatable.", short="-c", metavar="N"),
    force: bool = FORCE,
) -> None:
    """Write the part between two times, with the open connections and vocabulary that it needs."""
    from lmtool.core.errors import UsageError
    from lmtool.trace.reader import TraceReader

    if stop is not None and stop < start:
        raise UsageError(f"--to {stop} is before --from {start}")
    out, reader = common.output(), TraceReader(file)
    part = _part(reader, start, stop, frozenset(connection or ()))
    header = replace(reader.header, times="measured")
    count = write_trace(output, header, part, force=force, sources=[file])
    warn_if_incomplete(out, reader)
    out.note(f"{output} has {count} events")


def _part(reader: TraceReader, start: float, stop: float | None, connections: frozenset[int]) -> Iterator[Event]:
    from lmtool.core.errors import FileError
    from lmtool.trace.editing import Cut
    from lmtool.trace.events import Blob

    offsets: dict[str, int] = {}

    def blob(sha256: str) -> Blob:
        event = reader.at(offsets[sha256]) if sha256 in offsets else None
        if not isinstance(event, Blob):
            raise FileError(f"{reader.path} refers to the blob {sha256[:12]}, which no line above gives")
        return event

    part = Cut(start, float("inf") if stop is None else stop, connections, blob)
    for offset, event in reader.with_offsets():
        if isinstance(event, Blob):
            offsets[event.sha256] = offset
        yield from part.part_of(event)


def merge(
    common: Common,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Traces; each begins at second 0.")],
    output: NewFile,
    force: bool = FORCE,
) -> None:
    """Write the events of several traces in order of time; connections are numbered anew."""
    from lmtool.trace.editing import merge as merge_events
    from lmtool.trace.editing import merge_headers
    from lmtool.trace.reader import TraceReader

    out, readers = common.output(), [TraceReader(file) for file in files]
    header = merge_headers([reader.header for reader in readers])
    count = write_trace(output, header, merge_events(readers), force=force, sources=files)
    for reader in readers:
        warn_if_incomplete(out, reader)
    out.note(f"{output} has {count} events")


def redact(
    common: Common,
    file: TraceFile,
    output: NewFile,
    what: str = option(
        "prompt,headers", "Parts to remove: prompt, headers, text (answers); with commas.", metavar="LIST"
    ),
    force: bool = FORCE,
) -> None:
    """Write a copy without what clients said (prompt), what models said (text), headers, and what looks like a key."""
    import secrets

    from lmtool.trace.editing import redacted
    from lmtool.trace.reader import TraceReader
    from lmtool.trace.redaction import Redaction, parse

    out, reader = common.output(), TraceReader(file)
    redaction = Redaction(parse(what), secrets.token_bytes(16))
    header = redaction.header(reader.header)
    count = write_trace(output, header, redacted(reader, redaction), force=force, sources=[file])
    warn_if_incomplete(out, reader)
    out.note(f"{output} has {count} events, without {', '.join(redaction.what) or 'anything left out'}")
