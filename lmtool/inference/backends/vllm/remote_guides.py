"""Client of the constraint extension inside vLLM's engine."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from lmtool.core.logits_processors import Processors
from lmtool.inference.backends.vllm.shared_directory import EngineSettings
from lmtool.inference.backends.vllm.step_channel import error_from
from lmtool.inference.backends.vllm.translation import constraint_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lmtool.core.types import GenerateRequest, ModelInfo
    from lmtool.inference.backends.vllm.step_channel import StepReceiver

_FIRST_POLL, _LAST_POLL = 0.002, 0.1
"""Seconds between polls for a compiled constraint, doubling; each takes a moment of the engine's time."""


class RemoteGuides:
    """Compiles constraints in the processes of an `AsyncLLM`. Belongs to the event loop in which it was made."""

    def __init__(self, engine: Any, steps: StepReceiver) -> None:
        """engine: made with `SharedDirectory.engine_options`."""
        self._engine = engine
        self.steps = steps

    async def describe(self, info: ModelInfo, tokenizer: str | None) -> None:
        """Send the model's settings to all processes of the engine, before the first request."""
        await self._engine.collective_rpc("lmtool_describe", args=(EngineSettings.of(info, tokenizer).to_json(),))

    @contextlib.asynccontextmanager
    async def constrain(self, request: GenerateRequest, request_id: str) -> AsyncIterator[tuple[str, ...]]:
        """Compile a request's constraint and receive its step reports meanwhile; yields the compiler's warnings.

        Raises `ConstraintError` for a constraint that cannot be compiled, `RequestError` for a processor that is not
        installed.
        """
        Processors(request.logits_processors)  # here an error is one of this request, not of the engine
        text = constraint_json(request)
        warnings = () if text is None else await self._compile(text)
        self.steps.subscribe(request_id)
        try:
            yield warnings
        finally:
            self.steps.unsubscribe(request_id)

    async def _compile(self, text: str) -> tuple[str, ...]:
        wait = _FIRST_POLL
        while True:
            outcomes = await self._engine.collective_rpc("lmtool_compile", args=(text,))
            if all(outcome is not None for outcome in outcomes):
                break
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LAST_POLL)
        for outcome in outcomes:
            if "error" in outcome:
                raise error_from(outcome["error"])
        return tuple(outcomes[0]["warnings"])
