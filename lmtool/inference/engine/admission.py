"""Makes a stream of a request, or refuses it: validation, sampling settings, its constraint's compilation."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from typing import TYPE_CHECKING

from lmtool.core.errors import ConstraintError, RequestError
from lmtool.core.interfaces import client_of
from lmtool.core.logits_processors import Processors
from lmtool.core.types import GenerateRequest, ModelInfo, SamplingParams, ScoreRequest
from lmtool.inference.engine.plan import Sequence
from lmtool.inference.engine.request_checks import clamp_logprobs, validate_generate, validate_score
from lmtool.inference.engine.sampling_row import Bias
from lmtool.inference.engine.speculation import Drafter
from lmtool.inference.engine.stream import Stream

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Hashable
    from concurrent.futures import Future

    import torch

    from lmtool.core.interfaces import Guide, GuideCompiler, Sink
    from lmtool.inference.engine.config import EngineConfig

_SEED_BITS = 53
"""Of a seed that is drawn here: clients are told it, and the numbers of many JSON readers are doubles."""


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
        sequence = Sequence(
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
        sequence = Sequence(
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
        sequence = Sequence(
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
    """The request's own, behind what counts as generated. Raises `RequestError` where they cannot be, and the like."""
    if not request.logits_processors:
        return None
    processors = Processors(request.logits_processors)
    if request.generated:
        processors.resume(request.generated)
    return processors


def _validate_stops(generated: tuple[int, ...], stop_ids: frozenset[int]) -> None:
    """Raise `RequestError` where a stream could not have gone on: behind an id that ends it."""
    for index, token in enumerate(generated[:-1]):
        if token in stop_ids:
            raise RequestError(
                f"generated has {token} at index {index}, an id that ends the stream, and goes on behind it",
                "send the ids of one stream, as they came",
            )


def _client(request: GenerateRequest | ScoreRequest, sink: Sink) -> Hashable:
    """Who takes turns with others for a stream: whom a balancer names, else whose sink it is."""
    return ("client", request.client) if request.client else client_of(sink)
