"""`lmtool trace cut`, `merge` and `redact`: new traces out of old ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.common_options import Common
from lmtool.cli.trace.files import FORCE, NewFile, TraceFile, warn_if_incomplete, write_trace
from lmtool.option import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.trace.events import Event
    from lmtool.trace.reader import TraceReader
    from lmtool.trace.redaction import Redaction


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
    from lmtool.errors import UsageError
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
    from lmtool.errors import FileError
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
    what: str = option("prompt,headers", "Of prompt, headers, text (the vocabulary); with commas.", metavar="LIST"),
    force: bool = FORCE,
) -> None:
    """Write a copy without prompts, headers or texts, and warn of what still looks like a key."""
    import secrets

    from lmtool.trace.reader import TraceReader
    from lmtool.trace.redaction import Redaction, parse

    out, reader = common.output(), TraceReader(file)
    redaction = Redaction(parse(what), secrets.token_bytes(16), _output_ids(reader))
    header = replace(reader.header, redacted=tuple(dict.fromkeys((*reader.header.redacted, *redaction.what))))
    keys: Counter[str] = Counter()
    count = write_trace(output, header, _redacted(reader, redaction, keys), force=force, sources=[file])
    warn_if_incomplete(out, reader)
    for key, times in keys.items():
        out.warn(f"{output} still holds what looks like a key: {key} ({times} times)")
    out.note(f"{output} has {count} events, without {', '.join(redaction.what) or 'anything left out'}")


def _output_ids(reader: TraceReader) -> set[int]:
    """Ids of all outputs: the vocabulary keeps these, wherever their text is."""
    from lmtool.trace.events import token_entries
    from lmtool.trace.redaction import entry_token_ids

    return {token for event in reader for entry in token_entries(event) for token in entry_token_ids(entry)}


def _redacted(reader: TraceReader, redaction: Redaction, keys: Counter[str]) -> Iterator[Event]:
    from lmtool.trace.events import Blob, End
    from lmtool.trace.large_values import LargeValues
    from lmtool.trace.redaction import likely_keys

    large_values = LargeValues()
    for _, event in reader.with_offsets(whole=True):
        redacted = None if isinstance(event, Blob | End) else redaction.apply(event)
        if redacted is not None:
            keys.update(likely_keys(redacted))
            yield from large_values.take_out(redacted)
