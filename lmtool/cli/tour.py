"""`lmtool tour`: an interactive tour of the inspector."""

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
"""Tokens per second of a stream: while the user pauses it; later, when the user waits for its end."""
NEXT_STEPS = (
    "lmtool chat             chat with the same model",
    "lmtool serve            keep a model loaded for other programs",
    "lmtool inspect          watch the traffic of all its clients",
    "lmtool docs inspector   what else the inspector can do",
)


async def tour(
    common: Common,
    *,
    restart: bool = option(False, "Start from the beginning."),
    theme: str | None = option(None, "Textual theme.", LOOK, metavar="NAME", shown_default="that of inspect"),
    ascii: bool = option(False, "Draw with ASCII only.", LOOK),  # noqa: A002 - as the option is called
) -> None:
    """Learn the inspector in two minutes: run, pause, look at tokens, branch, compare.

    Uses the included model in this process, without a server. q quits at any time; the next tour resumes there.
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
            "lmtool tour needs a terminal",
            "run it with stdin, stdout and stderr connected to one",
            "read instead:  lmtool docs inspector",
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
    """The included model in this process, at a readable speed."""
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
        note("tour completed; next:")
        for line in NEXT_STEPS:
            note(f"  {line}")
        return
    place = max(progress.index, progress.target)
    title = STEPS[min(place, len(STEPS) - 1)].title
    note(f"left at step {place + 1} of {len(STEPS)} ({title}); resume:  lmtool tour")
