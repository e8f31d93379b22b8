"""The text of one stream in lines, each token in its colour."""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from lmtool.terminal.tui.documents.document import ViewDocument
from lmtool.terminal.tui.documents.list import broken
from lmtool.terminal.tui.documents.prompt_parts import prompt_parts
from lmtool.terminal.tui.runs import Run, cut, split, visible, width

if TYPE_CHECKING:
    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.state import State
    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.styles import Glyphs
    from lmtool.terminal.tui.view import View

RULE, WALL = "─", "│"
"""Before a turn's role; between a prompt, a thought and its answer."""
FILTERED = "·"
"""For each column of a token that the filter does not let through: what is left stays in its place."""
PROMPT, SEPARATOR, OWN = -1, -2, -3
"""Positions of parts that are no tokens."""
OWN_STYLE = "here"
LAYOUTS = 64
"""Streams whose lines are kept."""
LONGEST_FAILURE = 1000
"""Characters of a server's error that are shown."""
_WORDS = re.compile(r"\s*\S+|\s+")
"""Each with the blanks before it, as tokens are."""
WINDOW = 512
"""Tokens before the one in sight that are laid out at least, where not the whole stream is."""


class Part(NamedTuple):
    """A token, or a part of it, on a line."""

    position: int
    """Of the token in its stream; `PROMPT`, `SEPARATOR`, `OWN`."""
    text: str


class Layout:
    """Lines of parts. A token, or a prompt's word, that does not fit goes to the next line whole, if it fits there."""

    def __init__(
        self, state: State, stream: Stream, columns: int, *, blanks: bool = False, start: int = 0, own: str = ""
    ) -> None:
        """Begin with the prompt, or with the token at `start`. columns: at least 2. own: see `TextDocument`."""
        self._state = state
        self._stream = stream
        self.columns = max(2, columns)
        self.blanks = blanks
        self.own = own
        self.corrections = state.texts.corrections
        """Of the texts that are laid out; after another one they are no longer what tokens mean."""
        self.lines: list[list[Part]] = [[]]
        self.line_of: list[int] = []
        """For each token from `start` on the line that it begins on."""
        self.start = start
        self._used = 0
        self._sections = bisect_left(stream.sections, start, key=lambda one: one.position)
        """Sections of the stream that begin before what is laid out next."""
        if not start:
            self._put_prompt(own)

    @property
    def count(self) -> int:
        """Tokens of the stream up to the last one that is laid out."""
        return self.start + len(self.line_of)

    def line(self, position: int) -> int:
        """The line that a token begins on; the nearest one for a token that is not laid out."""
        if not self.line_of:
            return len(self.lines) - 1
        return self.line_of[min(max(0, position - self.start), len(self.line_of) - 1)]

    def first_at(self, line: int) -> int:
        """Position of the first token that begins on this line or below; `count` where there is none."""
        return self.start + bisect_left(self.line_of, max(0, line))

    def _put_prompt(self, own: str) -> None:
        """Each turn below a thin rule with its role; a prompt without turns up to a wall, the answer behind it."""
        parts = prompt_parts(self._state, self._stream)
        for part in parts:
            if part.role:
                self._rule(part.role)
            end = own if part is parts[-1] and part.text.endswith(own) else ""
            words = [(PROMPT, word) for word in _WORDS.findall(part.text.removesuffix(end)) or [""]]
            for position, word in (*words, *((OWN, word) for word in _WORDS.findall(end))):
                self._put(position, word.lstrip(" ") if self._begin(word) else word)
        if parts and parts[-1].text:
            if parts[-1].role:
                self._rule("continued")
            else:
                self._piece(SEPARATOR, WALL)

    def _rule(self, word: str) -> None:
        if self.lines[-1]:
            self._break()
        text = cut(f"{RULE} {word} ", self.columns)
        self._piece(SEPARATOR, text + RULE * (self.columns - width(text)))
        self._break()

    def extend(self, count: int) -> None:
        """Lay out the first `count` tokens."""
        texts, ids = self._state.texts, self._state.tokens.ids
        while self.count < count:
            position = self.count
            sections = self._stream.sections
            if self._sections < len(sections) and sections[self._sections].position == position:
                if self._put_section(position):
                    continue
            elif position and self._thoughts_end(position):
                self._piece(SEPARATOR, WALL)
            text = texts.text_at(self._stream, position) or texts.special_name(ids[self._stream.rows[position]])
            self._begin(text)
            self.line_of.append(len(self.lines) - 1)
            self._put(position, text)

    def _put_section(self, position: int) -> bool:
        """Put the rule of the next section; whether the token stands in it, as the name of a tool does."""
        section = self._stream.sections[self._sections]
        self._sections += 1
        if section.is_named:
            self._named_rule(position, section.name)
        elif section.call is None:
            self._rule(section.name)
        else:
            self._rule(" ".join(filter(None, ("tool", section.name, "goes on" if section.again else ""))))
        return section.is_named

    def _named_rule(self, position: int, tool: str) -> None:
        """A rule that a token stands in: the name of a tool."""
        if self.lines[-1]:
            self._break()
        self.line_of.append(len(self.lines) - 1)
        self._piece(SEPARATOR, f"{RULE} tool ")
        self._piece(position, visible(tool, blanks=self.blanks))
        if (left := self.columns - self._used) > 1:
            self._piece(SEPARATOR, f" {RULE * (left - 1)}")
        self._break()

    def _thoughts_end(self, position: int) -> bool:
        """Whether a token is the first of an answer behind a thought."""
        stream, rows = self._stream, self._stream.rows
        return stream.is_thought(rows[position - 1]) and not stream.is_thought(rows[position])

    def _begin(self, text: str) -> bool:
        """Go to the next line, and say so, where a text does not fit into this one and is no wider than a line."""
        first = width(visible(text.partition("\n")[0], blanks=self.blanks))
        full = bool(self._used) and self.columns - self._used < first <= self.columns
        if full:
            self._break()
        return full

    def _put(self, position: int, text: str) -> None:
        if not text:
            self.lines[-1].append(Part(position, ""))
        pieces = text.split("\n")
        for i, piece in enumerate(pieces):
            shown = visible(piece, blanks=self.blanks)
            if i < len(pieces) - 1 and (self.blanks or not shown):
                shown += "⏎" if self.blanks else ""
            self._piece(position, shown)
            if i < len(pieces) - 1:
                self._break()

    def _piece(self, position: int, text: str) -> None:
        while text:
            left = self.columns - self._used
            part, text = split(text, left) if width(text) > left else (text, "")
            if part:
                self.lines[-1].append(Part(position, part))
                self._used += width(part)
            if text:
                self._break()

    def _break(self) -> None:
        self.lines.append([])
        self._used = 0


