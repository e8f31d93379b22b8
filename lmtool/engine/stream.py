"""One running request: whose it is, how it samples, and what its outputs look like."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.engine.sampler import Bias, Choice, Row
from lmtool.errors import ConstraintError, ServerError
from lmtool.types import FinishReason, SamplingParams, StreamId, TokenOutput, Usage

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from concurrent.futures import Future

    from torch import Tensor

    from lmtool.engine.sequence import Sequence as TokenSequence
    from lmtool.errors import LmtoolError
    from lmtool.ports import Guide, Sink


@dataclass(slots=True, eq=False)
class Stream:
    """A sequence with its owner. Used by the engine thread alone once submitted."""

    stream_id: StreamId
    sink: Sink
    loop: asyncio.AbstractEventLoop
    sequence: TokenSequence
    sampling: SamplingParams
    top_logprobs: int | None
    seed: int
    bias: Bias | None = None
    sent: int = 0
    """Tokens sent so far, generated or scored."""
    counts: dict[int, int] = field(default_factory=dict)
    """Generated id to how often; kept only where a penalty needs it."""
    compiling: Future[Guide] | None = None
    """The request's constraint on its way, for ever after too; None where it has none."""
    guide: Guide | None = None
    """The constraint's place in the text so far."""

    def rows(self, positions: range, allowed: Tensor | None = None) -> list[Row]:
        """What is wanted from the logits at these positions of the stream. allowed: see `Row`."""
        tokens = self.sequence.tokens
        if self.sequence.scored:
            return [Row(target=tokens[position + 1], top_logprobs=self.top_logprobs) for position in positions]
        params = self.sampling
        row = Row(
            params=params,
            bias=self.bias,
            top_logprobs=self.top_logprobs,
            seed=self.seed,
            position=len(tokens),
            barred=self._barred(),
            seen=set(tokens) if params.repetition_penalty != 1 else (),
            counts=self.counts,
            allowed=allowed,
        )
        return [row] * len(positions)

    def _barred(self) -> frozenset[int]:
        """Ids that may not be drawn now. A constraint that nothing but eos can go on from is stronger."""
        early = self.sent < self.sampling.min_tokens
        if self.guide is None:
            return self.sequence.stop_ids if early else frozenset()
        bars = (early or self.sampling.ignore_eos) and not self.guide.ended()
        return self.sequence.stop_ids if bars else frozenset()

    def take(self, choices: Sequence[Choice | None], model: str) -> LmtoolError | None:
        """Let the constraint follow what was drawn; why the stream cannot go on, if so. model: its name, for people."""
        problem = None if self.guide is None or not choices else self.guide.error()
        if problem is not None:
            return problem
        if None in choices and self.guide is not None:
            return ConstraintError("the constraint and logit_bias together leave no token", "relax one of them")
        if None in choices:
            return ServerError(f"the model {model} gave logits that are not numbers")
        for choice in choices if self.guide is not None else ():
            assert self.guide is not None
            assert choice is not None
            self.guide.advance(choice.token)
            problem = problem or self.guide.error()
        return problem

    def output(self, choice: Choice, reason: FinishReason | None) -> TokenOutput:
        """The event for one token; the last one if there is a reason."""
        self.sent += 1
        if self.sampling.presence_penalty or self.sampling.frequency_penalty:
            self.counts[choice.token] = self.counts.get(choice.token, 0) + 1
        return TokenOutput(
            self.stream_id,
            choice.token,
            choice.logprob,
            choice.top_logprobs,
            finish_reason=reason,
            usage=None if reason is None else self.usage(),
            warnings=() if reason is None or self.guide is None else self.guide.warnings,
        )

    def ending(self, reason: FinishReason) -> TokenOutput:
        """An ending without a token."""
        return TokenOutput(self.stream_id, finish_reason=reason, usage=self.usage())

    def failure(self, problem: LmtoolError) -> TokenOutput:
        """An ending by an error."""
        return failure(self.stream_id, problem)

    def usage(self) -> Usage:
        """What the stream has consumed so far."""
        return Usage(self.sequence.prompt_length, self.sent, self.sequence.reused or 0)


def failure(stream_id: StreamId, problem: LmtoolError) -> TokenOutput:
    """The event by which a stream ends when it cannot go on."""
    sentence = "; ".join((problem.message, *problem.hints))
    return TokenOutput(stream_id, error=sentence, error_code=problem.code)


def draw_seed(wanted: int | None) -> int:
    """The seed asked for, or a fresh one."""
    return secrets.randbits(63) if wanted is None else wanted
