"""When tokens arrived: a line of gaps between frames, and its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.core.logprobs import numbers
from lmtool.terminal.tui.documents.document import ViewDocument
from lmtool.terminal.tui.runs import Run, fitted, flow, visible
from lmtool.terminal.tui.streams import timing_of, timing_of_all

if TYPE_CHECKING:
    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.streams import Timing
    from lmtool.terminal.tui.styles import Glyphs
    from lmtool.terminal.tui.view import View


class TimeDocument(ViewDocument):
    """The stream under the cursor, then all of them. Tokens of one frame arrived together: no gap between them."""

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
        self._lines = lines
        return len(lines)

    def move(self, rows: int) -> None:
        """To another stream."""
        self._view.move_stream(rows)

    def line(self, y: int, columns: int) -> Line:
        """One line."""
        return fitted(self._lines[y], columns) if y < len(self._lines) else []

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
    """The latest gaps, one a column; those that stand out in another colour, and as a mark where they are too tall."""
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
    """Gaps of the stream under the cursor in one line, for where the pane of time is not shown."""
    stream = view.current
    if stream is None:
        return []
    timing = timing_of(stream, stream.count(view.token_count), view.state.tokens, view.state.frames)
    if not timing.gaps:
        return [Run(" no gaps between frames yet", "dim")]
    figures = "  ".join(run.text for run in percentiles(timing)[::2])
    room = columns - len(figures) - 4
    return fitted([Run(" "), *spark(timing, glyphs, max(4, room))[: max(4, room)], Run(f"  {figures}")], columns)
