"""One running request: how it is made or refused, its sampling state, its outputs, and its caller's handle."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from lmtool.core.errors import ConstraintError, ConstraintTooComplexError, RequestError, ServerError
from lmtool.core.interfaces import client_of
from lmtool.core.logits_processors import Processors
from lmtool.core.streams import failure
from lmtool.core.types import (
    FinishReason,
    GenerateRequest,
    ModelInfo,
    SamplingParams,
    ScoreRequest,
    StreamId,
    TokenOutput,
    Usage,
)
from lmtool.inference.engine.plan import Sequence as TokenSequence
from lmtool.inference.engine.request_checks import clamp_logprobs, validate_generate, validate_score
from lmtool.inference.engine.sampling_result import SampledToken
from lmtool.inference.engine.sampling_row import Bias, Row, RowState
from lmtool.inference.engine.speculation import Drafter

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Hashable, Sequence
    from concurrent.futures import Future

    import torch
    from torch import Tensor

    from lmtool.core.errors import LmtoolError
    from lmtool.core.interfaces import Guide, GuideCompiler, QueuePlace, Sink
    from lmtool.inference.engine.config import EngineConfig


Control: TypeAlias = Literal["cancel", "pause", "resume"]


@dataclass(slots=True, eq=False)
class Stream:
    """A sequence with its sink and sampling state. Used by the engine thread alone once submitted."""

    stream_id: StreamId
    sink: Sink
    loop: asyncio.AbstractEventLoop
    sequence: TokenSequence
    sampling: SamplingParams
    top_logprobs: int | None
    seed: int
    tells_seed: bool = False
    """True if its first output bears the seed."""
    bias: Bias | None = None
    sent: int = 0
    """Tokens sent so far, generated or scored."""
    counts: dict[int, int] = field(default_factory=dict)
    """Generated id to how often, kept up to date only with a penalty that needs it."""
    pending_guide: Future[Guide] | None = None
    """Compilation of the request's constraint, also when done; None where it has none."""
    guide: Guide | None = None
    """The constraint's state after the text so far."""
    mask: Tensor | None = None
    """[1, ceil(V / 32)] int32, what may come next, where it was prefetched, see `MaskFiller.prefetch`."""
    pending_mask: Future[Tensor] | None = None
    """The last prefetch of a mask, also when done; None where there was none."""
    processors: Processors | None = None
    """Change its logits before sampling; None where the request names none."""
    eos: frozenset[int] = frozenset()
    """The model's ids that end a text."""
    jump_forward: bool = True
    """True if ids that the constraint forces are appended without sampling."""
    forced_tokens: list[int] = field(default_factory=list)
    """Such ids, not yet part of the sequence."""
    drafter: Drafter | None = None
    """Guesses what follows; None without speculation."""
    began_at: float | None = None
    """Time at which its first step was planned, by `time.perf_counter`."""
    logprob_ids: tuple[int, ...] = ()
    """Ids whose log-probabilities each token has, in place of the most likely ones."""
    row_state: RowState = field(init=False)
    """State shared by its rows from step to step."""
    _lasting_row: Row | None = None
    """Row of `next_row`, if only its position changes from step to step."""
    _counts_tokens: bool = field(init=False)
    """True if a penalty needs `counts`."""
    _ids_known: set[int] = field(default_factory=set)
    """The different ids of the sequence's first tokens, kept up to date only with a penalty that needs them."""
    _tokens_known: int = 0
    """Number of these tokens."""

    def __post_init__(self) -> None:
        self.row_state = RowState(self.sequence.tokens, self.sequence.prompt_length)
        self._counts_tokens = self.sampling.presence_penalty != 0 or self.sampling.frequency_penalty != 0

    def rows(self, positions: range, allowed: Tensor | None = None) -> list[Row]:
        """The sampler's rows for the logits at these positions of the stream.

        allowed: [1 + d, ceil(V / 32)], see `Row`: what may follow the known ids, and each beginning of the draft.
        """
        tokens = self.sequence.tokens
        known, rows = len(tokens), []
        for position in positions:
            index = position + 1
            if index < known:
                row = Row(target=tokens[index], top_logprobs=self.top_logprobs, logprob_ids=self.logprob_ids)
            else:
                row = self._sampling_row(index, None if allowed is None else allowed[index - known])
            rows.append(row)
        return rows

    def next_row(self, allowed: Tensor | None, ahead: int = 0) -> Row:
        """`rows` for the last id alone, from which the next one is sampled: the same row from step to step.

        allowed: [1, ceil(V / 32)]. ahead: how many ids are sampled, but not read yet. A new row is made where more than
        its position changes.
        """
        sequence, row = self.sequence, self._lasting_row
        index = len(sequence.tokens) + ahead
        if row is not None:
            row.position = index
            return row
        row = self._sampling_row(index, None if allowed is None else allowed[0])
        lasts = self.guide is None and self.processors is None and not row.barred and not row.penalises
        if lasts and index - sequence.prompt_length >= self.sampling.min_tokens:
            self._lasting_row = row
        return row

    def _sampling_row(self, index: int, allowed: Tensor | None) -> Row:
        """The row from which the id at this index of the stream is sampled."""
        params, sequence = self.sampling, self.sequence
        row = Row(params, None, self.bias, self.top_logprobs, self.seed, index)
        before = index - sequence.prompt_length
        if self.guide is not None or before < params.min_tokens:
            row.barred = self._barred(before, allowed)
        if params.repetition_penalty != 1:
            row.known_ids = self._known_ids()
        if self._counts_tokens:
            pending = sequence.tokens[len(sequence.tokens) - sequence.forced_count :]
            row.counts = Counter(self.counts) + Counter(pending) if pending else self.counts
        if self.processors is not None:
            row.processors, row.output = self.processors, sequence.tokens[sequence.prompt_length : index]
        row.allowed, row.logprob_ids, row.state = allowed, self.logprob_ids, self.row_state
        return row

    def _known_ids(self) -> set[int]:
        """The different ids of the sequence."""
        tokens = self.sequence.tokens
        self._ids_known.update(tokens[self._tokens_known :])
        self._tokens_known = len(tokens)
        return self._ids_known

    def _barred(self, before: int, allowed: Tensor | None) -> frozenset[int]:
        """Ids that may not be sampled after `before` tokens; none where the constraint allows nothing else."""
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
    def samples_ahead(self) -> bool:
        """True if its next row is known, but for what penalties count, before the id that comes first is."""
        return self.pending_guide is None and self.processors is None

    @property
    def draftable(self) -> bool:
        """True if sampling after a draft needs nothing that only a step of its own would know."""
        params = self.sampling
        ends_late = self.pending_guide is not None and (params.min_tokens > 0 or params.ignore_eos)
        if self.processors is not None:  # they may depend on anything
            return False
        return not self._counts_tokens and params.repetition_penalty == 1 and not ends_late

    def propose(self, share: float) -> list[int]:
        """Guessed ids, none of which ends the stream or breaks its constraint. share: see `Drafter`."""
        sequence = self.sequence
        if self.drafter is None or sequence.forced_count or self.mask is not None:
            return []
        draft = self.drafter.propose(sequence.tokens, share, sequence.max_length - 1 - len(sequence.tokens))
        if not draft:
            return draft
        draft = list(takewhile(lambda token: token not in sequence.stop_ids, draft))
        return draft[: self.guide.accepts(draft)] if self.guide is not None else draft

    def accept(
        self, tokens: Sequence[SampledToken | None], model: str
    ) -> tuple[list[SampledToken], LmtoolError | None]:
        """The valid tokens, in order, with the constraint advanced over them; and why the stream cannot continue.

        tokens: one for each of the rows. After the first that differs from the draft none is valid. A bad row after
        a draft is left to the next step, which computes it as if nothing had been drafted. model: its name, for errors.
        """
        sequence = self.sequence
        checked = self.guide is not None or self.processors is not None
        if len(tokens) == 1 and not checked and not sequence.draft and (one := tokens[0]) is not None:
            return [one], None  # as nearly all are; what follows gives the same
        good: list[SampledToken] = []
        for sampled in tokens:
            if sampled is None:
                break
            good.append(sampled)
        if tokens and checked and (problem := self._error()):
            return [], problem
        if tokens and not good:
            return [], self._no_token(model)
        if sequence.scoring:
            return good, None if len(good) == len(tokens) else self._no_token(model)
        drafted = len(sequence.draft)
        if len(good) > 1:  # the first one always is
            good = good[: sequence.count_valid([one.token for one in good])]
        if drafted and self.drafter is not None:
            self.drafter.learn(drafted, len(good) - 1, len(sequence.tokens) + len(good))
        return (good, None) if self.guide is None else self._advance_guide(good, self.guide)

    def _error(self) -> LmtoolError | None:
        """Error of the constraint or of a processor, after which nothing may be sampled."""
        problem = None if self.guide is None else self.guide.error()
        return problem or (None if self.processors is None else self.processors.error)

    def _no_token(self, model: str) -> LmtoolError:
        if self.guide is not None:
            return ConstraintError("the constraint and logit_bias together leave no token", "relax one of them")
        return ServerError(f"the model {model} gave logits that are not numbers")

    def _advance_guide(self, good: list[SampledToken], guide: Guide) -> tuple[list[SampledToken], LmtoolError | None]:
        """Advance the constraint over sampled tokens, up to where a step without a draft would have differed."""
        forced = min(self.sequence.forced_count, len(good))  # the constraint has advanced over these already
        for place in range(forced, len(good)):
            token = good[place].token
            early_end = token in self.sequence.stop_ids and not guide.may_end()
            if place > forced and (self.forced_tokens or early_end):
                return good[:place], None
            guide.advance(token)
            if problem := guide.error():
                return good[:place], problem
            self.forced_tokens = self._forced_next()
        return good, None

    @property
    def resumes(self) -> bool:
        """True if it has sent nothing yet and continues after ids that count as generated."""
        return self.sequence.generates and not self.sent and len(self.sequence.tokens) > self.sequence.prompt_length

    def advance_over_generated(self) -> LmtoolError | None:
        """Advance the constraint over the ids that count as generated; why that is not possible, or None."""
        assert self.guide is not None
        for index, token in enumerate(self.sequence.tokens[self.sequence.prompt_length :]):
            self.guide.advance(token)
            problem = self.guide.error()
            if isinstance(problem, ConstraintTooComplexError):
                return problem
            if problem is not None:
                return RequestError(
                    f"generated has {token} at index {index}, which the constraint forbids there",
                    "send the ids of one stream under the same constraint, as they came",
                )
        self.forced_tokens = self._forced_next()
        return None

    def _forced_next(self) -> list[int]:
        """The ids that the constraint forces now, up to one that ends the stream."""
        forced = self.guide.forced() if self.guide is not None and self.jump_forward else []
        return list(takewhile(lambda token: token not in self.sequence.stop_ids, forced))

    def take_forced_tokens(self) -> list[TokenOutput]:
        """Append the forced ids to the sequence; their outputs, as far as they need no logits.

        A forced id is the only one that can be sampled, so that its logprob is 0; only `raw` looks at the model's own
        logits, and waits for them.
        """
        sequence, room = self.sequence, self.sequence.max_length - len(self.sequence.tokens)
        ids, self.forced_tokens = self.forced_tokens[:room], []
        for token in ids:
            assert self.guide is not None
            self.guide.advance(token)
        sequence.tokens += ids
        if self.sampling.logprobs_mode == "raw":
            sequence.forced_count += len(ids)
            return []
        full = len(sequence.tokens) >= sequence.max_length
        return [
            self.output(SampledToken(token, 0.0, ((token, 0.0),)), "length" if full and place == len(ids) else None)
            for place, token in enumerate(ids, start=1)
        ]

    def output(self, sampled: SampledToken, reason: FinishReason | None) -> TokenOutput:
        """The output of one token; the last one if there is a reason."""
        seed = self._seed_to_tell if self.tells_seed else None
        self.sent += 1
        token, logprob, top = sampled
        if self._counts_tokens:
            self.counts[token] = self.counts.get(token, 0) + 1
        if reason is None and seed is None:  # as nearly all are: a keyword takes as long as four fields
            return TokenOutput(self.stream_id, token, logprob, top)
        if reason is None:
            return TokenOutput(self.stream_id, token, logprob, top, seed=seed)
        own_stop = reason == "stop" and token not in self.eos and token in self.sampling.stop_token_ids
        return TokenOutput(
            self.stream_id,
            token,
            logprob,
            top,
            finish_reason=reason,
            usage=self.usage(),
            warnings=() if self.guide is None else self.guide.warnings,
            stopped_by=token if own_stop else None,
            seed=seed,
        )

    @property
    def _seed_to_tell(self) -> int | None:
        return self.seed if self.tells_seed and not self.sent else None

    def ending(self, reason: FinishReason) -> TokenOutput:
        """An ending without a token."""
        return TokenOutput(self.stream_id, finish_reason=reason, usage=self.usage(), seed=self._seed_to_tell)

    def failure(self, problem: LmtoolError) -> TokenOutput:
        """An ending by an error."""
        return failure(self.stream_id, problem)

    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(self.sequence.prompt_length, self.sent, self.sequence.cached_tokens or 0)


