"""One request and its tokens at any moment of the trace, and the short form of its parameters."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from lmtool.core.logprobs.distribution import perplexity
from lmtool.core.logprobs.mode import logprobs_mode
from lmtool.core.logprobs.numbers import percentile
from lmtool.trace import stream_events
from lmtool.trace.codec import reference
from lmtool.trace.stream_events import PROMPT_MEMBERS, new_stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.core.types import LogprobsMode
    from lmtool.terminal.tui.columns import FrameLog, TokenLog
    from lmtool.trace.stream_events import ActionNodes, OutputEvent, Phase, RequestStarted

WINDOW = 500
"""Arrivals that the figures of time are taken from, the last ones before the moment."""


class Section(NamedTuple):
    """A part of an answer: a tool call, or the text after one."""

    position: int
    """Position of its first token in its stream."""
    call: int | None
    """Number of the tool call in the API; None for text."""
    name: str
    """Name of the called tool, empty until it is known; else `thought` or `answer`."""
    is_named: bool = False
    """True if its first token is the name of the tool."""
    again: bool = False
    """True if it continues a call that another part interrupted."""


@dataclass(frozen=True, slots=True)
class HoldUp:
    """A server's notice on a waiting stream (LMTP, LOAD and SYS)."""

    time: float
    text: str
    """One or two words; empty if the stream no longer waits."""
    lasting: bool = False
    """True if it applies although tokens arrive."""


def hold_up_of(entry: Mapping[str, object], time: float) -> HoldUp | None:
    """Notice in an entry of a MSG; None if it has none."""
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
    """A stream with everything that the inspector shows of it; `index` also selects its colour."""

    frame: int = 0
    """The frame of its request."""
    nodes: ActionNodes | None = None
    """Nodes of an Evergreen action."""
    payload: Mapping[str, object] = field(default_factory=dict)
    """The request without its prompt and bias."""
    prompt: tuple[int, ...] | str = ""
    """Ids or text at the end of the prompt, cut to the length of a row."""
    generated: tuple[int, ...] = ()
    """Last ids that count as generated after a text or messages; after ids they are part of `prompt`."""
    generated_tokens: int = 0
    """Number of ids that count as generated."""
    prompt_tokens: int | None = None
    """Tokens before its first token; of a text as the server counts it; None if unknown."""
    max_tokens: int | None = None
    biased: int = 0
    """Number of ids with a `logit_bias`."""
    ruled_out: int = 0
    """Number of biased ids that cannot be sampled."""
    constraint: str | None = None
    """Kind of its constraint; None if it has none."""
    top_logprobs: int | None = None
    """Requested alternatives per token; None if unknown."""
    logprobs_mode: LogprobsMode | None = None
    """Distribution of its logprobs; None if the server decides, or the request is unknown."""
    divided_by_temperature: bool = False
    """True if its logprobs are divided by its temperature and not normalised, as LMQL's server sends them."""
    rows: array[int] = field(default_factory=lambda: array("i"))
    """Rows of its tokens in the token log."""
    logprobs: array[float] = field(default_factory=lambda: array("d"))
    """Column of logprobs of the token log."""
    sections: list[Section] = field(default_factory=list)
    """Tool calls and the text after them; empty for a stream of text alone."""
    thought_bounds: array[int] = field(default_factory=lambda: array("i"))
    """Rows of the token log at which thoughts begin and end, alternately."""
    hold_ups: list[HoldUp] = field(default_factory=list)
    """Notices of the server on waiting, in order."""
    _sums: array[float] = field(default_factory=lambda: array("d", (0.0,)))
    """Sums of the logprobs of its first 0, 1, 2, ... tokens, computed on demand; missing logprobs count as 0."""
    _counts: array[int] = field(default_factory=lambda: array("i", (0,)))
    """Number of these tokens with a logprob."""

    def count_prompt(self, usage: object) -> None:
        """Learn the length of a text's or a conversation's prompt from the server's count (LMTP, EXT-3)."""
        n = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if self.prompt_tokens is None and type(n) is int:
            self.prompt_tokens = n + self.generated_tokens

    def is_thought(self, row: int) -> bool:
        """True if its token in this row of the log belongs to the thought before the answer."""
        return bisect_right(self.thought_bounds, row) % 2 == 1

    def count(self, tokens: int) -> int:
        """This stream's tokens among the first `tokens` rows of the log."""
        return bisect_left(self.rows, tokens)

    def note_section(self, output: OutputEvent) -> None:
        """Begin another section if the token of this output is no part of the last one."""
        last = self.sections[-1] if self.sections else None
        if output.call == (None if last is None else last.call) and not (output.is_tool_name and last is not None):
            return
        again = not output.is_tool_name and any(one.call == output.call for one in self.sections)
        name = output.tool if output.call is not None else "thought" if output.is_thought else "answer"
        self.sections.append(Section(len(self.rows), output.call, name, output.is_tool_name, again))

    def held_up(self, moment: float, last_token: float) -> str:
        """Reason that it waits at a moment, in a word or two; else empty. last_token: its time, or -1."""
        said = next((one for one in reversed(self.hold_ups) if one.time <= moment), None)
        return said.text if said is not None and (said.lasting or said.time > last_token) else ""

    def phase(self, moment: float, tokens: int) -> Phase:
        """Phase at a moment with `tokens` rows in the log."""
        return self.phase_at(moment, produced=bool(self.count(tokens)))

    def perplexity(self, count: int) -> float | None:
        """Perplexity of its first `count` tokens with a logprob; None if there are none."""
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
    """Tokens per second after the first frame."""
    gaps: tuple[float, ...] = ()
    """Seconds between the last `WINDOW` frames with tokens."""
    per_frame: float | None = None
    """Tokens a frame."""

    def gap(self, share: float) -> float | None:
        """The gap that this share of all does not exceed (nearest rank)."""
        return percentile(self.gaps, share) if self.gaps else None

    @property
    def stalls(self) -> tuple[int, ...]:
        """Indices of stalls: gaps over four times the median and over 50 ms."""
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


