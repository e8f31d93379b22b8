"""A loaded engine under test, and streams that are timed token by token."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.decoder import DecoderConfig, decoder_config
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS
from lmtool.inference.engine.random_model import random_config
from lmtool.measure.bench.device import Waits
from tests.lab.gpu.sections import interpreted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.core.types import TokenOutput
    from lmtool.inference.engine.engine import Engine
    from lmtool.inference.engine.model_runner import ModelRunner
    from lmtool.measure.bench.device import Device
    from tests.lab.gpu.settings import GpuBench

PATIENCE = 120.0
"""Seconds without a token after which streams count as stuck."""
ENDLESS = 4000
"""Tokens that streams may have which are cancelled once they were timed."""
FIRST_ID = 3


class Resident:
    """An engine over one model, and what its load said."""

    def __init__(self, name: str, bench: GpuBench, device: Device, **more: Any) -> None:
        """Load it. more: further settings of `EngineConfig`. Raises what `load_engine` raises."""
        self.name, self.device = name, device
        heard = _Heard()
        logger = logging.getLogger("lmtool")
        logger.addHandler(heard)
        level = logger.level
        logger.setLevel(logging.INFO)
        config = EngineConfig(
            device=bench.device,
            dtype=bench.dtype,
            speculation=False,  # random models repeat themselves far more than text does
            max_streams=max(*bench.batches, bench.crowd + 1),
            **more,
        )
        began = time.perf_counter()
        try:
            self.engine: Engine = (interpreted.load if interpreted.works(device.device) else load_engine)(name, config)
        finally:
            logger.removeHandler(heard)
            logger.setLevel(level)
        self.load_seconds = time.perf_counter() - began
        self.log = heard.lines
        self._loop = asyncio.new_event_loop()

    @property
    def runner(self) -> ModelRunner:
        """Its runner: a `CudaRunner` on a GPU."""
        runner = self.engine._runner  # served models hand it to nobody
        assert runner is not None
        return runner

    @property
    def blocks(self) -> int:
        """Of the key-value cache."""
        return self.engine._scheduler.blocks.total  # as above

    @property
    def block_bytes(self) -> int:
        """Of all layers."""
        return self.runner.block_bytes or 0

    @property
    def vocabulary(self) -> int:
        """Ids."""
        return self.engine.info_now.vocab_size or FIRST_ID + 1

    @property
    def context(self) -> int:
        """Most tokens of a stream."""
        return self.engine.info_now.context_length or self.blocks * BLOCK_TOKENS

    @property
    def config(self) -> DecoderConfig:
        """The model's sizes."""
        found = decoder_config(random_config(self.name).to_dict())
        assert found is not None, "all random models are decoders that we know"
        return found

    def describe(self) -> dict[str, Any]:
        """What was loaded, and how."""
        info, graphs = self.engine.info_now, getattr(self.runner, "graphs", None)
        return {
            "model": self.name,
            "seconds": self.load_seconds,
            "runner": type(self.runner).__name__,
            "kernels": info.kernels,
            "dtype": info.dtype,
            "parameters": info.parameters,
            "context_length": info.context_length,
            "blocks": self.blocks,
            "block_bytes": self.block_bytes,
            "graphs": None if graphs is None else _describe(graphs),
            "peak_bytes": self.device.peak_bytes(),
            "log": self.log,
        }

    def weight_bytes(self) -> float:
        """Bytes of weights that one decode step reads: those of all products."""
        width = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0}.get(self.engine.info_now.dtype or "", 2.0)
        return width * self.product_weights()

    def product_weights(self) -> int:
        """Weights in all matrix products of a step."""
        config = self.config
        *layer, head = (out * size for out, size in config.products)
        return len(config.windows) * sum(layer) + head

    def prompts(self, count: int, tokens: int, *salt: object) -> list[list[int]]:
        """Random ids, others for each salt, so that none begins as one before it."""
        generator = np.random.default_rng(zlib.crc32(repr((count, tokens, *salt)).encode()))
        drawn: list[list[int]] = generator.integers(FIRST_ID, self.vocabulary, (count, tokens)).tolist()
        return drawn

    def decode(
        self, prompts: Sequence[Sequence[int]], output: int, samplings: Sequence[SamplingParams] | None = None
    ) -> Decoded:
        """Time `output` steps in which all streams decode, and cancel them then. samplings: of each; None: greedy."""
        return self._loop.run_until_complete(self._decode(prompts, output, samplings))

    async def _decode(
        self, prompts: Sequence[Sequence[int]], output: int, samplings: Sequence[SamplingParams] | None
    ) -> Decoded:
        waits, crowd = Waits(), Crowd(len(prompts))
        samplings = samplings or [SamplingParams(top_logprobs=0)] * len(prompts)
        room = min(ENDLESS, self.context - max(map(len, prompts)) - 1)
        with waits.counted():
            crowd.watched = lambda: waits.of(engine_thread())
            handles = [
                self.engine.submit(GenerateRequest(number, tuple(prompt), endless(sampling, room)), crowd)
                for number, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
            ]
            try:
                await crowd.reached(2)
                first = crowd.mark
                await crowd.reached(output, since=crowd.lengths)
                last = crowd.mark
            finally:
                for handle in handles:
                    handle.cancel()
                await crowd.ended()
        steps = last.tokens - first.tokens
        wall, waited = last.time - first.time, last.waited - first.waited
        return Decoded(
            step_seconds=wall / steps,
            host_seconds=max(wall - waited, 0.0) / steps if self.device.cuda else None,
            first_token_seconds=max(own[0] for own in crowd.stamps) - crowd.start,
        )

    def run(
        self, prompts: Sequence[Sequence[int]], output: int, samplings: Sequence[SamplingParams] | None = None
    ) -> Crowd:
        """All streams to their end: `output` tokens each."""
        crowd = Crowd(len(prompts))
        samplings = samplings or [SamplingParams(top_logprobs=0)] * len(prompts)

        async def run() -> None:
            for number, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
                self.engine.submit(GenerateRequest(number, tuple(prompt), endless(sampling, output)), crowd)
            await crowd.ended()

        self._loop.run_until_complete(run())
        return crowd

    def score(self, ids: Sequence[int]) -> list[float]:
        """Logprobs of all ids but the first, in nats."""
        crowd = Crowd(1)

        async def run() -> None:
            self.engine.submit(ScoreRequest(0, tuple(ids[:1]), tuple(ids[1:])), crowd)
            await crowd.ended()

        self._loop.run_until_complete(run())
        return crowd.logprobs[0]

    def land(self, prompts: Sequence[Sequence[int]], newcomer: Sequence[int], output: int) -> tuple[Crowd, float]:
        """Streams among which a prompt lands once all have `output` tokens; until it and they have as many more.

        Returns the streams, the newcomer last, and when it was submitted.
        """
        return self._loop.run_until_complete(self._land(prompts, newcomer, output))

    async def _land(
        self, prompts: Sequence[Sequence[int]], newcomer: Sequence[int], output: int
    ) -> tuple[Crowd, float]:
        crowd, sampling = Crowd(len(prompts) + 1), SamplingParams(top_logprobs=0)
        room = min(ENDLESS, self.context - max(map(len, prompts)) - 1)
        handles = [
            self.engine.submit(GenerateRequest(number, tuple(prompt), endless(sampling, room)), crowd)
            for number, prompt in enumerate(prompts)
        ]
        try:
            await crowd.reached(output, of=len(prompts))
            landed = time.perf_counter()
            request = GenerateRequest(len(prompts), tuple(newcomer), endless(sampling, output))
            handles.append(self.engine.submit(request, crowd))
            await crowd.reached(output)
            await crowd.reached(output, since=crowd.lengths, of=len(prompts))
        finally:
            for handle in handles:
                handle.cancel()
            await crowd.ended(len(handles))
        return crowd, landed

    def close(self) -> None:
        """Stop the engine and free the model."""
        self.engine.close()
        self._loop.close()


