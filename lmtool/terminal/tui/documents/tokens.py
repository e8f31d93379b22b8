"""Tokens one a line, as a table of figures, and one token in detail."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

from lmtool.core.logprobs import numbers
from lmtool.core.logprobs.distribution import bits, probabilities, probability
from lmtool.core.logprobs.heat import STREAM_COLORS
from lmtool.core.logprobs.numbers import format_probability
from lmtool.terminal.tui.documents.document import ViewDocument, broken
from lmtool.terminal.tui.runs import Run, fitted, flow, pad, visible, width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.styles import Glyphs
    from lmtool.terminal.tui.view import View

ROOMY = 44
"""Columns from which each token's figure is shown."""
WIDE = 96
"""Columns from which on the table has entropy and margin."""
_UNITS = {"surprisal": "b", "entropy": "b", "gap": "ms"}


class InterleavedDocument(ViewDocument):
    """Time, stream, token; a frame with several tokens shows its time once."""

    def height(self, columns: int) -> int:  # noqa: ARG002 - no line is broken
        """Number of visible tokens, at least 1 for a message."""
        return max(1, len(self._view.token_rows()))

    def anchor(self, columns: int) -> int | None:
        """The cursor's token, or the last one."""
        rows = self._view.token_rows()
        if self._view.row is None:
            return self.height(columns) - 1
        return min(bisect_left(rows, self._view.row), max(0, len(rows) - 1))

    def move(self, rows: int) -> None:
        """The cursor down."""
        self._view.move_row(rows)

    def line(self, y: int, columns: int) -> Line:
        """One token."""
        view, glyphs = self._view, self._glyphs
        rows = view.token_rows()
        if y >= len(rows):
            nothing = " no token yet" if view.filter is None else " no token for this filter"
            return [Run(nothing, "dim")] if y == 0 else []
        row = rows[y]
        tokens, frames, stream = view.state.tokens, view.state.frames, view.state.stream_of(row)
        frame = tokens.frames[row]
        same = y > 0 and tokens.frames[rows[y - 1]] == frame
        here = row == view.token
        time = " " * 9 if same else f"{frames.times[frame]:9.3f}"
        text = visible(view.state.texts.of_row(row), blanks=view.show_blanks)
        color = f"stream{stream.index % len(STREAM_COLORS)}"
        line: Line = [
            Run(time, "dim", row),
            Run(f" {pad(visible(stream.label), 7)} ", color, row),
            Run(f"{pad(self._figure(row), 7, right=True)} " if columns >= ROOMY else "", "dim", row),
            Run(glyphs.cursor if here else glyphs.bar, "accent" if here else "dim", row),
            Run(text or " ", f"{view.style(row)} {'here' if here else ''}", row),
        ]
        return fitted(line, columns)

    def _figure(self, row: int) -> str:
        view = self._view
        value = view.measures.heat(row, view.heat)
        if value is None:
            return ""
        if view.heat == "prob":
            return numbers.format_probability(value)
        if view.heat == "rank":
            return str(view.measures.rank(row))
        return f"{numbers.figure(value)}{_UNITS[view.heat]}"


