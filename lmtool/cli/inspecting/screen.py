"""The inspector opened on what was chosen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.cli.inspecting.choosing import is_address

if TYPE_CHECKING:
    from lmtool.cli.inspecting.choosing import Chooser
    from lmtool.tui.options import InspectorOptions
    from lmtool.tui.sources.source import Source


async def open_inspector(chooser: Chooser, options: InspectorOptions) -> int:
    """Watch until the user quits; an exit status. Raises what choosing a source raises, before the screen is taken."""
    from lmtool.tui.app import run_inspector
    from lmtool.tui.lines import TraceFile
    from lmtool.tui.sources.file import FileSource

    targets = chooser.wanted.targets
    _colours_as_asked()
    if len(targets) == 2 and not any(is_address(target) for target in targets):
        with closing(TraceFile(targets[1])) as other:
            return await run_inspector(TraceFile(targets[0]), None, options, other)
    source = await chooser.choose()
    if isinstance(source, FileSource):
        asks = source.generate is not None
        return await run_inspector(source.file, source if asks else None, options)
    return await watch(source, options)


async def watch(source: Source, options: InspectorOptions) -> int:
    """Show a live source until the user quits, then close it; an exit status."""
    from lmtool.tui.app import run_inspector
    from lmtool.tui.lines import Spool

    return await run_inspector(Spool(), source, options)


@contextmanager
def logs_told(warn: Callable[[str], None]) -> Iterator[None]:
    """Tell what libraries log as warnings, instead of letting Python write it across the screen."""
    from lmtool.cli.serving.run import warnings_told
    from lmtool.cli.serving.status import Trouble

    with warnings_told(lambda event: warn(event.message) if isinstance(event, Trouble) else None, debug=False):
        yield


def need_screen(option: str) -> None:
    """Raise `UsageError` where there is no terminal to draw on."""
    from lmtool.cli.inspecting.headless import has_screen
    from lmtool.errors import UsageError

    if not has_screen():
        raise UsageError(f"{option} needs a terminal", "leave it out, or run it where stdin, stdout and stderr are one")


def default_options(record: Path | None = None, settings: str | None = None) -> InspectorOptions:
    """How the inspector looks when another command opens it: as settings say."""
    from lmtool.cli.settings import load
    from lmtool.tui.options import InspectorOptions

    return InspectorOptions(record=record, keys=load(settings).keys, color=not os.environ.get("NO_COLOR"))


def _colours_as_asked() -> None:
    """An empty NO_COLOR asks for nothing; Textual would take it for a wish."""
    if os.environ.get("NO_COLOR") == "":
        del os.environ["NO_COLOR"]
