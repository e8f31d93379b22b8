"""`lmtool tour`: the inspector in two minutes, by doing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.cli.common_options import Common
from lmtool.settings.option import option

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.terminal.tui.options import InspectorOptions
    from lmtool.terminal.tui.sources.source import Source
    from lmtool.terminal.tui.tour_steps import Progress

LOOK = "How it looks"
SLOW, QUICK = 8.0, 100.0
"""Tokens a second of a stream: while there is something to pause; later, where one waits for its end."""
NEXT_STEPS = (
    "lmtool chat             talk with the same model",
    "lmtool serve            keep a model loaded, for every program",
    "lmtool inspect          watch what all of its clients say",
    "lmtool docs inspector   what else the inspector can do",
)


async def tour(
    common: Common,
    *,
    restart: bool = option(False, "Begin anew, not where the tour was left."),
    theme: str | None = option(None, "A theme of Textual.", LOOK, metavar="NAME", shown_default="as inspect's"),
    ascii: bool = option(False, "Draw with ASCII only.", LOOK),  # noqa: A002 - as the option is called
) -> None:
    """Learn the inspector in two minutes, by doing: run, pause, look at tokens, branch, compare.

    On the embedded model, which is loaded into this process: no server is needed. q leaves at any time; the next tour
    goes on where this one was left.
    """
    import typer

    from lmtool.cli.inspect_servers import warnings_to
    from lmtool.core.errors import UsageError
    from lmtool.serving.composition import need_serve_packages
    from lmtool.terminal.tui.headless import has_screen
    from lmtool.terminal.tui.tour_steps import Progress, tour_file

    need_serve_packages()
    if not has_screen():
        raise UsageError(
            "lmtool tour is done with keys on a screen, and there is no terminal here",
            "run it where stdin, stdout and stderr are one",
            "the same in words:  lmtool docs inspector",
        )
    out, warnings = common.output(), list[str]()
    progress = Progress(tour_file(), restart=restart)
    try:
        with warnings_to(warnings.append):
            status = await _run(_options(common, theme, ascii_only=ascii), progress, warnings.append)
    finally:
        for sentence in warnings:
            out.warn(sentence)
    _say_what_is_next(out.note, progress)
    if status:
        raise typer.Exit(status)


def _options(common: Common, theme: str | None, *, ascii_only: bool) -> InspectorOptions:
    import sys

    from lmtool.cli.settings import load
    from lmtool.settings.terminal import wants_color
    from lmtool.terminal.tui.options import InspectorOptions

    settings = load(common.settings)
    inspector = settings.find(("inspect",), "theme")
    return InspectorOptions(
        theme=theme or (InspectorOptions().theme if inspector is None else str(inspector.value)),
        ascii=ascii_only,
        tips=False,
        keys=settings.keys,
        color=wants_color(sys.stderr, common.color),
    )


async def _run(options: InspectorOptions, progress: Progress, warn: Callable[[str], None]) -> int:
    from functools import partial

    from lmtool.terminal.tui.app import run_inspector
    from lmtool.terminal.tui.event_store import EventStore
    from lmtool.terminal.tui.tour import TourApp

    source = _source(progress, warn)
    return await run_inspector(EventStore(), source, options, make=partial(TourApp, progress=progress))


def _source(progress: Progress, warn: Callable[[str], None]) -> Source:
    """The embedded model in this process, at a pace that eyes can follow."""
    from functools import partial

    from lmtool.cli.inspect_servers import find_tokenizer
    from lmtool.terminal.tui.sources.demo import DemoSource, demo_server
    from lmtool.terminal.tui.tour_steps import WHILE_RUNNING

    def pace() -> float:
        return SLOW if max(progress.index, progress.target) < WHILE_RUNNING else QUICK

    source = DemoSource(partial(demo_server, pace=pace), warn, find_tokenizer=find_tokenizer, prompts=())
    source.title, source.reason = "tour", "the tour needs no server"
    return source


def _say_what_is_next(note: Callable[[str], None], progress: Progress) -> None:
    from lmtool.terminal.tui.tour_steps import STEPS

    if progress.step is None:
        note("that was the tour; next:")
        for line in NEXT_STEPS:
            note(f"  {line}")
        return
    place = max(progress.index, progress.target)
    title = STEPS[min(place, len(STEPS) - 1)].title
    note(f"left at step {place + 1} of {len(STEPS)} ({title}); it goes on there by:  lmtool tour")