PROMPT_TOKENS = 256
"""Ids of a prompt's end that stay in memory."""
PROMPT_CHARACTERS = 2000
RULED_OUT = -100.0
"""Bias with which no token is sampled (used by LMQL's masks)."""
_LARGE = (*PROMPT_MEMBERS, "generated", "logit_bias", "stream_id", "model", "stream", "tools")
_MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_SHORT = {"temperature": "t", "top_p": "p", "top_k": "k", "top_logprobs": "top", "seed": "seed", "min_p": "min_p"}
_CONSTRAINTS = ("constraint", "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice")


@dataclass(frozen=True, slots=True)
class Digest:
    """Size and end of a large value: a prompt, a text, a bias."""

    size: int
    """Ids, characters or members."""
    end: tuple[int, ...] | str = ""
    """Its last ids or characters."""
    ruled_out: int = 0
    """Members that are a bias of `RULED_OUT` or less."""


def digest(value: object) -> Digest:
    """Size and end of a member of a payload, or of the value of a blob."""
    if isinstance(value, str):
        return Digest(len(value), value[-PROMPT_CHARACTERS:])
    if isinstance(value, list):
        end = value[-PROMPT_TOKENS:]
        return Digest(len(value), tuple(end) if all(type(i) is int for i in end) else _last_message(end))
    if isinstance(value, dict):
        ruled_out = sum(type(bias) in (int, float) and bias <= RULED_OUT for bias in value.values())
        return Digest(len(value), ruled_out=ruled_out)
    return Digest(0)


def _last_message(messages: list[object]) -> str:
    """Text of the last message or tool output."""
    last = messages[-1] if messages else None
    if isinstance(last, str):
        return last[-PROMPT_CHARACTERS:]
    if not isinstance(last, dict):
        return ""
    return _content_text(last.get("content", last.get("output")))[-PROMPT_CHARACTERS:]


def _content_text(content: object) -> str:
    """Text of a content and of its nested parts."""
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "".join(str(part.get("text") or _content_text(part.get("content"))) for part in parts)


