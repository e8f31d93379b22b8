"""`lmtool trace export`: streams to show to others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.common_options import Common
from lmtool.cli.trace.files import FORCE, text_output, warn_if_incomplete
from lmtool.settings.option import option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.trace.page import Page
    from lmtool.trace.reader import TraceReader

Form = Literal["html", "svg", "asciicast"]
_ENDINGS: Mapping[str, Form] = {".svg": "svg", ".cast": "asciicast"}
PageHeat = Literal["prob", "surprisal", "entropy", "rank"]


def export(
    common: Common,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Traces; two are compared side by side.")],
    to: Form | None = option(
        None,
        "A page of its own, a picture, or a recording that terminal players play.",
        shown_default="as -O ends, else html",
    ),
    stream: list[str] | None = option(None, "Only this stream, such as 1/3; repeatable.", metavar="LABEL"),
    heat: PageHeat = option("prob", "What colours show."),
    title: str | None = option(None, "Title of a page or picture.", shown_default="the first prompt", metavar="TEXT"),
    output: Path | None = option(None, "Where to write.", short="-O", shown_default="stdout", metavar="FILE"),
    force: bool = FORCE,
) -> None:
    """Write streams of traces as one HTML page, with alternatives at each token, as a picture, or as an asciicast."""
    from lmtool.core.errors import UsageError
    from lmtool.trace.formats import FORMATS
    from lmtool.trace.page import Page, draw
    from lmtool.trace.reader import TraceReader

    form = to or _ENDINGS.get("" if output is None else output.suffix, "html")
    readers = [TraceReader(file) for file in files]
    if form == "asciicast":
        if len(readers) > 1 or stream:
            raise UsageError("an asciicast has all streams of one trace", "leave out --stream and the other files")
        with text_output(output, force=force) as target:
            for piece in FORMATS[form](readers[0].header, (event for _, event in readers[0].with_offsets(whole=True))):
                target.write(piece)
    else:
        page, name = _page(Page(heat, frozenset(stream or ())), readers), title or readers[0].header.title
        text = draw(page, name) if form == "svg" else page.html(name)
        with text_output(output, force=force) as target:
            target.write(text)
    for reader in readers:
        warn_if_incomplete(common.output(), reader)


def _page(page: Page, readers: list[TraceReader]) -> Page:
    """The page with the streams of all traces. Raises `UsageError` where there is none to show."""
    from lmtool.core.errors import UsageError

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
