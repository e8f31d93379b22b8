"""Text of streams, each token in its colour: one stream, or several side by side in a grid."""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from lmtool.core.logprobs.heat import STREAM_COLORS
from lmtool.inference.text.prompts import split_turns
from lmtool.terminal.tui.documents.document import ViewDocument, broken
from lmtool.terminal.tui.runs import Run, cut, length, split, visible, width

if TYPE_CHECKING:
    from lmtool.inference.text.prompts import PromptTurn
    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.state import State
    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.styles import Glyphs
    from lmtool.terminal.tui.view import View


def prompt_parts(state: State, stream: Stream) -> list[PromptTurn]:
    """Turns at the end of a stream's prompt, as far as it is kept; special tokens appear by name."""
    if stream.nodes is not None or isinstance(stream.prompt, str):
        return split_turns(state.prompt_text(stream).replace("\x00", "\ufffd"))
    data = bytearray()
    for token in (*stream.prompt, *stream.generated):
        name = state.texts.special_name(token)
        piece = state.texts.piece(token)
        data += f"\x00{name}\x00".encode() if name else piece if isinstance(piece, bytes) else piece.encode()
    return split_turns(data.decode(errors="replace"))


RULE, WALL = "─", "│"
"""Before a turn's role; between a prompt, a thought and its answer."""
FILTERED = "·"
"""Placeholder for each column of a filtered token, so that other tokens keep their places."""
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
"""Tokens before the visible one in a partial layout, at least."""


class Part(NamedTuple):
    """A token, or a part of it, on a line."""

    position: int
    """Position of the token in its stream, or `PROMPT`, `SEPARATOR`, `OWN`."""
    text: str


