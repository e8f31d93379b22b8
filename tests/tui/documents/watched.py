"""A view of the scripted conversation, for tests of what is said about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.tui.lines import Spool
from lmtool.tui.view import View
from tests.tui.scripted import conversation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.trace.events import Event
    from lmtool.tui.documents.document import Document
    from lmtool.tui.runs import Line


def view_of(events: Sequence[Event] | None = None) -> View:
    """A view that has seen these events."""
    spool = Spool()
    spool.feed(conversation() if events is None else events)
    return View(spool.state, spool)


def text(line: Line) -> str:
    """A line without styles."""
    return "".join(run.text for run in line)


def rows(document: Document, columns: int) -> list[str]:
    """All lines of a document."""
    return [text(document.line(y, columns)).rstrip() for y in range(document.height(columns))]


def close(view: View) -> None:
    """Let go of the spool behind a view."""
    assert isinstance(view.lines, Spool)
    view.lines.close()