class TableDocument(ViewDocument):
    """Number, id, token, probability, bits, rank, alternatives; one line per token after a heading."""

    heads = 1

    def height(self, columns: int) -> int:  # noqa: ARG002 - no line is broken
        """Tokens and a heading."""
        return 1 + len(self._rows())

    def _rows(self) -> Sequence[int]:
        stream = self._view.current
        return () if stream is None else self._view.rows_of(stream)

    def anchor(self, columns: int) -> int | None:  # noqa: ARG002 - no line is broken
        """The cursor's token."""
        row, rows = self._view.row, self._rows()
        return len(rows) if row is None else min(len(rows), 1 + bisect_left(rows, row))

    def move(self, rows: int) -> None:
        """The cursor down."""
        self._view.move_token(rows)

    def line(self, y: int, columns: int) -> Line:
        """A heading or a token."""
        if y == 0:
            words = (pad("#", 5, right=True), pad("id", 7, right=True), pad("token", 14))
            more = " entropy margin" if columns >= WIDE else ""
            return fitted([Run(f" {' '.join(words)}     p   bits{more} rank  alternatives", "title")], columns)
        rows = self._rows()
        return self._token(rows[y - 1], columns) if y <= len(rows) else []

    def _token(self, row: int, columns: int) -> Line:
        view, position = self._view, self._view.position(row)
        token, logprob, rank = view.state.tokens.ids[row], view.state.tokens.logprob(row), view.measures.rank(row)
        here = "cursor" if row == view.token else ""
        p = "" if logprob is None else numbers.format_probability(probability(logprob))
        surprisal = "" if logprob is None else numbers.figure(bits(logprob))
        text = visible(view.state.texts.quote_row(row), blanks=view.show_blanks)
        lead, number = self._glyphs.cursor if here else " ", pad(str(token) if token >= 0 else "", 7, right=True)
        more = f" {self._entropy(row)} {self._margin(row)}" if columns >= WIDE else ""
        figures = f"{pad(p, 5, right=True)} {pad(surprisal, 6, right=True)}{more} {pad(str(rank or ''), 4, right=True)}"
        return fitted(
            [
                Run(f"{lead}{position:5} {number} ", here, row),
                Run(pad(text, 14), f"{view.style(row)} {'here' if here else ''}", row),
                Run(f" {figures}  ", here, row),
                Run(view.measures.alternatives_text(row, 12), f"dim {here}", row),
            ],
            columns,
        )

    def _entropy(self, row: int) -> str:
        """A number, or both bounds."""
        bounds = self._view.measures.entropy(row)
        if bounds is None:
            return " " * 7
        low, high = (numbers.figure(bound) for bound in bounds)
        return pad(low if low == high else f"{low}…{high}", 7, right=True)

    def _margin(self, row: int) -> str:
        margin = self._view.measures.margin(row)
        return pad("" if margin is None else numbers.format_probability(margin), 6, right=True)


BYTES = 12
"""Bytes of a token that are shown."""