class Layout:
    """Lines of parts. A token or word that does not fit moves to the next line if it fits there."""

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
        """`Texts.corrections` of this layout; a later value makes it outdated."""
        self.lines: list[list[Part]] = [[]]
        self.line_of: list[int] = []
        """For each token from `start`, the line that it begins on."""
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
        """Position of the first token that begins on this line or below; `count` if there is none."""
        return self.start + bisect_left(self.line_of, max(0, line))

    def _put_prompt(self, own: str) -> None:
        """Put each turn below a rule with its role; a prompt without turns is separated from the answer by a wall."""
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
        """Put the rule of the next section; True if it contains the token, such as the name of a tool."""
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
        """Put a rule that contains a token: the name of a tool."""
        if self.lines[-1]:
            self._break()
        self.line_of.append(len(self.lines) - 1)
        self._piece(SEPARATOR, f"{RULE} tool ")
        self._piece(position, visible(tool, blanks=self.blanks))
        if (left := self.columns - self._used) > 1:
            self._piece(SEPARATOR, f" {RULE * (left - 1)}")
        self._break()

    def _thoughts_end(self, position: int) -> bool:
        """True if a token is the first one of the answer after a thought."""
        stream, rows = self._stream, self._stream.rows
        return stream.is_thought(rows[position - 1]) and not stream.is_thought(rows[position])

    def _begin(self, text: str) -> bool:
        """Break the line if a text does not fit into it but into a whole one; True if broken."""
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
            part = visible(piece, blanks=self.blanks)
            if i < len(pieces) - 1 and (self.blanks or not part):
                part += "⏎" if self.blanks else ""
            self._piece(position, part)
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
    """Text of the current stream: prompt, then tokens; the token under the cursor is between signs."""

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
        """Lines after the text of an ended stream: error and usage."""
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
        """True if a token is before the layout, or so far after it that a new layout is faster."""
        if self._whole:
            return False
        return layout.start > max(0, place - WINDOW // 2) or place - layout.count > 2 * WINDOW

    def anchor(self, columns: int) -> int | None:
        """The line of the cursor's token, or the last one."""
        stream = self._view.current
        return None if stream is None else self.anchor_of(stream, columns)

    def anchor_of(self, stream: Stream, columns: int) -> int:
        """The line of the cursor's token in any stream, or its last line."""
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


NARROWEST, LOWEST = 26, 6
"""Columns and rows of a stream at least, its heading included."""
PLEASANT = 50
"""Columns in which text is read well."""


class Grid(NamedTuple):
    """Number of streams per row, and of rows."""

    across: int
    down: int


def grid(streams: int, columns: int, rows: int) -> Grid:
    """The grid that shows the most of the streams, then leaves the fewest cells empty, then reads best."""

    def merit(one: Grid) -> tuple[int, int, int]:
        cells = one.across * one.down
        return min(streams, cells), min(streams, cells) - cells, -abs(columns // one.across - PLEASANT)

    most = max(1, columns // NARROWEST)
    down = max(1, rows // LOWEST)
    shapes = [Grid(i, min(down, max(1, -(-streams // i)))) for i in range(1, min(most, max(1, streams)) + 1)]
    return max(shapes, key=merit)


class SplitDocument(ViewDocument):
    """As many streams as fit, each scrolled to its end or to the cursor."""

    def __init__(self, view: View, glyphs: Glyphs, rows: int = 10) -> None:
        super().__init__(view, glyphs)
        self.rows = rows
        self._text = TextDocument(view, glyphs, whole=False)
        self._shown: list[Stream] = []
        self._shape = Grid(1, 1)
        self._begins: list[int] = []
        """For each stream, first visible line of its text."""
        self._heights: list[int] = []
        """Lines of the text of each."""
        self._columns = 0

    def streams(self, columns: int) -> list[Stream]:
        """Visible streams: marked ones, the current one, then the latest."""
        listed = {stream.index: stream for stream in self._view.streams()}
        if self._view.followed_stream is not None:
            listed = {i: stream for i, stream in listed.items() if i == self._view.followed_stream}
        shape = grid(len(listed), columns, self.rows)
        first = [*self._view.stream_marks, self._view.stream, *reversed(listed)]
        streams = [listed[i] for i in dict.fromkeys(first) if i in listed][: shape.across * shape.down]
        return sorted(streams, key=lambda stream: stream.index)

    def height(self, columns: int) -> int:
        """Number of rows of the pane. Chooses the visible streams for `line`."""
        self._columns, self._shown = columns, self.streams(columns)
        self._shape = grid(len(self._shown), columns, self.rows)
        self._heights = [self._text.lines(stream, self._room(i)[0]) for i, stream in enumerate(self._shown)]
        self._begins = [self._begin(i, *self._room(i)) for i in range(len(self._shown))]
        return max(2, self.rows)

    def _room(self, place: int) -> tuple[int, int]:
        """Columns and rows of a stream's text by its place in the grid; the last ones take the remainder."""
        (across, down), rows = self._shape, max(2, self.rows)
        each, high = self._columns // across, rows // down
        columns = each - 1 if place % across < across - 1 else self._columns - each * (across - 1)
        last = place // across == down - 1
        return columns, (rows - high * (down - 1) if last else high) - 1

    def _begin(self, place: int, columns: int, rows: int) -> int:
        """First visible line: for the end, the beginning of a recording, or around the cursor."""
        stream, last = self._shown[place], self._heights[place] - 1
        if self._view.row is None or stream.index != self._view.stream:
            return 0 if self._view.begins(stream) else max(0, last - rows + 1)
        return max(0, min(last - rows + 1, self._text.anchor_of(stream, columns) - rows // 2))

    def text_rows(self, columns: int, most: int) -> int:
        """Lines that all text of the streams takes, at most this many."""
        listed = len(self._view.streams())
        if not listed:
            return 1
        shape, shown = grid(listed, columns, most), self.streams(columns)
        each, last = columns // shape.across, shape.across - 1
        rooms = [each - 1 if i % shape.across < last else columns - each * last for i in range(len(shown))]
        # The widths that are drawn: lines of another width would be laid out anew each time.
        heights = [1 + self._text.lines(stream, room) for stream, room in zip(shown, rooms, strict=True)]
        bands = [heights[i : i + shape.across] for i in range(0, len(heights), shape.across)]
        return min(most, sum(map(max, bands)))

    def move(self, rows: int) -> None:
        """The cursor to the token this many lines down in its stream; by more than there are to its first or last."""
        stream = self._view.current
        if stream is None:
            return
        if rows <= -stream.count(self._view.token_count):
            self._view.move_token(rows)
        else:
            self._text.move(rows)

    def line(self, y: int, columns: int) -> Line:
        """A line of each stream of a band of the grid."""
        if columns != self._columns:
            self.height(columns)
        if not self._shown:
            nothing = " no stream yet" if self._view.filter is None else " no stream for this filter"
            return [Run(nothing, "dim")] if y == 0 else []
        across, down = self._shape
        high = max(2, self.rows) // down
        band = min(y // high, down - 1)
        y -= band * high
        line: Line = []
        for place in range(band * across, min((band + 1) * across, len(self._shown))):
            stream, (room, rows) = self._shown[place], self._room(place)
            part = self._heading(stream, room) if y == 0 else self._part(place, y - 1, room, rows)
            wall = self._glyphs.wall if place % across < across - 1 else ""
            line += [*part, Run(" " * max(0, room - length(part))), Run(wall, "rule")]
        return line

    def _heading(self, stream: Stream, columns: int) -> Line:
        count = stream.count(self._view.token_count)
        here = self._glyphs.cursor if stream.index == self._view.stream else " "
        color = f"stream{stream.index % len(STREAM_COLORS)}"
        phase = stream.phase(self._view.time, self._view.token_count)
        name = Run(cut(f"{here}{visible(stream.label)}", columns), f"title {color}")
        unit = "piece" if count and self._view.state.is_piece(stream.rows[0]) else "token"
        word = "tool calls" if phase == "stop" and stream.finish_reason == "tool_calls" else phase
        text = cut(f" {count} {unit}{'s' * (count != 1)} {self._glyphs.between} {word} ", columns - length([name]))
        rule = self._glyphs.rule * max(0, columns - length([name]) - len(text))
        return [name, Run(text, "dim"), Run(rule, "rule")]

    def _part(self, place: int, y: int, columns: int, rows: int) -> Line:
        y += self._begins[place]
        if y >= min(self._begins[place] + rows, self._heights[place]):
            return []
        return self._text.line_of(self._shown[place], y, columns)
