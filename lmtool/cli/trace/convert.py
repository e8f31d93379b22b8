"""`lmtool trace convert`: traces to and from other formats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.common_options import Common
from lmtool.cli.trace.files import FORCE, text_output, warn_if_incomplete, write_trace
from lmtool.settings.option import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.settings.terminal import Output

Target = Literal["asciicast", "csv", "har", "lines", "markdown", "trace"]


def convert(
    common: Common,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace; for --to trace a trace or a > and < log.")],
    to: Target = option("csv", "What to write; trace reads a log, or packs and unpacks."),
    output: Path | None = option(None, "Where to write.", short="-O", shown_default="stdout", metavar="FILE"),
    force: bool = FORCE,
) -> None:
    """Write a trace as CSV, Markdown, asciicast, HAR or wire log, or make a trace of a wire log."""
    from lmtool.core.errors import UsageError
    from lmtool.trace.formats import FORMATS
    from lmtool.trace.reader import TraceReader

    out = common.output()
    if to == "trace":
        if output is None:
            raise UsageError("a trace needs a file to be written into", "add -O FILE")
        _to_trace(out, file, output, force=force)
        return
    reader, pieces = TraceReader(file), 0
    with text_output(output, force=force) as target:
        for piece in FORMATS[to](reader.header, (event for _, event in reader.with_offsets(whole=True))):
            target.write(piece)
            pieces += 1
    if pieces < 2 and to not in ("har", "lines"):
        out.warn(f"{file} has no stream of tokens; --to har has its other exchanges")
    warn_if_incomplete(out, reader)


def _to_trace(out: Output, file: Path, output: Path, *, force: bool) -> None:
    from lmtool.core.errors import FileError
    from lmtool.trace.codec import Header
    from lmtool.trace.events import End
    from lmtool.trace.formats import from_wire_log
    from lmtool.trace.reader import TraceReader

    if _is_trace(file):
        reader = TraceReader(file)
        events = (event for event in reader if not isinstance(event, End))
        count = write_trace(output, reader.header, events, force=force, sources=[file])
        warn_if_incomplete(out, reader)
    else:
        header = Header(by="lmtool", title=file.stem, transport={"kind": "websocket"}, times="numbered")
        left_out: list[int] = []
        frames = from_wire_log(_lines(file), header.json, left_out)
        try:
            count = write_trace(output, header, frames, force=force, sources=[file])
        except FileError as error:
            raise FileError(f"cannot convert {file}: {error.message}", *error.hints) from None
        if left_out:
            out.warn(f"{file}: {len(left_out)} lines are not frames and were skipped; the first is line {left_out[0]}")
    out.note(f"{output} has {count} events")


def _is_trace(file: Path) -> bool:
    from lmtool.core.errors import FileError

    try:
        with file.open("rb") as opened:
            start = opened.read(4096)
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror}") from None
    return start.startswith(b"\x1f\x8b") or b'"lmtp_trace"' in start


def _lines(file: Path) -> Iterator[str]:
    from lmtool.trace.reader import LONGEST_LINE

    with file.open(encoding="utf-8", errors="replace") as opened:
        yield from iter(lambda: opened.readline(LONGEST_LINE), "")