class DetailDocument(ViewDocument):
    """Figures, a bar for each alternative, and the rest; a click on a bar chooses it."""

    def __init__(self, view: View, glyphs: Glyphs) -> None:
        super().__init__(view, glyphs)
        self._lines: list[Line] = []
        self._bars_at = 0

    def height(self, columns: int) -> int:
        """Lines there are now, made here for `line`."""
        row = self._view.token
        if row is None:
            self._lines = [*self._request(columns), [Run("no token yet", "dim")]]
            return len(self._lines)
        facts = self._facts(row, columns)
        self._bars_at = len(facts)
        lines = [*facts, *self._bars(row, columns), *self._arrival(row, columns), *self._request(columns)]
        self._lines = [fitted(line, columns) for line in lines]
        return len(self._lines)

    def anchor(self, columns: int) -> int | None:  # noqa: ARG002 - lines were broken by `height`
        """The bar under the cursor."""
        return self._bars_at + self._view.bar if self._view.bar else 0

    def click(self, target: int) -> None:
        """Choose this bar."""
        self._view.bar = target

    def move(self, rows: int) -> None:
        """Move to another bar."""
        self._view.move_bar(rows)

    def _facts(self, row: int, columns: int) -> list[Line]:
        view = self._view
        token, logprob = view.state.tokens.ids[row], view.state.tokens.logprob(row)
        lines = flow(
            [
                Run(view.measures.quote_token(row), f"{view.style(row)} bold"),
                Run(f"id {token}" if token >= 0 else "no id", "dim"),
                Run("thought" if view.state.is_thought(row) else "", "thought"),
                Run(_bytes(view.state.texts.spelling(token)), "dim"),
            ],
            columns,
        )
        if isinstance(view.state.texts.piece(token), bytes):
            lines.append(self._pieces(row))
        if logprob is None:
            return [*lines, [Run(self._no_logprob(row), "dim")]]
        rank, mode = view.measures.rank(row), view.state.stream_of(row).logprobs_mode
        phrases = [
            Run(f"p {format_probability(probability(logprob))}"),
            Run(f"logprob {logprob:.3f}{'' if mode is None else f' {mode}'}"),
            Run(f"{bits(logprob):.2f} bits"),
            Run("" if rank is None else f"rank {rank}"),
        ]
        return [*lines, *flow(phrases, columns), *self._entropy(row, columns)]

    def _no_logprob(self, row: int) -> str:
        if self._view.state.texts.is_piece(self._view.state.tokens.ids[row]):
            return "a piece of text: its tokens were not named"
        first = self._view.position(row) == 0 and self._view.state.stream_of(row).kind == "SCORE"
        return "no logprob: nothing stands before it" if first else "no logprob was sent"

    def _pieces(self, row: int) -> Line:
        """The tokens of the character that a token is part of."""
        state = self._view.state
        stream = state.stream_of(row)
        place = bisect_left(stream.rows, row)
        end = place
        while end < len(stream.rows) - 1 and not state.texts.text_at(stream, end) and end - place < 4:
            end += 1
        begin = place
        while begin > 0 and not state.texts.text_at(stream, begin - 1) and place - begin < 4:
            begin -= 1
        parts = " ".join(state.texts.of_id(state.tokens.ids[stream.rows[i]]) for i in range(begin, end + 1))
        return [Run(f"{parts} {self._glyphs.arrow} {visible(state.texts.text_at(stream, end)) or 'not whole yet'}")]

    def _entropy(self, row: int, columns: int) -> list[Line]:
        view = self._view
        distribution, bounds = view.measures.distribution(row), view.measures.entropy(row)
        if not distribution.is_normalised:
            return [[Run("not normalised by the server", "error")]]
        if bounds is None or distribution.mass is None or not distribution.top:
            return []
        low, high = bounds
        text = f"{low:.1f}" if high - low < 0.1 else f"{low:.1f}…{high:.1f}"
        mass = format_probability(distribution.mass)
        return flow([Run(f"entropy {text} bits"), Run(f"top-{len(distribution.top)} mass {mass}")], columns)

    def _bars(self, row: int, columns: int) -> list[Line]:
        """A bar and probability for each alternative, and cumulative sums unless one is missing."""
        view, glyphs = self._view, self._glyphs
        top = view.measures.alternatives(row)
        if not top:
            return [[Run("no alternatives were sent", "dim")]]
        ps, name = probabilities(p for _, p in top), view.measures.name(row)
        whole = len(view.measures.distribution(row).top)
        texts = [view.measures.quote(one) for one, _ in top]
        wide = min(max(len("other"), *map(width, texts)), max(8, columns // 3))
        room = max(3, columns - wide - 15)
        lines: list[Line] = []
        for i, ((one, _), p) in enumerate(zip(top, ps, strict=True)):
            here, chosen = i == view.bar, one == name
            total = format_probability(min(1.0, math.fsum(ps[: i + 1]))) if i < whole else ""
            lines.append(
                [
                    Run(glyphs.cursor if here else " ", "accent", i),
                    Run(pad(texts[i], wide), "bold" if chosen else "", i),
                    Run(" ", "", i),
                    Run(self._bar(p, room), "bar chosen" if chosen else "bar", i),
                    Run(pad(format_probability(p), 6, right=True), "", i),
                    Run(pad(total, 6, right=True), "dim", i),
                    Run(glyphs.chosen if chosen else " ", "accent", i),
                ]
            )
        return [*lines, *self._other(1.0 - math.fsum(ps), wide, room)]

    def _other(self, rest: float, wide: int, room: int) -> list[Line]:
        """A bar for all tokens that were not sent."""
        if rest < 0.0005:
            return []
        line = [
            Run(f" {pad('other', wide)} ", "dim"),
            Run(self._bar(rest, room), "dim"),
            Run(pad(format_probability(rest), 6, right=True), "dim"),
        ]
        return [line]

    def _bar(self, p: float, room: int) -> str:
        blocks = self._glyphs.blocks
        eighths = round(min(1.0, p) * room * 8)
        full, part = divmod(eighths, 8)
        return pad(blocks[8] * full + (blocks[part] if part else ""), room)

    def _arrival(self, row: int, columns: int) -> list[Line]:
        view, state = self._view, self._view.state
        frame = state.tokens.frames[row]
        stream = state.stream_of(row)
        gap = view.measures.gap(row)
        since = state.frames.times[frame] - stream.started_at
        after = (
            f"{numbers.milliseconds(since)} after the request"
            if gap is None
            else f"+{numbers.milliseconds(gap / 1000)} after the one before"
        )
        together = len(state.tokens_of_frame(frame))
        brought = "alone in it" if together == 1 else f"{together} tokens in it"
        return flow(
            [
                Run(f"{visible(stream.label)} #{view.position(row)}", "dim"),
                Run(f"arrived {after}", "dim"),
                Run(f"frame {frame} ({brought})", "dim"),
            ],
            columns,
        )

    def _request(self, columns: int) -> list[Line]:
        """The request's bias and constraint, errors and usage."""
        view = self._view
        stream, row = view.current, view.token
        if stream is None:
            return []
        phrases: list[Run] = []
        if stream.constraint:
            phrases.append(Run(f"constrained by {visible(stream.constraint)}", "accent"))
        if stream.biased:
            phrases.append(Run(f"{_ids(stream.biased)} biased", "accent"))
        if stream.ruled_out:
            phrases.append(Run(f"{_ids(stream.ruled_out)} forbidden", "accent"))
        if row is not None and stream.logprobs_mode == "biased" and self._is_forced(row, stream):
            phrases.append(Run("forced: nothing else was allowed", "accent"))
        lines = flow(phrases, columns) + _members(stream, columns)
        tree = () if stream.nodes is None else stream.nodes.lines()
        lines += [fitted([Run("  " * depth), Run(visible(words), "dim")], columns) for depth, words in tree]
        lines += broken([Run(visible(stream.failure), "error")], columns) if stream.failure else []
        return lines + ([[Run(f"usage: {stream.usage}", "dim")]] if stream.usage is not None else [])

    def _is_forced(self, row: int, stream: Stream) -> bool:
        """True if no other token was possible: alternatives were requested, and none was sent."""
        alone = len(self._view.measures.alternatives(row)) == 1 and (stream.top_logprobs or 0) > 1
        return alone and self._view.state.tokens.logprob(row) == 0


def _members(stream: Stream, columns: int) -> list[Line]:
    """Pool member that answered, and all attempts of the gateway."""
    attempts = [visible(attempt) for attempt in stream.attempts.split(", ") if attempt]
    answered = [attempt.partition(" ")[0] for attempt in attempts if _succeeded(attempt) or " broke off" in attempt]
    first = stream.seams[0].before if stream.seams else stream.member
    member = visible(first) or next(iter(answered), "")
    phrases = [Run(f"answered by {member}", "accent")] if member else []
    phrases += [Run(f"from character {seam.at} on by {visible(seam.after)}", "accent") for seam in stream.seams]
    return flow([*phrases, *(Run(one, "dim" if _succeeded(one) else "error") for one in attempts)], columns)


def _succeeded(attempt: str) -> bool:
    return attempt.split(" ")[1:2] == ["ok"]


def _bytes(spelling: bytes | None) -> str:
    """The first bytes of a token, in hex."""
    if spelling is None:
        return "bytes not known"
    return f"0x{spelling[:BYTES].hex(' ')}{'…' if len(spelling) > BYTES else ''}" if spelling else "no bytes"


def _ids(number: int) -> str:
    return f"{numbers.count(number)} id{'s' * (number != 1)}"
