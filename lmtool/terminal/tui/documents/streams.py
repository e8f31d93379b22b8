"""Table of streams, and the gaps between the frames that brought their tokens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lmtool.core.logprobs import numbers
from lmtool.core.logprobs.heat import STREAM_COLORS
from lmtool.terminal.tui.documents.document import ViewDocument, broken
from lmtool.terminal.tui.documents.help import WORDS
from lmtool.terminal.tui.runs import Run, fitted, flow, pad, visible
from lmtool.terminal.tui.streams import parameters, timing_of, timing_of_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.streams import Stream, Timing
    from lmtool.terminal.tui.styles import Glyphs
    from lmtool.terminal.tui.view import View
    from lmtool.trace.stream_events import Phase

_STATE_STYLES = {"running": "ok", "error": "error", "unfinished": "error", "waiting": "dim"}


STANDING = 0.25
"""Seconds between updates of a running stream's figures."""
STATE = 14
"""Columns for a stream's state; an error takes the rest of the line."""


class StreamsDocument(ViewDocument):
    """One line per stream after a heading. A narrow pane drops the prompt first, then the times."""

    heads = 1

    def __init__(
        self, view: View, glyphs: Glyphs, advice: Callable[[], str] = str, explain: Callable[[str], object] = str
    ) -> None:
        """advice: instructions without streams. explain: called with a clicked column."""
        super().__init__(view, glyphs)
        self._advice = advice
        self._explain = explain
        self._timings: dict[int, tuple[float, Timing]] = {}
        """Figures by index of the stream, and the moment that they are of."""

    def height(self, columns: int) -> int:
        """Number of streams and heading; without streams, of a message."""
        return 1 + (len(self._view.streams()) or len(self._nothing(columns)))

    def anchor(self, columns: int) -> int | None:  # noqa: ARG002 - no line is broken
        """The cursor's line."""
        listed = [stream.index for stream in self._view.streams()]
        return 1 + listed.index(self._view.stream) if self._view.stream in listed else None

    def click(self, target: int) -> None:
        """Select this stream; a negative target explains a column."""
        if target < 0:
            self._explain(WORDS[-1 - target].name)
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
        """Figures of a stream; while it runs, updated every `STANDING` seconds."""
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
    """Names of columns; targets are -1 minus the index in the glossary."""
    places = {word.name: -1 - place for place, word in enumerate(WORDS)}
    return [Run(part, "title", places.get(part)) for part in re.split(r"(\s+)", names) if part]


class _Shape:
    """Columns that fit into the width of the pane."""

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
        """Figures of a stream up to its state. whole: with its last token, which makes way for an error."""
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


class TimeDocument(ViewDocument):
    """Gaps of the current stream, then of all streams. Tokens of one frame have no gap between them."""

    def __init__(self, view: View, glyphs: Glyphs) -> None:
        super().__init__(view, glyphs)
        self._lines: list[Line] = []

    def height(self, columns: int) -> int:
        """Lines there are now, made here for `line`."""
        view = self._view
        tokens, state = view.token_count, view.state
        lines: list[Line] = []
        stream = view.current
        if stream is not None:
            timing = timing_of(stream, stream.count(tokens), state.tokens, state.frames)
            lines += self._part(f"stream {visible(stream.label)}", timing, columns)
        if len(state.streams) > 1 or stream is None:
            lines += self._part("all streams", timing_of_all(tokens, state.tokens, state.frames), columns)
        self._lines = [fitted(line, columns) for line in lines]
        return len(lines)

    def move(self, rows: int) -> None:
        """Move to another stream."""
        self._view.move_stream(rows)

    def _part(self, name: str, timing: Timing, columns: int) -> list[Line]:
        per_frame = "" if timing.per_frame is None else f"{timing.per_frame:.1f} tokens/frame"
        first = "" if timing.ttft is None else f"ttft {numbers.milliseconds(timing.ttft)}"
        if not timing.gaps:
            return flow(
                [Run(name, "title"), Run("no gaps between frames yet", "dim"), Run(first), Run(per_frame)], columns
            )
        figures = [*percentiles(timing), Run(f"max {numbers.milliseconds(max(timing.gaps))}")]
        stalls = len(timing.stalls)
        more = [
            Run(first, "dim"),
            Run(f"{numbers.figure(timing.rate)} tok/s", "dim"),
            Run(per_frame, "dim"),
            Run(f"{stalls} stall{'' if stalls == 1 else 's'}", "error" if stalls else "dim"),
        ]
        return [
            *flow([Run(name, "title"), *figures], columns),
            spark(timing, self._glyphs, columns),
            *flow(more, columns),
        ]


def percentiles(timing: Timing) -> list[Run]:
    """`p50 24ms`, and so on."""
    return [Run(f"p{q} {numbers.milliseconds(timing.gap(q / 100))}") for q in (50, 95, 99)]


def spark(timing: Timing, glyphs: Glyphs, columns: int) -> Line:
    """The latest gaps, one per column; stalls are marked."""
    gaps = timing.gaps[-max(4, columns) :]
    left_out = len(timing.gaps) - len(gaps)
    stalls = {i - left_out for i in timing.stalls}
    # Tall lines for the median would leave no room above it: the 99th percentile is the top, or four medians.
    top = max(timing.gap(0.99) or 0.0, 4 * (timing.gap(0.5) or 0.0), 1e-6)
    return [
        Run(glyphs.mark, "error") if i in stalls else Run(glyphs.spark[min(7, int(gap / top * 8))], "spark")
        for i, gap in enumerate(gaps)
    ]


def spark_line(view: View, glyphs: Glyphs, columns: int) -> Line:
    """Gaps of the current stream in one line, for screens without the pane of time."""
    stream = view.current
    if stream is None:
        return []
    timing = timing_of(stream, stream.count(view.token_count), view.state.tokens, view.state.frames)
    if not timing.gaps:
        return [Run(" no gaps between frames yet", "dim")]
    figures = "  ".join(run.text for run in percentiles(timing)[::2])
    room = columns - len(figures) - 4
    return fitted([Run(" "), *spark(timing, glyphs, max(4, room))[: max(4, room)], Run(f"  {figures}")], columns)
