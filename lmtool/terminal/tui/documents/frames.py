"""What went over the wires, one line a frame, linked to the tokens in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError
from lmtool.terminal.tui.columns import ARROWS, OTHER, OUT
from lmtool.terminal.tui.documents.document import ViewDocument
from lmtool.terminal.tui.documents.frame_summary import plain, request_line, tokens_line
from lmtool.terminal.tui.runs import Run, fitted, length, visible
from lmtool.trace.events import Close, Drop, Frame, Open, Piece, Remark, Request, Response

if TYPE_CHECKING:
    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.styles import Glyphs
    from lmtool.terminal.tui.view import View
    from lmtool.trace.events import Event

LONGEST = 500
"""Characters of a frame that are drawn on its line."""


class FramesDocument(ViewDocument):
    """Newest last; the frame of the token under the cursor is marked."""

    def __init__(self, view: View, glyphs: Glyphs) -> None:
        super().__init__(view, glyphs)
        self._texts: dict[int, str] = {}
        self._requests: dict[int, list[Stream]] = {}
        """Streams by the frame of their request, as far as they were looked at."""
        self._streams = 0

    def height(self, columns: int) -> int:  # noqa: ARG002 - no line is broken
        """Frames up to the moment."""
        return max(1, self._view.state.frames.until(self._view.time))

    def anchor(self, columns: int) -> int | None:
        """The frame under the cursor, or the last one."""
        if self._view.frame is None and self._view.row is None:
            return self.height(columns) - 1
        return self._view.current_frame

    def click(self, target: int) -> None:
        """Put the cursor on this frame and its first token."""
        self._view.choose_frame(target)

    def move(self, rows: int) -> None:
        """The cursor down."""
        self._view.move_frame(rows)

    def line(self, y: int, columns: int) -> Line:
        """One frame."""
        frames = self._view.state.frames
        if y >= frames.until(self._view.time):
            return [Run(" nothing went over the wire yet", "dim")] if y == 0 else []
        here = y == self._view.current_frame
        direction = frames.directions[y]
        lead: Line = [
            Run(self._glyphs.cursor if here else " ", "accent", y),
            Run(f"{frames.times[y]:8.3f} {frames.connections[y]:>2} ", "dim", y),
            Run(f"{ARROWS[direction] if self._glyphs.line != '-' or direction != OTHER else '.'} ", "accent", y),
        ]
        parts = self._parts(y, columns - length(lead))
        if here:  # what has a ground of its own keeps it
            parts = [run if "heat" in run.style else run._replace(style=f"{run.style} cursor") for run in parts]
        return fitted([*lead, *(run._replace(target=y) for run in parts)], columns)

    def _parts(self, frame: int, columns: int) -> Line:
        """What a frame says: tokens, a request, or its members."""
        if len(self._view.state.tokens_of_frame(frame)):
            return tokens_line(self._view, frame, self._glyphs, columns)
        if streams := self._requests_of(frame):
            return request_line(self._view, self.text(frame).partition(" ")[0], streams)
        style = {OUT: "out", OTHER: "dim"}.get(self._view.state.frames.directions[frame], "")
        return [Run(self.text(frame), style)]

    def _requests_of(self, frame: int) -> list[Stream]:
        """The streams that began with a frame; none over a wire that named the request before it."""
        streams = self._view.state.streams
        for stream in streams[self._streams :]:
            if stream.has_request:
                self._requests.setdefault(stream.frame, []).append(stream)
        self._streams = len(streams)
        return self._requests.get(frame, [])

    def text(self, frame: int) -> str:
        """The beginning of a frame in words, on one line and harmless."""
        text = self._texts.get(frame)
        if text is None:
            if len(self._texts) > 512:
                self._texts.clear()
            text = self._texts[frame] = visible(plain(self.whole(frame))[:LONGEST])
        return text

    def whole(self, frame: int) -> str:
        """All of a frame, as it was sent; not harmless for a terminal."""
        try:
            return text_of(self._view.lines.event(frame))
        except LmtoolError as error:
            return error.message


def text_of(event: Event) -> str:
    """An event as text."""
    if isinstance(event, Frame | Piece):
        wire = event.wire()
        return (wire if isinstance(wire, str) else wire.decode(errors="replace")).strip()
    if isinstance(event, Request):
        return f"{event.method} {event.path} {event.wire_body().decode(errors='replace')}"
    if isinstance(event, Response):
        return f"{event.status} {event.reason} {event.headers.get('content-type', '')}"
    if isinstance(event, Open):
        return f"connection opened {json.dumps(dict(event.facts), ensure_ascii=False)}"
    if isinstance(event, Close):
        return f"connection closed by {event.by} {event.code or ''} {event.reason}"
    if isinstance(event, Drop):
        return f"connection lost {json.dumps(dict(event.facts), ensure_ascii=False)}"
    return f"{event.kind}: {event.text}" if isinstance(event, Remark) else type(event).__name__.lower()


def indented(text: str) -> str:
    """A frame's JSON with line breaks, for people; anything else as it is."""
    command, space, rest = text.partition(" ")
    for lead, payload in ((f"{command}{space}", rest), ("", text)):
        try:
            return f"{lead}{json.dumps(json.loads(payload), indent=2, ensure_ascii=False)}"
        except ValueError:
            continue
    return text