class Handle:
    """The caller's handle on a running stream, an `interfaces.StreamHandle`; takes effect before the next step."""

    def __init__(
        self, control: Callable[[Control], object], place: Callable[[], QueuePlace | None], stream: Stream
    ) -> None:
        self._control = control
        self.queue_place = place
        """Queue position of the stream, see `interfaces.Queued`."""
        self._stream = stream

    def began_at(self) -> float | None:
        """Time at which its first step was planned, see `interfaces.Timed`."""
        return self._stream.began_at

    def cancel(self) -> None:
        """End the stream within one step."""
        self._control("cancel")

    def pause(self) -> None:
        """Produce nothing more until `resume`; the stream stays admitted."""
        self._control("pause")

    def resume(self) -> None:
        """Go on after `pause`."""
        self._control("resume")


_SEED_BITS = 53
"""Size of a seed drawn here: it is sent to clients, and many JSON readers parse numbers as doubles."""


class StreamFactory:
    """Makes streams over one model. Called in any event loop, one at a time."""

    def __init__(self, info: ModelInfo, device: torch.device, config: EngineConfig) -> None:
        self.guides: GuideCompiler | None = None
        """Compiles constraints; None refuses them."""
        self._info = info
        self._device = device
        self._config = config
        self._numbers = itertools.count(1)

    def create(self, request: GenerateRequest | ScoreRequest, sink: Sink, loop: asyncio.AbstractEventLoop) -> Stream:
        """The stream; its constraint is being compiled meanwhile. Raises `RequestError`."""
        if isinstance(request, ScoreRequest):
            return self._score(request, sink, loop)
        prompt = validate_generate(request, self._info)
        if request.prefill_only:
            return self._prefill(request, prompt, sink, loop)
        generated = request.generated
        sampling = request.sampling
        context = self._info.context_length or len(prompt) + sampling.max_tokens
        processors = _processors(request)
        eos_ends = request.constraint is not None or not sampling.ignore_eos  # it allows eos where its text may end
        eos = frozenset(self._info.eos_token_ids)
        sequence = TokenSequence(
            number=next(self._numbers),
            tokens=[*prompt, *generated],
            prompt_length=len(prompt),
            max_length=min(len(prompt) + sampling.max_tokens, context),
            stop_ids=eos.union(sampling.stop_token_ids) if eos_ends else frozenset(sampling.stop_token_ids),
            recompute_to=len(prompt) + len(generated) - 1 if generated else 0,
            priority=request.priority,
            cache_salt=request.cache_salt,
            client=_client(request, sink),
            awaiting_constraint=request.constraint is not None or request.thought_marks is not None,
        )
        _validate_stops(generated, sequence.stop_ids)
        stream = Stream(
            request.stream_id,
            sink,
            loop,
            sequence,
            sampling,
            clamp_logprobs(sampling.top_logprobs, self._info, self._config.max_logprobs),
            seed=secrets.randbits(_SEED_BITS) if sampling.seed is None else sampling.seed,
            bias=Bias.of(sampling.logit_bias, self._device),
            tells_seed=request.resumable and (processors is None or processors.resumable),
            counts=Counter(generated),
            pending_guide=self._compile(request),
            logprob_ids=request.logprob_token_ids,
            processors=processors,
            eos=eos,
            jump_forward=self._config.jump_forward and not (processors is not None and processors.bars_ids),
        )
        stream.drafter = Drafter() if self._config.speculation and stream.draftable else None
        return stream

    def _compile(self, request: GenerateRequest) -> Future[Guide] | None:
        if request.constraint is None and request.thought_marks is None:
            return None
        if self.guides is None and request.constraint is None:
            raise RequestError("this server cannot end a thought at a budget", "leave budget and effort out")
        if self.guides is None:
            raise ConstraintError("this server enforces no constraints", "leave the constraint out")
        if request.thought_marks is None:
            return self.guides.compile(request.constraint)
        return self.guides.compile(request.constraint, request.thought_marks)

    def _prefill(
        self, request: GenerateRequest, prompt: list[int], sink: Sink, loop: asyncio.AbstractEventLoop
    ) -> Stream:
        sequence = TokenSequence(
            number=next(self._numbers),
            tokens=prompt,
            prompt_length=len(prompt),
            max_length=len(prompt) + 1,
            prefill_only=True,
            priority=request.priority,
            cache_salt=request.cache_salt,
            client=_client(request, sink),
        )
        return Stream(request.stream_id, sink, loop, sequence, SamplingParams(), None, seed=0)

    def _score(self, request: ScoreRequest, sink: Sink, loop: asyncio.AbstractEventLoop) -> Stream:
        prompt, scored = validate_score(request, self._info)
        sequence = TokenSequence(
            number=next(self._numbers),
            tokens=prompt + scored,
            prompt_length=len(prompt),
            max_length=len(prompt) + len(scored),
            scoring=True,
            cache_salt=request.cache_salt,
            client=_client(request, sink),
        )
        top = request.top_logprobs
        top = None if top is None else clamp_logprobs(top, self._info, self._config.max_logprobs)
        return Stream(request.stream_id, sink, loop, sequence, SamplingParams(), top, seed=0)


def _processors(request: GenerateRequest) -> Processors | None:
    """The request's own, after what counts as generated. Raises `RequestError` where they cannot resume there."""
    if not request.logits_processors:
        return None
    processors = Processors(request.logits_processors)
    if request.generated:
        processors.resume(request.generated)
    return processors


def _validate_stops(generated: tuple[int, ...], stop_ids: frozenset[int]) -> None:
    """Raise `RequestError` where a stream could not have continued: after an id that ends it."""
    for index, token in enumerate(generated[:-1]):
        if token in stop_ids:
            raise RequestError(
                f"generated has {token} at index {index}, an id that ends the stream, and goes on behind it",
                "send the ids of one stream, as they came",
            )


def _client(request: GenerateRequest | ScoreRequest, sink: Sink) -> Hashable:
    """Client that a stream is scheduled for: the one named by a balancer, else the owner of the sink."""
    return ("client", request.client) if request.client else client_of(sink)
