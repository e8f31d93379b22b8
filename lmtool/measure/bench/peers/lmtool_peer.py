"""lmtool's own engine as it is served, without a server around it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from lmtool.core.types import GenerateRequest, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.core.types import TokenOutput
    from lmtool.inference.engine.config import EngineConfig


SPARE_TOKENS = 64


class Peer:
    """Our engine, driven from an event loop as a server drives it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `model` (folder, or `random:NAME`), `dtype`, `threads`, `streams` (most at once).

        On a GPU also `device`, and `tokens` (most in each).
        """
        from lmtool.inference.engine.engine_loader import load_engine

        self._engine = load_engine(settings["model"], _config(settings))
        self._loop = asyncio.new_event_loop()
        self.times: list[list[float]] = []

    def about(self) -> dict[str, Any]:
        """Versions, dtype, kernels and size."""
        info = self._engine.info_now
        return {
            "versions": dict(info.versions),
            "dtype": info.dtype,
            "kernels": info.kernels,
            "parameters": info.parameters,
            "vocab_size": info.vocab_size,
            "context_length": info.context_length,
        }

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        """See `worker.Peer`. Raises RuntimeError when a stream fails."""
        return self._loop.run_until_complete(self._generate(prompts, output))

    async def _generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        ids: list[list[int]] = [[] for _ in prompts]
        times = self.times = [[] for _ in prompts]
        left, done, errors = len(prompts), asyncio.Event(), list[str]()

        def sink(outputs: Sequence[TokenOutput]) -> None:
            nonlocal left
            now = time.perf_counter()
            for one in outputs:
                if one.token is not None:
                    ids[int(str(one.stream_id))].append(one.token)
                    times[int(str(one.stream_id))].append(now)
                errors.extend([one.error] if one.error else [])
                left -= one.last
            if not left:
                done.set()

        sampling = SamplingParams(max_tokens=output, ignore_eos=True, top_logprobs=0)
        for number, prompt in enumerate(prompts):
            self._engine.submit(GenerateRequest(number, tuple(prompt), sampling), sink)
        await done.wait()
        if errors:
            raise RuntimeError(errors[0])
        return ids

    def close(self) -> None:
        """Stop the engine and free everything."""
        self._engine.close()
        self._loop.close()


def _config(settings: dict[str, Any]) -> EngineConfig:
    """The engine's configuration; `int8` and `int4` are ways to quantize, the other dtypes are dtypes."""
    from lmtool.core.errors import UsageError
    from lmtool.inference.engine.config import EngineConfig

    arguments = {"threads": settings["threads"], "max_streams": settings["streams"], "dtype": settings["dtype"]}
    if settings.get("device", "cpu") != "cpu":
        # Of its memory other engines need their part, so that there is room for these streams, and no more.
        arguments |= {"device": settings["device"], "max_context": settings["tokens"] + SPARE_TOKENS}
    arguments["speculation"] = False  # random models repeat themselves far more than text does: not a fair contest
    if settings["dtype"] in {"int8", "int4"}:
        if "quantize" not in {field.name for field in fields(EngineConfig)}:
            raise UsageError("this engine quantizes no weights", f"leave lmtool:{settings['dtype']} out")
        arguments |= {"dtype": "auto", "quantize": settings["dtype"]}
    return EngineConfig(**arguments)
