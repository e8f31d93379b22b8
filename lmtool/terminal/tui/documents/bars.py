"""Lines around the panes: header, tabs, legend, timeline, and the message for a small screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.logprobs import heat, numbers
from lmtool.core.logprobs.distribution import bits, probability
from lmtool.core.logprobs.heat import STREAM_COLORS
from lmtool.core.logprobs.numbers import format_probability
from lmtool.terminal.tui.runs import Run, cut, cut_left, fitted, length, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.styles import Glyphs
    from lmtool.terminal.tui.view import View

RECENT = 2.0
"""Seconds that the rate of tokens is taken over."""
SHORT = 10.0
"""Seconds below which milliseconds are shown."""
COUNTED = 2000
"""Streams that the header counts, the latest."""


@dataclass(frozen=True, slots=True)
class Status:
    """State of the source, for the header."""

    title: str
    """The source, such as `proxy :8081→:8080`."""
    word: str = "LIVE"
    """`LIVE`, `FILE`, `loading`, `remote has gone`."""
    trouble: bool = False
    recording: str = ""
    """The name and size of a recording."""


def header(view: View, status: Status, glyphs: Glyphs, columns: int) -> Line:
    """Header line: source, state, counts, time."""
    wide = columns >= 90
    time = f" {_clock(view.time)} "
    model, open_now = visible(cut(view.state.model or "", 24)), view.state.connections
    connections = f"  {open_now} connection{'s' * (open_now != 1)}" if columns >= 100 and open_now else ""
    parts: Line = [
        *_life(view, status, glyphs, wide=wide),
        Run(f"  {visible(status.title)}" if wide else f" {visible(cut_left(status.title, 16))}"),
        Run(f"  {model}" if wide and model else "", "title"),
        Run(connections, "dim"),
        *_counts(view, glyphs),
        Run(f"  rec {visible(status.recording)}" if status.recording else "", "error"),
    ]
    left = fitted(parts, columns - len(time))
    return [*left, Run(" " * (columns - len(time) - length(left))), Run(time, "title")]


def _life(view: View, status: Status, glyphs: Glyphs, *, wide: bool) -> Line:
    if status.trouble:
        return [Run(f" {glyphs.over} {status.word}", "error")]
    if not view.paused:
        return [Run(f" {glyphs.live} {status.word}", "live")]
    hidden = f" +{numbers.count(view.hidden_count)}" if view.live and view.hidden_count else ""
    return [Run(f" {glyphs.paused} PAUSED{hidden}{' held back' if hidden and wide else ''}", "accent")]


def _counts(view: View, glyphs: Glyphs) -> Line:
    tokens, now = view.token_count, view.time
    phases = [stream.phase(now, tokens) for stream in view.state.streams[-COUNTED:] if stream.started_at <= now]
    running = sum(p in ("running", "waiting") for p in phases)
    bad = sum(p in ("error", "unfinished") for p in phases)
    done = len(phases) - running - bad
    counts = ((running, "running", "ok"), (done, "done", "dim"), (bad, "failed", "error"))
    line: Line = [Run("  ")]
    for number, word, style in counts:
        if number:
            line += [Run(f" {glyphs.between} " if len(line) > 1 else "", "dim"), Run(f"{number} {word}", style)]
    span = min(RECENT, now)
    if running and span > 0:
        line.append(Run(f"  {numbers.figure((tokens - view.state.tokens_at(now - span)) / span)} tok/s", "title"))
    return line


def _clock(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds < SHORT else numbers.clock(seconds)


def tabs(names: Sequence[str], chosen: int, beyond: str, columns: int) -> Line:
    """Tabs of the panes for narrow screens, with the number of hidden lines; targets are panes."""
    line: Line = []
    room = columns - len(beyond)
    short = sum(len(name) + 4 for name in names) > room
    for i, name in enumerate(names):
        here = i == chosen
        word = f"{i + 1} {name}" if here or not short else str(i + 1)
        line.append(Run(f"[{word}]" if here else f" {word} ", "accent" if here else "dim", i))
    line = fitted(line, room)
    return [*line, Run(" " * (room - length(line))), Run(beyond, "dim")]


def text_rule(view: View, glyphs: Glyphs, columns: int) -> Line:
    """The line between interleaved tokens and the text of a stream."""
    stream = view.current
    if stream is None:
        return [Run(glyphs.rule * columns, "dim")]
    color = f"stream{stream.index % len(STREAM_COLORS)}"
    line: Line = [Run(f"{glyphs.rule} text of ", "dim"), Run(visible(stream.label), color), Run(" ")]
    return [*line, Run(glyphs.rule * max(0, columns - length(line)), "dim")]


def peek(view: View, glyphs: Glyphs, columns: int) -> Line:
    """The token under the cursor in one line, for screens without its pane."""
    row = view.token
    if row is None:
        return [Run(" no token yet", "dim")]
    token, logprob = view.state.tokens.ids[row], view.state.tokens.logprob(row)
    line: Line = [Run(" "), Run(view.measures.quote_token(row), view.style(row) or "bold")]
    line.append(Run(f" id {token}" if token >= 0 else "", "dim"))
    if logprob is not None:
        rank = view.measures.rank(row)
        line.append(Run(f"  p {format_probability(probability(logprob))} {bits(logprob):.1f}b"))
        line.append(Run("" if rank is None else f" rank {rank}"))
    if others := view.measures.alternatives_text(row, 4):
        line += [Run(f" {glyphs.wall} ", "dim"), Run(others, "dim")]
    return fitted(line, columns)


def legend(view: View, glyphs: Glyphs, columns: int, *, attributes: bool = False) -> Line:
    """The heat's steps, and how much is new below."""
    new = view.new_below
    tail = f" {numbers.count(new)} new {glyphs.down} (G)" if new else ""
    steps = heat.legend(view.heat)
    name = f" {view.heat} "
    room = columns - len(name) - len(tail)
    if not steps:
        line: Line = [Run(name, "title"), Run("a colour for each stream", "dim")]
    else:
        line = [Run(name, "title"), *_steps([label for label, _ in steps], room, attributes=attributes)]
    line = fitted(line, columns - len(tail))
    return [*line, Run(" " * max(0, columns - len(tail) - length(line))), Run(tail, "accent")]


