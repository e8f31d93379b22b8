"""One request and its tokens, as they were at any moment of the trace."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from lmtool.core.logprobs.distribution import perplexity
from lmtool.core.logprobs.numbers import percentile
from lmtool.trace import stream_events

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.core.types import LogprobsMode
    from lmtool.terminal.tui.columns import FrameLog, TokenLog
    from lmtool.trace.stream_events import ActionNodes, OutputEvent, Phase

WINDOW = 500
"""Arrivals that the figures of time are taken from, the last ones before the moment."""


class Section(NamedTuple):
    """A part of an answer: a call of a tool, or what follows one."""

    position: int
    """Of its first token in its stream."""
    call: int | None
    """By the API's number; None for text."""
    name: str
    """Of the tool that is called, empty until it is named; else `thought` or `answer`."""
    is_named: bool = False
    """Whether its first token is the name of the tool."""
    again: bool = False
    """Whether it goes on with a call that another part has interrupted."""


@dataclass(frozen=True, slots=True)
class HoldUp:
    """What a server said of a stream beside its tokens (LMTP, LOAD and SYS)."""

    time: float
    text: str
    """In a word or two; empty where nothing holds it up any more."""
    lasting: bool = False
    """Whether it holds although tokens come."""


def hold_up_of(entry: Mapping[str, object], time: float) -> HoldUp | None:
    """What an entry of a MSG says of a stream; None for one that says nothing of the kind."""
    system, progress = entry.get("system"), entry.get("progress")
    if isinstance(system, dict):
        kind, seconds = str(system.get("kind", "")), system.get("seconds")
        about = f" {seconds:.0f}s" if isinstance(seconds, int | float) else ""
        word = f"place {system['place']}" if kind == "queued" and "place" in system else kind
        return HoldUp(time, f"{word}{about}", lasting=kind == "draining")
    if isinstance(progress, dict):
        phase, total, done = progress.get("phase"), progress.get("total_bytes"), progress.get("done_bytes")
        known = isinstance(total, int | float) and isinstance(done, int | float) and total > 0
        share = f" {100 * done / total:.0f}%" if known and phase == "loading" else ""  # type: ignore[operator] # as just seen
        return HoldUp(time, "" if phase in ("ready", "failed", "waiting") else f"{phase}{share}")
    return None


@dataclass(slots=True, eq=False)
class Stream(stream_events.Stream):
    """A stream with all that the inspector shows of it; `index` also says its colour."""

    frame: int = 0
    """The frame of its request."""
    nodes: ActionNodes | None = None
    """Of an Evergreen action."""
    payload: Mapping[str, object] = field(default_factory=dict)
    """The request without its prompt and bias."""
    prompt: tuple[int, ...] | str = ""
    """Ids or text of the prompt's end, cut to what a row can show."""
    generated: tuple[int, ...] = ()
    """Ids that count as generated already behind a text or messages, the last ones; those behind ids are among them."""
    generated_tokens: int = 0
    """How many these are."""
    prompt_tokens: int | None = None
    """What stands before its first token, as far as it is known; of a text as the server counts it."""
    max_tokens: int | None = None
    biased: int = 0
    """Ids that the request gave a `logit_bias`."""
    ruled_out: int = 0
    """How many of them cannot be sampled."""
    constraint: str | None = None
    """Kind of its constraint, if it has one."""
    top_logprobs: int | None = None
    """Alternatives a token that it requested; None where that is not known."""
    logprobs_mode: LogprobsMode | None = None
    """Which distribution its logprobs are of; None where the server decides, or the request is not known."""
    divided_by_temperature: bool = False
    """Whether its logprobs are divided by its temperature and no distribution's, as LMQL's server has them."""
    rows: array[int] = field(default_factory=lambda: array("i"))
    """Its tokens: rows of the token log."""
    logprobs: array[float] = field(default_factory=lambda: array("d"))
    """The column of the token log."""
    sections: list[Section] = field(default_factory=list)
    """Calls of tools, and text behind them; empty for a stream of text alone."""
    thought_bounds: array[int] = field(default_factory=lambda: array("i"))
    """Rows of the token log at which what it thinks begins, ends, begins again, and so on."""
    hold_ups: list[HoldUp] = field(default_factory=list)
    """What the server said of why nothing comes, in order."""
    _sums: array[float] = field(default_factory=lambda: array("d", (0.0,)))
    """Sums of the logprobs of its first 0, 1, 2, ... tokens, as far as needed yet; tokens without one left out."""
    _counts: array[int] = field(default_factory=lambda: array("i", (0,)))
    """How many of these tokens have one."""

    def count_prompt(self, usage: object) -> None:
        """Learn the length of a text's or a conversation's prompt from the server's count (LMTP, EXT-3)."""
        n = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if self.prompt_tokens is None and type(n) is int:
            self.prompt_tokens = n + self.generated_tokens

    def is_thought(self, row: int) -> bool:
        """Whether its token in this row of the log is of what the model thinks before its answer."""
        return bisect_right(self.thought_bounds, row) % 2 == 1

    def count(self, tokens: int) -> int:
        """This stream's tokens among the first `tokens` rows of the log."""
        return bisect_left(self.rows, tokens)

    def note_section(self, output: OutputEvent) -> None:
        """Begin another section where the next token, which comes of this output, is no part of the last one."""
        last = self.sections[-1] if self.sections else None
        if output.call == (None if last is None else last.call) and not (output.is_tool_name and last is not None):
            return
        again = not output.is_tool_name and any(one.call == output.call for one in self.sections)
        name = output.tool if output.call is not None else "thought" if output.is_thought else "answer"
        self.sections.append(Section(len(self.rows), output.call, name, output.is_tool_name, again))

    def held_up(self, moment: float, last_token: float) -> str:
        """What holds it up at a moment, in a word or two; empty for nothing. last_token: its time, or -1."""
        said = next((one for one in reversed(self.hold_ups) if one.time <= moment), None)
        return said.text if said is not None and (said.lasting or said.time > last_token) else ""

    def phase(self, moment: float, tokens: int) -> Phase:
        """What it does at a moment, `tokens` rows being in the log by then."""
        return self.phase_at(moment, produced=bool(self.count(tokens)))

    def perplexity(self, count: int) -> float | None:
        """Perplexity of its first `count` tokens, by those that have a logprob; None where none has."""
        sums, counts = self._sums, self._counts
        if len(sums) <= count:
            new = [self.logprobs[row] for row in self.rows[len(sums) - 1 : count]]
            sums.extend(list(accumulate([0.0 if math.isnan(p) else p for p in new], initial=sums[-1]))[1:])
            counts.extend(list(accumulate([not math.isnan(p) for p in new], initial=counts[-1]))[1:])
        return None if self.divided_by_temperature else perplexity(sums[count], counts[count])