@dataclass(frozen=True, slots=True)
class Decoded:
    """Steps in which all streams decode."""

    step_seconds: float
    host_seconds: float | None
    """A step's time in which the engine's thread did not wait for the device; None where there is none."""
    first_token_seconds: float
    """Until every stream had its first token."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of the first stream."""

    time: float
    waited: float
    tokens: int


@dataclass(slots=True, eq=False)
class Crowd:
    """The sink of some streams: ids, logprobs and time of each token, by stream id."""

    count: int
    ids: list[list[int]] = field(init=False)
    logprobs: list[list[float]] = field(init=False)
    stamps: list[list[float]] = field(init=False)
    errors: list[str] = field(default_factory=list)
    start: float = field(default_factory=time.perf_counter)
    watched: Any = lambda: 0.0
    """Seconds that the engine's thread has waited."""
    mark: Mark = field(default=Mark(0.0, 0.0, 0))
    _left: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.ids = [[] for _ in range(self.count)]
        self.logprobs = [[] for _ in range(self.count)]
        self.stamps = [[] for _ in range(self.count)]

    def __call__(self, outputs: Sequence[TokenOutput]) -> None:
        """Take a step's outputs."""
        now = time.perf_counter()
        for one in outputs:
            number = int(str(one.stream_id))
            if one.token is not None:
                self.ids[number].append(one.token)
                self.stamps[number].append(now)
            if one.logprob is not None:
                self.logprobs[number].append(one.logprob)
            self.errors.extend([one.error] if one.error else [])
            self._left += one.last
        self.mark = Mark(now, self.watched(), len(self.ids[0]))
        self._changed.set()

    @property
    def lengths(self) -> list[int]:
        """Tokens of each stream."""
        return [len(own) for own in self.ids]

    async def reached(self, tokens: int, *, since: Sequence[int] | None = None, of: int | None = None) -> None:
        """Return once each stream has this many tokens, or as many more than `since`. of: the first streams only.

        Raises `RuntimeError` when one fails or ends before.
        """
        wanted = [base + tokens for base in since or [0] * self.count][:of]
        while any(len(own) < number for own, number in zip(self.ids, wanted, strict=False)):
            await self._change()
            if self.errors:
                raise RuntimeError(self.errors[0])

    async def ended(self, count: int | None = None) -> None:
        """Return once all streams have ended. count: of those that were submitted.

        Raises `RuntimeError` for one that failed.
        """
        while self._left < (self.count if count is None else count):
            await self._change()
        if self.errors:
            raise RuntimeError(self.errors[0])

    async def _change(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._changed.wait()
        except TimeoutError:
            raise RuntimeError(f"no token within {PATIENCE:g} s; so far {self.lengths[:4]}...") from None
        self._changed.clear()


def _describe(graphs: Any) -> dict[str, Any]:
    """The captured steps: rows of the largest, all sizes, and whether those of decode steps sample."""
    return {
        "rows": graphs.max_rows,
        "sizes": [str(size) for size in graphs.sizes],
        "samples": graphs.sampling is not None,
    }


def endless(sampling: SamplingParams, tokens: int) -> SamplingParams:
    """The same for exactly this many tokens."""
    return replace(sampling, max_tokens=tokens, ignore_eos=True)


def engine_thread() -> int:
    """Identity of the thread of the engine that runs; 0 for none."""
    running = (one.ident for one in threading.enumerate() if one.name.startswith("engine "))
    return next((one for one in running if one is not None), 0)


class _Heard(logging.Handler):
    """Keeps what lmtool logs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        self.lines.append(f"{record.levelname.lower()}: {record.getMessage()}"[:500])