def stream_of(started: RequestStarted, index: int, choice: int, frame: int, blobs: Mapping[str, Digest]) -> Stream:
    """The stream of a request, or of one further choice of its answer.

    frame: the one of the request. blobs: what the references in its payload stand for.
    """
    payload = started.payload
    prompt = _digest(started.prompt, blobs)
    generated = _digest(started.payload.get("generated"), blobs)
    if isinstance(prompt.end, tuple) and prompt.size and isinstance(generated.end, tuple):
        prompt = Digest(prompt.size + generated.size, (*prompt.end, *generated.end)[-PROMPT_TOKENS:])
        generated = Digest(0)
    bias = _digest(payload.get("logit_bias"), blobs)
    return new_stream(
        Stream,
        started,
        index,
        choice,
        frame=frame,
        nodes=started.nodes,
        payload={name: value for name, value in payload.items() if name not in _LARGE},
        prompt=prompt.end,
        generated=generated.end if isinstance(generated.end, tuple) else (),
        generated_tokens=generated.size,
        prompt_tokens=_prompt_tokens(started, prompt),
        max_tokens=_max_tokens(started, blobs),
        biased=bias.size,
        ruled_out=bias.ruled_out,
        constraint=_constraint(payload),
        top_logprobs=_top_logprobs(started),
        logprobs_mode=_mode(started, biased=bool(bias.size)),
    )


def _top_logprobs(started: RequestStarted) -> int | None:
    default = 1 if started.stream_kind == "GEN" and started.has_request else None
    name = "logprobs" if started.api == "completions" else "top_logprobs"
    value = started.payload.get(name, default)
    return value if type(value) is int else None


def _mode(started: RequestStarted, *, biased: bool) -> LogprobsMode | None:
    """Distribution of a request's logprobs: raw for SCORE; None for HTTP, where it is unknown."""
    if started.stream_kind == "GEN" and started.has_request:
        return logprobs_mode(started.payload, biased=biased)
    return "raw" if started.stream_kind == "SCORE" else None


def _digest(value: object, blobs: Mapping[str, Digest]) -> Digest:
    sha256 = reference(value)
    if sha256 is not None:
        return blobs.get(sha256, Digest(0))
    if isinstance(value, dict) and "$redacted" in value:
        return Digest(0)
    return digest(value)


def _prompt_tokens(started: RequestStarted, prompt: Digest) -> int | None:
    """Ids of the prompt; None for a text or messages."""
    if isinstance(prompt.end, tuple) and prompt.size:
        return prompt.size
    redacted = started.payload.get("prompt")
    return started.prompt_length if isinstance(redacted, dict) and "$redacted" in redacted else None


def _max_tokens(started: RequestStarted, blobs: Mapping[str, Digest]) -> int | None:
    if started.stream_kind == "SCORE":
        scored = _digest(started.payload.get("scored"), blobs)
        return scored.size if isinstance(scored.end, tuple) else None
    default = 32 if started.stream_kind == "GEN" else None
    most = next((started.payload[name] for name in _MAX_TOKENS if name in started.payload), default)
    return most if type(most) is int else None


def _constraint(payload: Mapping[str, object]) -> str | None:
    for name in _CONSTRAINTS:
        value = payload.get(name)
        if isinstance(value, dict):
            kind = str(value.get("type") or next(iter(value), name))
            if kind != "text":
                return kind
        elif value is not None:
            return name.removeprefix("guided_")
    return None


def parameters(payload: Mapping[str, object], biased: int, constraint: str | None) -> str:
    """A few words for the table: `t=.7 seed=1 bias 10 json_schema`."""
    words = [f"{_SHORT[name]}={_number(value)}" for name, value in payload.items() if name in _SHORT]
    words += [f"bias {biased}"] if biased else []
    words += [constraint] if constraint else []
    return " ".join(words) or "-"


def _number(value: object) -> str:
    text = f"{value:g}" if isinstance(value, int | float) else str(value)
    return text[1:] if text.startswith("0.") else text
