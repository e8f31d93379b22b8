"""`lmtool trace convert`: traces to and from other formats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.invocation import Common
from lmtool.cli.trace.files import Force, tell_ending, text_output, write_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.cli.output import Output

Target = Literal["asciicast", "csv", "har", "lines", "markdown", "trace"]


def convert(
    common: Common,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace; for --to trace a trace or a > and < log.")],
    to: Annotated[Target, typer.Option("--to", help="What to write; trace reads a log, or packs and unpacks.")] = "csv",
    output: Annotated[
        Path | None, typer.Option("--output", "-O", metavar="FILE", help="Where to write.", show_default="stdout")
    ] = None,
    force: Force = False,
) -> None:
    """Write a trace as CSV, Markdown, asciicast, HAR or wire log, or make a trace of a wire log."""
    from lmtool.cli.output import Output
    from lmtool.errors import UsageError
    from lmtool.trace.exports import FORMATS
    from lmtool.trace.reader import TraceReader

    out = Output.of(common)
    if to == "trace":
        if output is None:
            raise UsageError("a trace needs a file to be written into", "add -O FILE")
        _to_trace(out, file, output, force=force)
        return
    reader = TraceReader(file)
    with text_output(output, force=force) as target:
        for piece in FORMATS[to](reader.header, (event for _, event in reader.located(whole=True))):
            target.write(piece)
    tell_ending(out, reader)


def _to_trace(out: Output, file: Path, output: Path, *, force: bool) -> None:
    from lmtool.trace.events import End
    from lmtool.trace.header import Header
    from lmtool.trace.reader import TraceReader
    from lmtool.trace.wire_logs import events_of

    if _is_trace(file):
        reader = TraceReader(file)
        events = (event for event in reader if not isinstance(event, End))
        count = write_trace(output, reader.header, events, force=force, sources=[file])
        tell_ending(out, reader)
    else:
        header = Header(by="lmtool", title=file.stem, transport={"kind": "websocket"}, times="numbered")
        count = write_trace(output, header, events_of(_lines(file), header.json), force=force, sources=[file])
    out.note(f"{output} has {count} events")


def _is_trace(file: Path) -> bool:
    from lmtool.errors import FileError

    try:
        with file.open("rb") as opened:
            start = opened.read(4096)
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror}") from None
    return start.startswith(b"\x1f\x8b") or b'"lmtp_trace"' in start


def _lines(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8", errors="replace") as opened:
        yield from opened