@dataclass(frozen=True, slots=True)
class Timing:
    """Arrivals of a stream, or of all of them. Seconds."""

    ttft: float | None = None
    rate: float | None = None
    """Tokens a second after those of the first frame."""
    gaps: tuple[float, ...] = ()
    """Between frames that brought tokens, the last `WINDOW` of them; tokens of one frame arrived together."""
    per_frame: float | None = None
    """Tokens a frame."""

    def gap(self, share: float) -> float | None:
        """The gap that this share of all does not exceed (nearest rank)."""
        return percentile(self.gaps, share) if self.gaps else None

    @property
    def stalls(self) -> tuple[int, ...]:
        """Places of gaps that stand out: over four times the median and over 50 ms."""
        median = self.gap(0.5)
        return tuple(i for i, gap in enumerate(self.gaps) if median is not None and gap > max(4 * median, 0.05))


def timing_of(stream: Stream, count: int, tokens: TokenLog, frames: FrameLog) -> Timing:
    """Figures of a stream's first `count` tokens."""
    if not count:
        return Timing()
    first = frames.times[tokens.frames[stream.rows[0]]]
    rows = stream.rows[max(0, count - WINDOW) : count]
    last = frames.times[tokens.frames[rows[-1]]]
    next_frame = tokens.frames[stream.rows[0]] + 1
    next_row = frames.first_tokens[next_frame] if next_frame < len(frames) else len(tokens)
    together = bisect_left(stream.rows, next_row, 0, count)
    rate = (count - together) / (last - first) if last > first else None
    return Timing(first - stream.started_at, rate, *_gaps([tokens.frames[row] for row in rows], frames))


def timing_of_all(count: int, tokens: TokenLog, frames: FrameLog) -> Timing:
    """Figures of the first `count` tokens of all streams together."""
    if not count:
        return Timing()
    carriers = tokens.frames[max(0, count - WINDOW) : count]
    first, last = frames.times[carriers[0]], frames.times[carriers[-1]]
    rate = len(carriers) / (last - first) if last > first else None
    return Timing(None, rate, *_gaps(carriers.tolist(), frames))


def _gaps(carriers: list[int], frames: FrameLog) -> tuple[tuple[float, ...], float]:
    distinct = list(dict.fromkeys(carriers))
    times = [frames.times[frame] for frame in distinct]
    return tuple(later - earlier for earlier, later in pairwise(times)), len(carriers) / len(distinct)
