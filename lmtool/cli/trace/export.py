"""`lmtool trace export`: streams to show to others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.common_options import Common
from lmtool.cli.trace.files import FORCE, text_output, warn_if_incomplete
from lmtool.option import option

if TYPE_CHECKING:
    from lmtool.trace.page import Page
    from lmtool.trace.reader import TraceReader

Form = Literal["html", "asciicast"]
PageHeat = Literal["prob", "surprisal", "entropy", "rank"]


def export(
    common: Common,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Traces; two are compared side by side.")],
    to: Form = option("html", "A page of its own, or a recording that terminal players play."),
    stream: list[str] | None = option(None, "Only this stream, such as 1/3; repeatable.", metavar="LABEL"),
    heat: PageHeat = option("prob", "What colours of a page tell."),
    title: str | None = option(None, "Title of a page.", shown_default="the first prompt", metavar="TEXT"),
    output: Path | None = option(None, "Where to write.", short="-O", shown_default="stdout", metavar="FILE"),
    force: bool = FORCE,
) -> None:
    """Write streams of traces as one HTML page, with alternatives at each token, or as an asciicast."""
    from lmtool.errors import UsageError
    from lmtool.trace.formats import FORMATS
    from lmtool.trace.page import Page
    from lmtool.trace.reader import TraceReader

    readers = [TraceReader(file) for file in files]
    if to == "asciicast":
        if len(readers) > 1 or stream:
            raise UsageError("an asciicast has all streams of one trace", "leave out --stream and the other files")
        with text_output(output, force=force) as target:
            for piece in FORMATS[to](readers[0].header, (event for _, event in readers[0].with_offsets(whole=True))):
                target.write(piece)
    else:
        page = _page(Page(heat, frozenset(stream or ())), readers)
        with text_output(output, force=force) as target:
            target.write(page.html(title or readers[0].header.title))
    for reader in readers:
        warn_if_incomplete(common.output(), reader)


def _page(page: Page, readers: list[TraceReader]) -> Page:
    """The page with the streams of all traces. Raises `UsageError` where there is none to show."""
    from lmtool.errors import UsageError

    for reader in readers:
        name = reader.path.name if len(readers) > 1 else ""
        page.read((event for _, event in reader.with_offsets(whole=True)), name)
    if not page.columns:
        names = ", ".join(sorted(page.labels))
        raise UsageError(
            f"there is no stream {names}" if names else "there is no stream in this trace",
            "lmtool trace stats FILE lists the streams",
        )
    return page
