"""`lmtool trace cut`: a part of a trace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.invocation import Common
from lmtool.cli.trace.files import Force, NewFile, TraceFile, tell_ending, write_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.trace.events import Event
    from lmtool.trace.reader import TraceReader


def cut(
    common: Common,
    file: TraceFile,
    output: NewFile,
    start: Annotated[float, typer.Option("--from", metavar="S", min=0, help="First second; becomes second 0.")] = 0.0,
    stop: Annotated[
        float | None, typer.Option("--to", metavar="S", min=0, help="Last second.", show_default="the end")
    ] = None,
    connection: Annotated[
        list[int] | None, typer.Option("--connection", "-c", metavar="N", help="Only this connection; repeatable.")
    ] = None,
    force: Force = False,
) -> None:
    """Write the part between two times, with the open connections and vocabulary that it needs."""
    from lmtool.cli.output import Output
    from lmtool.errors import UsageError
    from lmtool.trace.reader import TraceReader

    if stop is not None and stop < start:
        raise UsageError(f"--to {stop} is before --from {start}")
    out, reader = Output.of(common), TraceReader(file)
    part = _part(reader, start, stop, frozenset(connection or ()))
    header = replace(reader.header, times="measured")
    count = write_trace(output, header, part, force=force, sources=[file])
    tell_ending(out, reader)
    out.note(f"{output} has {count} events")


def _part(reader: TraceReader, start: float, stop: float | None, connections: frozenset[int]) -> Iterator[Event]:
    from lmtool.errors import FileError
    from lmtool.trace.editing import Cut
    from lmtool.trace.events import Blob

    offsets: dict[str, int] = {}

    def blob(sha256: str) -> Blob:
        found = reader.at(offsets[sha256]) if sha256 in offsets else None
        if not isinstance(found, Blob):
            raise FileError(f"{reader.path} refers to the blob {sha256[:12]}, which no line above gives")
        return found

    part = Cut(start, float("inf") if stop is None else stop, connections, blob)
    for offset, event in reader.located():
        if isinstance(event, Blob):
            offsets[event.sha256] = offset
        yield from part.take(event)
