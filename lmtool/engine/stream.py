"""One running request: whose it is, how it samples, and what its outputs look like."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from lmtool.engine.drawing import Choice
from lmtool.engine.sampler import Bias, Row
from lmtool.errors import ConstraintError, ServerError
from lmtool.types import FinishReason, SamplingParams, StreamId, TokenOutput, Usage

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from concurrent.futures import Future

    from torch import Tensor

    from lmtool.engine.sequence import Sequence as TokenSequence
    from lmtool.engine.speculation import Drafter
    from lmtool.errors import LmtoolError
    from lmtool.interfaces import Guide, Sink
    from lmtool.logits_processors import Processors


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
    mask: Tensor | None = None
    """[1, ceil(V / 32)] int32, what may come next, where that was found out ahead, see `Masks.look_ahead`."""
    looking: Future[Tensor] | None = None
    """That mask on its way, for ever after too; None where none was."""
    processors: Processors | None = None
    """Change its logits before it draws; None where the request names none."""
    eos: frozenset[int] = frozenset()
    """The model's ids that end a text."""
    jumps: bool = True
    """Whether ids that must follow by the constraint are taken without being drawn."""
    ahead: list[int] = field(default_factory=list)
    """Such ids, not taken yet."""
    drafter: Drafter | None = None
    """Guesses what follows; None where nothing is guessed."""

    def rows(self, positions: range, allowed: Tensor | None = None) -> list[Row]:
        """What is wanted from the logits at these positions of the stream.

        allowed: [1 + d, ceil(V / 32)], see `Row`: what may follow the known ids, and each beginning of the draft.
        """
        tokens, top = self.sequence.tokens, self.top_logprobs
        known = len(tokens)
        return [
            Row(target=tokens[position + 1], top_logprobs=top)
            if position + 1 < known
            else self._drawn(position + 1, None if allowed is None else allowed[position + 1 - known])
            for position in positions
        ]

    def _drawn(self, index: int, allowed: Tensor | None) -> Row:
        """The row from which the id at this place of the stream is drawn."""
        params, sequence = self.sampling, self.sequence
        pending = sequence.tokens[len(sequence.tokens) - sequence.forced :]
        return Row(
            params=params,
            bias=self.bias,
            top_logprobs=self.top_logprobs,
            seed=self.seed,
            position=index,
            barred=self._barred(self.sent + index - len(sequence.tokens) + sequence.forced, allowed),
            seen=set(sequence.tokens) if params.repetition_penalty != 1 else (),
            counts=Counter(self.counts) + Counter(pending) if self._counts and pending else self.counts,
            output=sequence.tokens[sequence.prompt_length : index] if self.processors is not None else (),
            processors=self.processors,
            allowed=allowed,
        )

    @property
    def _counts(self) -> bool:
        return self.sampling.presence_penalty != 0 or self.sampling.frequency_penalty != 0

    def _barred(self, before: int, allowed: Tensor | None) -> frozenset[int]:
        """Ids that may not be drawn after so many tokens. A constraint that only they can go on from is stronger."""
        barred = self.eos if self.guide is not None and self.sampling.ignore_eos else frozenset()
        if before < self.sampling.min_tokens:
            barred = self.sequence.stop_ids
        if self.guide is None or allowed is None or not barred:
            return barred
        left = allowed.numpy().view(np.uint32).copy()
        for token in barred:
            left[token // 32] &= ~np.uint32(1 << token % 32)
        return barred if left.any() else frozenset()

    @property
    def can_be_drafted(self) -> bool:
        """Whether what is drawn behind a draft depends on nothing that only a step of its own would know."""
        params = self.sampling
        ends_late = self.compiling is not None and (params.min_tokens > 0 or params.ignore_eos)
        if self.processors is not None:  # nobody knows on what they depend
            return False
        return not self._counts and params.repetition_penalty == 1 and not ends_late

    def propose(self, share: float) -> list[int]:
        """Ids that may well follow, none of which ends the stream or breaks its constraint. share: see `Drafter`."""
        sequence = self.sequence
        if self.drafter is None or sequence.forced or self.mask is not None:
            return []
        draft = self.drafter.propose(sequence.tokens, share, sequence.max_length - 1 - len(sequence.tokens))
        draft = list(takewhile(lambda token: token not in sequence.stop_ids, draft))
        return draft[: self.guide.accepts(draft)] if draft and self.guide is not None else draft

    def take(self, choices: Sequence[Choice | None], model: str) -> tuple[list[Choice], LmtoolError | None]:
        """The choices that hold, in order, which the constraint then has followed; and why the stream cannot go on.

        choices: one for each of the rows. Behind the first that its draft did not foretell nothing holds. What is
        wrong in a row behind a draft is left to the next step, which computes it as if nothing had been drafted.
        model: its name, for people.
        """
        if choices and (problem := self._error()) is not None:
            return [], problem
        good = [choice for choice in takewhile(lambda choice: choice is not None, choices) if choice is not None]
        if choices and not good:
            return [], self._no_choice(model)
        if self.sequence.scored:
            return good, None if len(good) == len(choices) else self._no_choice(model)
        drafted = len(self.sequence.draft)
        good = good[: self.sequence.foretold([choice.token for choice in good])]
        if drafted and self.drafter is not None:
            self.drafter.learn(drafted, len(good) - 1, len(self.sequence.tokens) + len(good))
        return self._follow(good)

    def _error(self) -> LmtoolError | None:
        """Why nothing may be drawn any more."""
        problem = None if self.guide is None else self.guide.error()
        return problem or (None if self.processors is None else self.processors.error)

    def _no_choice(self, model: str) -> LmtoolError:
        if self.guide is not None:
            return ConstraintError("the constraint and logit_bias together leave no token", "relax one of them")
        return ServerError(f"the model {model} gave logits that are not numbers")

    def _follow(self, good: list[Choice]) -> tuple[list[Choice], LmtoolError | None]:
        """Let the constraint follow what was drawn, up to where a step without a draft would have gone another way."""
        if self.guide is None:
            return good, None
        forced = min(self.sequence.forced, len(good))  # the constraint has followed these already
        for place in range(forced, len(good)):
            token = good[place].token
            early_end = token in self.sequence.stop_ids and not self.guide.may_end()
            if place > forced and (self.ahead or early_end):
                return good[:place], None
            self.guide.advance(token)
            if problem := self.guide.error():
                return good[:place], problem
            forced_next = self.guide.forced() if self.jumps else []
            self.ahead = list(takewhile(lambda ahead: ahead not in self.sequence.stop_ids, forced_next))
        return good, None

    def jump(self) -> list[TokenOutput]:
        """Take the ids that must come next as known; their outputs, as far as they need no logits.

        A forced id is the only one that can be drawn, so that its logprob is 0; only `raw` looks at the model's own
        logits, and waits for them.
        """
        sequence, room = self.sequence, self.sequence.max_length - len(self.sequence.tokens)
        ids, self.ahead = self.ahead[:room], []
        for token in ids:
            assert self.guide is not None
            self.guide.advance(token)
        sequence.tokens += ids
        if self.sampling.logprobs_mode == "raw":
            sequence.forced += len(ids)
            return []
        full = len(sequence.tokens) >= sequence.max_length
        return [
            self.output(Choice(token, 0.0, ((token, 0.0),)), "length" if full and place == len(ids) else None)
            for place, token in enumerate(ids, start=1)
        ]

    def output(self, choice: Choice, reason: FinishReason | None) -> TokenOutput:
        """The event for one token; the last one if there is a reason."""
        self.sent += 1
        if self._counts:
            self.counts[choice.token] = self.counts.get(choice.token, 0) + 1
        return TokenOutput(
            self.stream_id,
            choice.token,
            choice.logprob,
            choice.top_logprobs,
            finish_reason=reason,
            usage=None if reason is None else self.usage(),
            warnings=() if reason is None or self.guide is None else self.guide.warnings,
            stopped_by=choice.token if reason == "stop" and self._stops(choice.token) else None,
        )

    def _stops(self, token: int) -> bool:
        """Whether a token ends the stream because the request says so."""
        return token not in self.eos and token in self.sampling.stop_token_ids

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
