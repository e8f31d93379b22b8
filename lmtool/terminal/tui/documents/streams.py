"""The table of streams."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lmtool.core.logprobs import numbers
from lmtool.core.logprobs.heat import STREAM_COLORS
from lmtool.terminal.tui.documents import glossary
from lmtool.terminal.tui.documents.document import ViewDocument
from lmtool.terminal.tui.documents.list import broken
from lmtool.terminal.tui.request_summary import parameters
from lmtool.terminal.tui.runs import Run, fitted, pad, visible
from lmtool.terminal.tui.streams import timing_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.streams import Stream, Timing
    from lmtool.terminal.tui.styles import Glyphs
    from lmtool.terminal.tui.view import View
    from lmtool.trace.stream_events import Phase

_STATE_STYLES = {"running": "ok", "error": "error", "unfinished": "error", "waiting": "dim"}


STANDING = 0.25
"""Seconds for which the figures of a running stream stand."""
STATE = 14
"""Columns for a stream's state; an error takes what is left of the line."""


class StreamsDocument(ViewDocument):
    """One line a stream, the heading first. A narrow pane has fewer columns: first the prompt goes, then the times."""

    heads = 1

    def __init__(
        self, view: View, glyphs: Glyphs, advice: Callable[[], str] = str, explain: Callable[[str], object] = str
    ) -> None:
        """advice: what can be done while there is no stream at all. explain: called with a column that was clicked."""
        super().__init__(view, glyphs)
        self._advice = advice
        self._explain = explain
        self._timings: dict[int, tuple[float, Timing]] = {}
        """Figures by index of the stream, and the moment that they are of."""

    def height(self, columns: int) -> int:
        """Streams and their heading; or that there are none, and what to do."""
        return 1 + (len(self._view.streams()) or len(self._nothing(columns)))

    def anchor(self, columns: int) -> int | None:  # noqa: ARG002 - no line is broken
        """The cursor's line."""
        listed = [stream.index for stream in self._view.streams()]
        return 1 + listed.index(self._view.stream) if self._view.stream in listed else None

    def click(self, target: int) -> None:
        """Look at this stream; for a column's name, below 0, explain it."""
        if target < 0:
            self._explain(glossary.WORDS[-1 - target].name)
        else:
            self._view.choose_stream(target)

    def move(self, rows: int) -> None:
        """The cursor down."""
        self._view.move_stream(rows)

    def line(self, y: int, columns: int) -> Line:
        """A heading or a stream."""
        shape = _Shape(columns)
        if y == 0:
            return fitted(_heading(shape.heading()), columns)
        listed = self._view.streams()
        if y - 1 >= len(listed):
            nothing = [] if listed else self._nothing(columns)
            return nothing[y - 1] if y - 1 < len(nothing) else []
        return self._stream(listed[y - 1], shape, columns)

    def _nothing(self, columns: int) -> list[Line]:
        if self._view.filter is not None:
            text = "no stream for this filter (esc clears it)"
        else:
            text = ": ".join(filter(None, ("no stream yet", "" if self._view.state.streams else self._advice())))
        return [[Run("  "), *line] for line in broken([Run(visible(text), "dim")], max(1, columns - 2))]

    def _stream(self, stream: Stream, shape: _Shape, columns: int) -> Line:
        view, glyphs = self._view, self._glyphs
        count, phase = stream.count(view.token_count), stream.phase(view.time, view.token_count)
        here = stream.index == view.stream
        row = "cursor" if here else ""
        color = f"stream{stream.index % len(STREAM_COLORS)}"
        lead = glyphs.cursor if here else ("=" if stream.index in view.stream_marks else " ")
        cells = shape.cells(view, stream, count, self._timing(stream, count, phase), whole=phase != "error")
        return fitted(
            [
                Run(lead, f"accent {row}", stream.index),
                Run(f"{glyphs.dot} ", f"{color} {row}", stream.index),
                Run(cells, row, stream.index),
                Run(self._phase(stream, phase, count), f"{_STATE_STYLES.get(phase, '')} {row}", stream.index),
            ],
            columns,
        )

    def _timing(self, stream: Stream, count: int, phase: Phase) -> Timing:
        """Figures of a stream. While it runs, they stand long enough to be read."""
        view = self._view
        runs_now = view.live and view.moment is None and phase == "running"
        moment, timing = self._timings.get(stream.index, (0.0, None)) if runs_now else (0.0, None)
        if timing is None or not 0 <= view.time - moment < STANDING:
            timing = timing_of(stream, count, view.state.tokens, view.state.frames)
            self._timings[stream.index] = view.time, timing
        return timing

    def _phase(self, stream: Stream, phase: Phase, count: int) -> str:
        glyphs, state = self._glyphs, self._view.state
        if phase in ("running", "waiting"):
            came = state.frames.times[state.tokens.frames[stream.rows[count - 1]]] if count else -1.0
            if held := stream.held_up(self._view.time, came):
                return f"{glyphs.waiting} {visible(held)}"
        sign = {"running": glyphs.running, "waiting": glyphs.waiting, "error": glyphs.error, "unfinished": glyphs.cut}
        word = visible(stream.failure) if phase == "error" and stream.failure else {"running": "run"}.get(phase, phase)
        if phase == "stop" and stream.finish_reason == "tool_calls":
            word = "tool calls"
        return f"{sign.get(phase, glyphs.stop)} {word}"


