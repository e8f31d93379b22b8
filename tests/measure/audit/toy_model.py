"""A language model of letters with a sampler, in plain Python: an honest `TokenModel`, and faults of one that is not.

Its logits depend on its seed and on the last two ids. Behind `lmtool.protocol.http` and `lmtool.protocol.lmtp` it is
 a server whose every number is known.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lmtool.core.errors import RequestError
from lmtool.core.interfaces import Sink
from lmtool.core.model_entry import ModelEntry
from lmtool.core.streams import refuse
from lmtool.core.types import ChatPrompt, GenerateRequest, ModelInfo, SamplingParams, ScoreRequest, TokenOutput, Usage

LETTERS = (*range(97, 123), 32, 46)
EOS = 501
VOCABULARY = (*LETTERS, EOS)
SIZE = 600
Logprobs = dict[int, float]
Request = GenerateRequest | ScoreRequest


def ids_of(prompt: object) -> tuple[int, ...]:
    """The ids of a prompt: the bytes of texts."""
    if isinstance(prompt, str):
        return tuple(prompt.encode())
    if isinstance(prompt, ChatPrompt):
        return ids_of("".join(f"{one.role}: {one.content}\n" for one in prompt.messages) + "assistant:")
    assert isinstance(prompt, tuple)
    return prompt


class ToyLanguage:
    """Distributions behind any context."""

    def __init__(self, seed: int, spread: float = 1.6) -> None:
        """spread: standard deviation of the logits, in nats."""
        self._seed, self._spread = seed, spread
        self._known: dict[tuple[int, ...], Logprobs] = {}

    def logits(self, context: Sequence[int]) -> Logprobs:
        """Logits of every id of the vocabulary."""
        key = tuple(context[-2:])
        if key not in self._known:
            draw = random.Random(f"{self._seed} {key}")
            self._known[key] = {token: draw.gauss(0, self._spread) for token in VOCABULARY}
            self._known[key][EOS] -= 3.0
        return self._known[key]


def normalised(logits: Mapping[int, float]) -> Logprobs:
    """Their logarithms of probabilities."""
    top = max(logits.values())
    total = top + math.log(math.fsum(math.exp(one - top) for one in logits.values()))
    return {token: one - total for token, one in logits.items()}


def adjusted(logits: Logprobs, sampling: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> Logprobs:
    """Logits after bias and penalties."""
    adjusted = dict(logits)
    for token in {*prompt, *output} & adjusted.keys():
        penalty = sampling.repetition_penalty
        adjusted[token] = adjusted[token] / penalty if adjusted[token] > 0 else adjusted[token] * penalty
    for token in set(output):
        adjusted[token] -= sampling.presence_penalty + sampling.frequency_penalty * output.count(token)
    for token, nats in sampling.logit_bias.items():
        if token in adjusted:
            adjusted[token] += nats
    return adjusted


def truncated(logits: Logprobs, sampling: SamplingParams) -> Logprobs:
    """Logprobs of what may be sampled, after temperature and truncation."""
    if sampling.temperature <= 0:
        return {max(logits, key=lambda one: logits[one]): 0.0}
    scaled = normalised({token: one / sampling.temperature for token, one in logits.items()})
    ranked = sorted(scaled, key=lambda one: -scaled[one])
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
    mass = list(itertools.accumulate(math.exp(scaled[one]) for one in ranked))
    ranked = [one for one, up_to in zip(ranked, [0.0, *mass], strict=False) if up_to < sampling.top_p]
    least = scaled[ranked[0]] + math.log(sampling.min_p) if sampling.min_p else -math.inf
    return normalised({token: scaled[token] for token in ranked if scaled[token] >= least})


@dataclass(eq=False)
class ToyStream:
    """One stream, and the hold on it."""

    model: ToyModel
    request: Request
    sink: Sink
    draw: random.Random
    output: list[int]
    crowded: bool = False
    cancelled: bool = False
    text: str = ""

    @property
    def context(self) -> tuple[int, ...]:
        return (*ids_of(self.request.prompt), *self.output)

    def cancel(self) -> None:
        self.cancelled = True

    def pause(self) -> None:
        """Its answers are short."""

    def resume(self) -> None:
        """See `pause`."""

    def step(self) -> TokenOutput:
        """The next output."""
        if self.cancelled:
            return TokenOutput(self.request.stream_id, finish_reason="cancelled", usage=self.usage())
        if isinstance(self.request, ScoreRequest):
            return self._scored(self.request)
        if self.request.sampling.max_tokens == 0:
            return TokenOutput(self.request.stream_id, finish_reason="length", usage=self.usage())
        return self._generated(self.request)

    def _scored(self, request: ScoreRequest) -> TokenOutput:
        scored = ids_of(request.scored)
        if not scored:
            return TokenOutput(request.stream_id, finish_reason="stop", usage=self.usage())
        logprobs = normalised(self.model.language.logits(self.context))
        token = scored[len(self.output)]
        self.output.append(token)
        reason = "stop" if len(self.output) == len(scored) else None
        return self._event(token, logprobs, request.top_logprobs, reason)

    def _generated(self, request: GenerateRequest) -> TokenOutput:
        sampling, logits = request.sampling, self.model.language.logits(self.context)
        weighed = adjusted(logits, sampling, ids_of(request.prompt), self.output)
        possible = truncated(weighed, sampling)
        token = self.draw.choices(list(possible), [math.exp(one) for one in possible.values()])[0]
        self.output.append(token)
        biased = normalised({one: value + sampling.logit_bias.get(one, 0.0) for one, value in logits.items()})
        shown = {"raw": normalised(logits), "biased": biased, "processed": possible}[sampling.logprobs_mode]
        reason, piece, stopped = None, chr(token) if token != EOS else "", None
        self.text += piece
        if sampling.stop:
            piece = ""  # held back until the end: a stop may begin anywhere
        if len(self.output) >= sampling.max_tokens:
            reason = "length"
        if (token == EOS and not sampling.ignore_eos) or token in sampling.stop_token_ids:
            reason = "stop"
        for stop in sampling.stop:
            if stop in self.text:
                reason, stopped = "stop", stop
                self.text = self.text[: self.text.index(stop)]
        if reason and sampling.stop:
            piece = self.text
        return replace(self._event(token, shown, sampling.top_logprobs, reason), text=piece, stopped_by=stopped)

    def _event(self, token: int, logprobs: Logprobs, top: int | None, reason: str | None) -> TokenOutput:
        best = sorted(logprobs.items(), key=lambda one: -one[1])[: top or 0]
        if top is not None and token not in dict(best):
            best.append((token, logprobs.get(token, -1e9)))
        return TokenOutput(
            self.request.stream_id,
            token,
            logprobs.get(token, -1e9),
            None if top is None else tuple(best),
            None,
            reason,  # type: ignore[arg-type]  # a FinishReason or None
            self.usage() if reason else None,
        )

    def usage(self) -> Usage:
        return Usage(len(ids_of(self.request.prompt)), len(self.output))


Change = Callable[[ToyStream, TokenOutput], TokenOutput]


class ToyModel:
    """Steps all its streams once a turn of the event loop."""

    def __init__(
        self,
        seed: int = 0,
        *,
        change: Change | None = None,
        rewrite: Callable[[Request], Request] | None = None,
        spread: float = 1.6,
    ) -> None:
        """change, rewrite: faults: what becomes of an output, and of a request before it is begun."""
        self.language = ToyLanguage(seed, spread)
        self.running: list[ToyStream] = []
        self._change = change
        self._rewrite = rewrite
        self._draws = random.Random(f"draws {seed}")
        self._scheduled = False

    def submit(self, request: Request, sink: Sink) -> ToyStream:
        """See `TokenModel`."""
        if isinstance(request, GenerateRequest) and (request.constraint or request.logits_processors):
            return refuse(request.stream_id, sink, RequestError("constraints need a guide"))  # type: ignore[return-value]
        if self._rewrite is not None:
            request = self._rewrite(request)
        seed = request.sampling.seed if isinstance(request, GenerateRequest) else None
        draw = random.Random(self._draws.random() if seed is None else f"seed {seed}")
        stream = ToyStream(self, request, sink, draw, [])
        self.running.append(stream)
        for one in self.running:
            one.crowded = one.crowded or len(self.running) > 4
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._step)
        return stream

    def _step(self) -> None:
        self._scheduled = False
        for stream in list(self.running):
            output = stream.step()
            if output.last:
                self.running.remove(stream)
            stream.sink([output if self._change is None else self._change(stream, output)])
        if self.running:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._step)

    async def info(self, model: str | None = None) -> ModelInfo:
        """See `TokenModel`."""
        return ModelInfo("toy", "ToyModel()", "toy", SIZE, 4096, (EOS,), max_top_logprobs=256)

    def models(self) -> list[ModelEntry]:
        """See `Catalogue`."""
        return [ModelEntry("toy", phase="ready", context_length=4096)]

    def entry(self, name: str | None) -> ModelEntry:
        """See `Catalogue`."""
        return self.models()[0]

    def tokenizer(self, model: str | None = None) -> object:
        """The letters."""
        from tests.protocol.http.saying import Letters

        return Letters()
