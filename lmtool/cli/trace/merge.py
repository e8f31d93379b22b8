"""`lmtool trace merge`: several traces as one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lmtool.cli.invocation import Common
from lmtool.cli.trace.files import Force, NewFile, tell_ending, write_trace


def merge(
    common: Common,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Traces; each begins at second 0.")],
    output: NewFile,
    force: Force = False,
) -> None:
    """Write the events of several traces in order of time; connections are numbered anew."""
    from lmtool.cli.output import Output
    from lmtool.trace.editing import merged, merged_header
    from lmtool.trace.reader import TraceReader

    out, readers = Output.of(common), [TraceReader(file) for file in files]
    header = merged_header([reader.header for reader in readers])
    count = write_trace(output, header, merged(readers), force=force, sources=files)
    for reader in readers:
        tell_ending(out, reader)
    out.note(f"{output} has {count} events")