def _heading(names: str) -> Line:
    """The names of columns, each a target below 0 that is its place among the words of the screen."""
    places = {word.name: -1 - place for place, word in enumerate(glossary.WORDS)}
    return [Run(part, "title", places.get(part)) for part in re.split(r"(\s+)", names) if part]


class _Shape:
    """Which columns there are, by the width of the pane."""

    def __init__(self, columns: int) -> None:
        self._figures = columns >= 44
        self._times = columns >= 70
        self._last = columns >= 104
        fixed = [6, 5, 9, *[6] * self._figures, *[7, 7, 6] * self._times, *[12] * self._last]
        used = 3 + sum(wide + 1 for wide in fixed) + STATE
        room = max(0, columns - used) if self._times else 0
        self._params = 22 if room >= 56 else 13 if room >= 30 else 0
        self._prompt = min(48, room - (self._params + 1 if self._params else 0) - 1)

    def heading(self) -> str:
        """The names of the columns."""
        names = ("id", "kind", "prompt", "params", "tok/max", "tok/s", "ttft", "p99", "ppl", "last")
        return f"   {self._join(names)}state"

    def cells(self, view: View, stream: Stream, count: int, timing: Timing, *, whole: bool) -> str:
        """Figures of a stream, up to its state. whole: with its last token; an error needs the room."""
        most = "" if stream.max_tokens is None else f"/{stream.max_tokens}"
        prompt = " ".join(view.state.prompt_text(stream).split())
        return self._join(
            (
                visible(stream.label),
                visible(stream.kind),
                visible(prompt),
                visible(parameters(stream.payload, stream.biased, stream.constraint)),
                f"{count}{most}",
                numbers.figure(timing.rate),
                numbers.milliseconds(timing.ttft),
                numbers.milliseconds(timing.gap(0.99)),
                numbers.figure(stream.perplexity(count)),
                view.measures.quote_token(stream.rows[count - 1]) if count else "-",
            ),
            whole=whole,
        )

    def _join(self, cells: tuple[str, ...], *, whole: bool = True) -> str:
        label, kind, prompt, params, tokens, rate, ttft, p99, ppl, last = cells
        parts = [pad(label, 6), pad(kind, 5)]
        parts += [pad(prompt, self._prompt)] if self._prompt > 6 else []
        parts += [pad(params, self._params)] if self._params else []
        parts += [pad(tokens, 9, right=True)]
        parts += [pad(rate, 6, right=True)] if self._figures else []
        parts += [pad(ttft, 7, right=True), pad(p99, 7, right=True), pad(ppl, 6, right=True)] if self._times else []
        parts += [pad(last, 12)] if self._last and whole else []
        return " ".join(parts) + "  "
