"""Which requests and outputs of a trace a filter lets through, told while the trace is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.logprobs.distribution import Distribution
from lmtool.trace.conversation import Began

if TYPE_CHECKING:
    from lmtool.logprobs.distribution import Rank
    from lmtool.trace.conversation import Conversation, Produced, Step
    from lmtool.trace.filter import Filter


@dataclass(frozen=True, slots=True)
class StepFacts:
    """A request or an output as a filter asks about it; see `filter.Facts`."""

    sid: str
    conn: int
    model: str | None
    kind: str
    state: str
    p: float | None = None
    bits: float | None = None
    rank: Rank | None = None
    gap: float | None = None
    tok: int | None = None
    text: str | None = None


@dataclass(slots=True)
class _Running:
    kind: str
    model: str | None
    last: float | None = None
    """When its last token came."""
    top_logprobs: int | None = None
    """Alternatives asked for; None where that is not known."""
    gap: float | None = None
    """Milliseconds between the last two times at which tokens came."""


class Selection:
    """Follows the steps of one conversation; `wants` must be called with each, in order.

    The state of a stream is what is known so far: `state:error` finds the output that failed, not those before it.
    """

    def __init__(self, chosen: Filter, conversation: Conversation) -> None:
        """Select by a parsed expression; conversation: knows what ids mean."""
        self._filter = chosen
        self._conversation = conversation
        self._running: dict[str, _Running] = {}

    def wants(self, step: Step) -> bool:
        """Whether the filter holds for this step. For a request: whatever its tokens will be."""
        facts = self._request(step) if isinstance(step, Began) else self._output(step)
        return self._filter.token(facts)

    def _request(self, began: Began) -> StepFacts:
        kind = {"GENERATE": "gen", "SCORE": "score"}.get(began.kind, "chat" if "chat" in began.kind else "text")
        asked = began.payload.get("top_logprobs", 1 if kind == "gen" else None)
        self._running[began.stream] = _Running(
            kind, began.model, top_logprobs=asked if isinstance(asked, int) else None
        )
        return StepFacts(began.stream, _connection(began.stream), began.model, kind, "waiting")

    def _output(self, step: Produced) -> StepFacts:
        stream, output = self._running.setdefault(step.stream, _Running("gen", None)), step.output
        if output.token is not None or output.text:
            if stream.last is not None and step.time > stream.last:
                stream.gap = 1000 * (step.time - stream.last)
            stream.last = step.time
        if output.last:
            del self._running[step.stream]
        text = output.text
        if text is None and output.token is not None:
            text = self._conversation.text_of(output.token)
        logprob = output.logprob
        known = logprob is not None and math.isfinite(logprob)
        return StepFacts(
            step.stream,
            _connection(step.stream),
            stream.model,
            stream.kind,
            "error" if output.error is not None else output.finish_reason or "running",
            math.exp(min(logprob, 0.0)) if known and logprob is not None else None,
            -logprob / math.log(2) if known and logprob is not None else None,
            _rank(step, stream.top_logprobs),
            stream.gap,
            output.token,
            text,
        )


def _connection(label: str) -> int:
    number = label.partition("/")[0]
    return int(number) if number.isdecimal() else 0


def _rank(step: Produced, asked: int | None) -> Rank | None:
    """Rank of the token; None where nothing is known of it."""
    output = step.output
    found = sorted(output.top_logprobs or (), key=lambda one: -one[1])
    return Distribution.of(output.token, output.logprob, found, asked).rank if found else None