def _steps(labels: list[str], room: int, *, attributes: bool) -> Line:
    """The scale as far as it fits: every step labelled, else both ends and the middle, else both ends."""
    gap = 1 if attributes else 0  # without colours only blanks part the steps
    for form in (" {} ", "{}"):
        line = [Run(form.format(label), f"heat{step}") for step, label in enumerate(labels)]
        if length(line) + gap * len(line) <= room:
            return [part for run in line for part in ((run, Run(" " * gap)) if gap else (run,))]
    labelled = (0, 3, 7) if room >= 16 else (0, 7)
    line = [Run(label if step in labelled else " ", f"heat{step}") for step, label in enumerate(labels)]
    return [part for run in line for part in ((run, Run(" ")) if gap and run.text != " " else (run,))]


def timeline(view: View, glyphs: Glyphs, columns: int) -> Line:
    """The moment on a line from beginning to end; targets are thousandths of the trace."""
    end = view.state.now
    left, right = f" {_clock(0.0) if end >= SHORT else '0'} ", f" {_clock(end)} "
    speed = "" if view.live else f"{view.speed:g}× "  # noqa: RUF001 - times
    room = max(4, columns - len(left) - len(right) - len(speed))
    share = view.time / end if end else 1.0
    knob = min(room - 1, round(share * (room - 1)))
    places = [*view.time_marks, *(mark.time for mark in view.state.marks if mark.time <= end)]
    marks = {round(place / end * (room - 1)) for place in places if end}
    line: Line = [Run(left, "dim")]
    for i in range(room):
        sign = glyphs.knob if i == knob else glyphs.mark if i in marks else glyphs.line
        style = "accent" if i == knob else "error" if i in marks else "spark" if i < knob else "dim"
        line.append(Run(sign, style, round(1000 * i / max(1, room - 1))))
    return [*line, Run(right, "dim"), Run(speed, "accent" if speed else "")]


def too_small(columns: int, rows: int, least: tuple[int, int], width: int) -> list[Line]:
    """A message in the middle of a screen that is too small for a pane."""
    words = [f"{columns}x{rows} is too small:", f"{least[0]}x{least[1]} shows a pane", "everything goes on", "q quits"]
    texts = [cut(word, width) for word in words[: max(1, rows)]]
    above: list[Line] = [[] for _ in range(max(0, (rows - len(texts)) // 2))]
    return above + [[Run(" " * ((width - len(text)) // 2)), Run(text)] for text in texts]
