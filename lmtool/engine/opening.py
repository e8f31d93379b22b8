"""Makes a stream of a request, or refuses it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from lmtool.engine.request_check import check_generate, check_score, clamped
from lmtool.engine.sampler import Bias
from lmtool.engine.sequence import Sequence
from lmtool.engine.speculation import Drafter
from lmtool.engine.stream import Stream, draw_seed
from lmtool.errors import ConstraintError
from lmtool.logits_processors import Processors
from lmtool.types import GenerateRequest, ModelInfo, SamplingParams, ScoreRequest

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    import torch

    from lmtool.interfaces import Guide, GuideCompiler, Sink


class Opening:
    """Opens streams over one model. Called in any event loop, one at a time."""

    def __init__(
        self, info: ModelInfo, device: torch.device, *, drafts: bool, jumps: bool, max_logprobs: int | None = None
    ) -> None:
        """drafts: guess ahead where that is possible. jumps: take what a constraint forces without drawing it.

        max_logprobs: see `EngineConfig`.
        """
        self.guides: GuideCompiler | None = None
        """Compiles constraints; None refuses them."""
        self._info = info
        self._device = device
        self._drafts = drafts
        self._jumps = jumps
        self._max_logprobs = max_logprobs
        self._numbers = itertools.count(1)

    def open(self, request: GenerateRequest | ScoreRequest, sink: Sink, loop: asyncio.AbstractEventLoop) -> Stream:
        """The stream; its constraint is being compiled meanwhile. Raises `RequestError`."""
        if isinstance(request, ScoreRequest):
            return self._score(request, sink, loop)
        prompt = check_generate(request, self._info)
        sampling = request.sampling
        context = self._info.context_length or len(prompt) + sampling.max_tokens
        processors = Processors(request.logits_processors) if request.logits_processors else None
        compiling = self._compile(request)
        eos_ends = compiling is not None or not sampling.ignore_eos  # a constraint allows eos where its text may end
        eos = frozenset(self._info.eos_token_ids)
        sequence = Sequence(
            number=next(self._numbers),
            tokens=prompt,
            prompt_length=len(prompt),
            max_length=min(len(prompt) + sampling.max_tokens, context),
            stop_ids=eos.union(sampling.stop_token_ids) if eos_ends else frozenset(sampling.stop_token_ids),
            priority=request.priority,
            client=sink,
            held=compiling is not None,
        )
        top, seed = clamped(sampling.top_logprobs, self._info, self._max_logprobs), draw_seed(sampling.seed)
        bias = Bias.of(sampling.logit_bias, self._device)
        stream = Stream(request.stream_id, sink, loop, sequence, sampling, top, seed, bias, compiling=compiling)
        stream.eos = eos
        stream.jumps = self._jumps
        stream.processors = processors
        stream.drafter = Drafter() if self._drafts and stream.can_be_drafted else None
        return stream

    def _compile(self, request: GenerateRequest) -> Future[Guide] | None:
        if request.constraint is None:
            return None
        if self.guides is None:
            raise ConstraintError("this server cannot hold a stream to a constraint", "leave the constraint out")
        return self.guides.compile(request.constraint)

    def _score(self, request: ScoreRequest, sink: Sink, loop: asyncio.AbstractEventLoop) -> Stream:
        prompt, scored = check_score(request, self._info)
        sequence = Sequence(
            number=next(self._numbers),
            tokens=prompt + scored,
            prompt_length=len(prompt),
            max_length=len(prompt) + len(scored),
            scored=True,
            client=sink,
        )
        top = request.top_logprobs
        top = None if top is None else clamped(top, self._info, self._max_logprobs)
        return Stream(request.stream_id, sink, loop, sequence, SamplingParams(), top, seed=0)
