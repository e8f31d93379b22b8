"""`lmtool trace redact`: a trace without what must not be told."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.invocation import Common
from lmtool.cli.trace.files import Force, NewFile, TraceFile, tell_ending, write_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.trace.events import Event
    from lmtool.trace.reader import TraceReader
    from lmtool.trace.redaction import Redaction


def redact(
    common: Common,
    file: TraceFile,
    output: NewFile,
    what: Annotated[
        str, typer.Option("--what", metavar="LIST", help="Of prompt, headers, text (the vocabulary); with commas.")
    ] = "prompt,headers",
    force: Force = False,
) -> None:
    """Write a copy without prompts, headers or texts, and warn of what still looks like a key."""
    import secrets

    from lmtool.cli.output import Output
    from lmtool.trace.reader import TraceReader
    from lmtool.trace.redaction import Redaction, parse

    out, reader = Output.of(common), TraceReader(file)
    redaction = Redaction(parse(what), secrets.token_bytes(16), _spoken(reader))
    header = replace(reader.header, redacted=tuple(dict.fromkeys((*reader.header.redacted, *redaction.what))))
    keys: Counter[str] = Counter()
    count = write_trace(output, header, _redacted(reader, redaction, keys), force=force, sources=[file])
    tell_ending(out, reader)
    for key, times in keys.items():
        out.warn(f"{output} still holds what looks like a key: {key} ({times} times)")
    out.note(f"{output} has {count} events, without {', '.join(redaction.what) or 'anything left out'}")


def _spoken(reader: TraceReader) -> set[int]:
    """Ids of all outputs: the vocabulary keeps these, wherever their text was told."""
    from lmtool.trace.events import token_entries
    from lmtool.trace.redaction import spoken_ids

    return {token for event in reader for entry in token_entries(event) for token in spoken_ids(entry)}


def _redacted(reader: TraceReader, redaction: Redaction, keys: Counter[str]) -> Iterator[Event]:
    from lmtool.trace.blobs import BlobKeeper
    from lmtool.trace.events import Blob, End
    from lmtool.trace.redaction import suspects

    blobs = BlobKeeper()
    for _, event in reader.located(whole=True):
        told = None if isinstance(event, Blob | End) else redaction.apply(event)
        if told is not None:
            keys.update(suspects(told))
            yield from blobs.lighten(told)
