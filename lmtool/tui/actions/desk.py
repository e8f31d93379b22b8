"""What every action works with: the view, the source, the looks, and a way to say something."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from textual.app import App

from lmtool.tui.screens.reading import ReadingScreen

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.errors import LmtoolError
    from lmtool.tui.branches import Branches
    from lmtool.tui.documents.bars import Status
    from lmtool.tui.documents.document import Document
    from lmtool.tui.glyphs import Glyphs
    from lmtool.tui.keys import Keys
    from lmtool.tui.lines import Spool, TraceFile
    from lmtool.tui.options import InspectorOptions
    from lmtool.tui.screens.main import MainScreen
    from lmtool.tui.sources.source import Source
    from lmtool.tui.styles import Styles
    from lmtool.tui.view import View

MESSAGE = 6.0
"""Seconds that a message stays."""


class Desk(App[int]):
    """The app as actions see it; `InspectorApp` sets all of this."""

    view: View
    lines: Spool | TraceFile
    source: Source | None
    other: TraceFile | None
    """A second trace to compare with."""
    options: InspectorOptions
    keys: Keys
    glyphs: Glyphs
    looks: Styles
    main: MainScreen
    """The panes."""
    branches: Branches
    prompts: list[str]
    """What was typed at the prompt line, the latest last."""
    wanted: str | None
    """Label of a stream that the cursor goes to as soon as it begins."""
    status: Status
    """What the header says of the source."""
    failure: Exception | None
    """What ended the app before its user did."""
    message: tuple[str, bool, float] | None
    """What is said below the panes, whether it is a warning, until when by the monotonic clock."""
    is_changed: bool
    """Whether everything is to be drawn with the next frame."""

    def changed(self) -> None:
        """Draw everything with the next frame."""
        self.is_changed = True

    def say(self, text: str, *, warning: bool = False, stays: bool = False) -> None:
        """Tell the user something below the panes for a few seconds. stays: until a key is pressed."""
        self.message = (text, warning, math.inf if stays else time.monotonic() + MESSAGE + len(text) / 40)
        self.changed()

    def say_error(self, error: LmtoolError, *, stays: bool = False) -> None:
        """Tell what went wrong and what to do next."""
        self.say(" · ".join([error.message, *error.hints]), warning=True, stays=stays)

    def restyle(self) -> None:
        """Look as the theme and the palette say."""
        self.looks.change(
            self.get_css_variables(),
            self.view.palette,
            color=not self.no_color,
            dark=self.current_theme.dark,
            sixteen=self.console.color_system == "standard" and not self.is_headless,
        )
        self.changed()

    def read(self, title: str, document: Document, chosen: Callable[[int], None] | None = None) -> None:
        """Open a document over the panes. chosen: is told the target of the line that enter was pressed on."""

        def closed(target: int | None) -> None:
            if target is not None and chosen is not None:
                chosen(target)
            self.changed()

        self.push_screen(ReadingScreen(title, document, self.looks, self.glyphs, chooses=chosen is not None), closed)