class TextDocument(ViewDocument):
    """The stream under the cursor: prompt, then tokens; the cursor's token stands between signs and needs no colour."""

    def __init__(self, view: View, glyphs: Glyphs, *, alone: bool = True, whole: bool = True, own: str = "") -> None:
        """Show the view's streams.

        alone: False leaves out the cursor and the filter. whole: False lays out what is around the cursor, or the end.
        own: text at the end of a prompt that is not of the prompt, as the token that a branch begins with.
        """
        super().__init__(view, glyphs)
        self._own = own
        self._alone = alone
        self._whole = whole
        self._layouts: dict[int, Layout] = {}

    def height(self, columns: int) -> int:
        """Lines of text."""
        stream = self._view.current
        return 1 if stream is None else self.lines(stream, columns)

    def lines(self, stream: Stream, columns: int) -> int:
        """Lines of a stream's text up to the moment."""
        layout, count = self._layout(stream, columns)
        if count < layout.count:
            return layout.line(count) + 1
        return len(layout.lines) + len(self._ending(stream, columns))

    def _ending(self, stream: Stream, columns: int) -> list[Line]:
        """Lines behind the text of a stream that has ended: why it failed, and what the server counted."""
        if stream.ended is None or stream.ended > self._view.time:
            return []
        phrases = [Run(visible(stream.failure or "")[:LONGEST_FAILURE], "error")]
        phrases += [Run(f"usage: {stream.usage}", "dim")] if stream.usage is not None else []
        return [line for run in phrases if run.text for line in broken([run], max(2, columns - 2))]

    def _layout(self, stream: Stream, columns: int) -> tuple[Layout, int]:
        # Two columns less: the signs around the cursor's token.
        room, blanks = max(2, columns - 2), self._view.show_blanks
        layout, count = self._layouts.get(stream.index), stream.count(self._view.token_count)
        own = self._own or self._view.branch_tokens.get(stream.label, "")
        shape, place = (room, blanks, own, self._view.state.texts.corrections), self._place(stream, count)
        if (
            layout is None
            or (layout.columns, layout.blanks, layout.own, layout.corrections) != shape
            or self._far(layout, place)
        ):
            if len(self._layouts) > LAYOUTS:
                self._layouts.clear()
            start = 0 if self._whole else max(0, place - WINDOW) // WINDOW * WINDOW
            layout = self._layouts[stream.index] = Layout(
                self._view.state, stream, room, blanks=blanks, start=start, own=own
            )
        layout.extend(count if self._whole else min(count, place + WINDOW))
        return layout, count

    def _place(self, stream: Stream, count: int) -> int:
        """Position of the token that must be in sight."""
        row = self._view.row
        if row is not None and self._view.stream == stream.index:
            return bisect_left(stream.rows, row)
        return 0 if self._view.begins(stream) else count

    def _far(self, layout: Layout, place: int) -> bool:
        """Whether a token is before what is laid out, or so far behind it that beginning anew is quicker."""
        if self._whole:
            return False
        return layout.start > max(0, place - WINDOW // 2) or place - layout.count > 2 * WINDOW

    def anchor(self, columns: int) -> int | None:
        """The line of the cursor's token, or the last one."""
        stream = self._view.current
        return None if stream is None else self.anchor_of(stream, columns)

    def anchor_of(self, stream: Stream, columns: int) -> int:
        """The same for any stream."""
        layout, _ = self._layout(stream, columns)
        row = self._view.row
        if row is None or self._view.stream != stream.index:
            return 0 if self._view.begins(stream) else self.lines(stream, columns) - 1
        return layout.line(bisect_left(stream.rows, row))

    def line_at(self, stream: Stream, position: int, columns: int) -> int:
        """The line on which a token of any stream begins."""
        layout, _ = self._layout(stream, columns)
        return layout.line(position)

    def move(self, rows: int) -> None:
        """The cursor to the token this many lines down."""
        stream = self._view.current
        row = self._view.token
        if stream is None or row is None:
            return
        layout = self._layouts.get(stream.index)
        if layout is None:
            return
        place = bisect_left(stream.rows, row)
        there = layout.line(place) + rows
        if there >= len(layout.lines):
            self._view.end()
            return
        position = layout.first_at(there)
        if position < stream.count(self._view.token_count):
            self._view.choose_token(stream.rows[position])
        else:
            self._view.end()

    def line(self, y: int, columns: int) -> Line:
        """A line of text."""
        stream = self._view.current
        return [Run(" no stream yet", "dim")] if stream is None else self.line_of(stream, y, columns)

    def line_of(self, stream: Stream, y: int, columns: int) -> Line:
        """A line of any stream's text."""
        layout, count = self._layout(stream, columns)
        if y >= len(layout.lines):
            ending = self._ending(stream, columns) if count >= layout.count else []
            return ending[y - len(layout.lines)] if y - len(layout.lines) < len(ending) else []
        view, glyphs = self._view, self._glyphs
        here = view.token if self._alone and view.stream == stream.index else None
        line: Line = []
        for position, text in layout.lines[y]:
            if position < 0:
                line.append(Run(text, {PROMPT: "dim", OWN: OWN_STYLE}.get(position, "rule")))
            elif position < count:
                row = stream.rows[position]
                if row == here:
                    line.append(Run(f"{glyphs.open}{text}{glyphs.close}", f"{view.style(row)} here", row))
                elif self._alone and not view.passes(row):
                    line.append(Run(FILTERED * width(text), "dim", row))
                else:
                    line.append(Run(text, view.style(row), row))
        return line
