"""Frames on the wire, one a line, linked to their tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError
from lmtool.core.logprobs.distribution import probability
from lmtool.core.logprobs.heat import STREAM_COLORS
from lmtool.core.logprobs.numbers import format_probability
from lmtool.terminal.tui.columns import ARROWS, OTHER, OUT
from lmtool.terminal.tui.documents.document import ViewDocument
from lmtool.terminal.tui.runs import Run, fitted, length, visible, width
from lmtool.terminal.tui.streams import parameters
from lmtool.trace.events import Close, Drop, Frame, Open, Piece, Remark, Request, Response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.styles import Glyphs
    from lmtool.terminal.tui.view import View
    from lmtool.trace.events import Event

LARGE = 20_000
"""Characters of a frame from which on its JSON is not read for one line."""
_ITEMS, _DEEPEST = 4, 3
"""Items of a list, and levels of nested values, that are shown."""


def tokens_line(view: View, frame: int, glyphs: Glyphs, columns: int) -> Line:
    """Tokens of a frame with probabilities, as far as they fit; and the streams that it ends."""
    state, line, used, before = view.state, list[Run](), 0, -1
    for row in state.tokens_of_frame(frame):
        stream, logprob = state.stream_of(row), state.tokens.logprob(row)
        part: Line = []
        if stream.index != before:
            part = [_label(stream, lead="  " if line else "")]
            before = stream.index
        part += [Run(" "), Run(view.measures.quote_token(row), view.style(row))]
        part.append(Run("" if logprob is None else f" {format_probability(probability(logprob))}", "dim"))
        if stream.ended == state.frames.times[frame] and row == stream.rows[-1]:
            part.append(Run(f" {glyphs.stop} {visible(stream.finish_reason or 'end')}", "ok"))
        line += part
        used += sum(width(run.text) for run in part)
        if used > columns:
            break
    return line


def request_line(view: View, word: str, streams: Sequence[Stream]) -> Line:
    """Summary of a request: its streams, the end of the prompt in quotes, and parameters."""
    first = streams[0]
    prompt = " ".join(view.state.prompt_text(first).split())
    most = "" if first.max_tokens is None else f" max {first.max_tokens}"
    words = parameters(first.payload, first.biased, first.constraint)
    line: Line = [Run(f"{word} ", "out")]
    for stream in streams[:_ITEMS]:
        line += [_label(stream, lead=""), Run(" ")]
    return [*line, Run(visible(repr(prompt))), Run(f" {visible(words) if words != '-' else ''}{most}", "dim")]


def _label(stream: Stream, *, lead: str) -> Run:
    return Run(f"{lead}{visible(stream.label)}", f"stream{stream.index % len(STREAM_COLORS)}")


def plain(text: str) -> str:
    """A frame's text without JSON's signs: its command, then `name value` for each member; other text as it is."""
    if len(text) > LARGE:
        return text
    lead, space, rest = text.partition(" ")
    if text.startswith("event: ") and "\ndata: " in text:  # a server-sent event, by its name
        lead, space, rest = text[7:].partition("\ndata: ")
        space = " "
    for before, payload in ((f"{lead}{space}", rest), ("", text)):
        try:
            value = json.loads(payload)
        except ValueError:
            continue
        if isinstance(value, dict | list):
            return f"{before}{_words(value, 0)}"
    return text


def _words(value: object, depth: int) -> str:
    if depth > _DEEPEST + 1 and isinstance(value, dict | list):
        return "(...)"
    if isinstance(value, dict):
        members = [f"{name} {_words(one, depth + 1)}" for name, one in value.items()]
        text = " · ".join(members) if depth < 1 else ", ".join(members)
        return text if depth < 1 else "(...)" if depth > _DEEPEST else f"({text})"
    if isinstance(value, list):
        if depth == 0 and len(value) == 1:
            return _words(value[0], 0)
        items = [_words(one, depth + 1) for one in value[:_ITEMS]]
        more = f" +{len(value) - _ITEMS}" if len(value) > _ITEMS else ""
        return "none" if not items else " ".join(items) + more
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


LONGEST = 500
"""Characters of a frame that are drawn on its line."""


class FramesDocument(ViewDocument):
    """Frames, newest last; the frame of the current token is marked."""

    def __init__(self, view: View, glyphs: Glyphs) -> None:
        super().__init__(view, glyphs)
        self._texts: dict[int, str] = {}
        self._requests: dict[int, list[Stream]] = {}
        """Streams by the frame of their request, of the first `_streams` streams."""
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
        """Summary of a frame: its tokens, its request, or its members."""
        if len(self._view.state.tokens_of_frame(frame)):
            return tokens_line(self._view, frame, self._glyphs, columns)
        if streams := self._requests_of(frame):
            return request_line(self._view, self.text(frame).partition(" ")[0], streams)
        style = {OUT: "out", OTHER: "dim"}.get(self._view.state.frames.directions[frame], "")
        return [Run(self.text(frame), style)]

    def _requests_of(self, frame: int) -> list[Stream]:
        """Streams whose request is in a frame."""
        streams = self._view.state.streams
        for stream in streams[self._streams :]:
            if stream.has_request:
                self._requests.setdefault(stream.frame, []).append(stream)
        self._streams = len(streams)
        return self._requests.get(frame, [])

    def text(self, frame: int) -> str:
        """Beginning of a frame in words, on one line, without control characters."""
        text = self._texts.get(frame)
        if text is None:
            if len(self._texts) > 512:
                self._texts.clear()
            text = self._texts[frame] = visible(plain(self.whole(frame))[:LONGEST])
        return text

    def whole(self, frame: int) -> str:
        """The complete frame as it was sent; it may contain control characters."""
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
