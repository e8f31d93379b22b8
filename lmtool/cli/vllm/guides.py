"""The worker's hold on what vLLM's engine holds: constraints compiled there, and what it tells of each step."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from lmtool.cli.vllm.told import error_of
from lmtool.cli.vllm.translation import constraint_text
from lmtool.logits_processors import Processors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lmtool.cli.vllm.told import Step, Told
    from lmtool.types import Constraint, GenerateRequest

_FIRST_WAIT, _LONGEST_WAIT = 0.002, 0.1
"""Seconds between two questions whether a constraint is compiled; each takes a moment of the engine's time."""


class RemoteGuides:
    """Holds streams in the processes of an `AsyncLLM`. Belongs to the event loop in which it was made."""

    def __init__(self, engine: Any, told: Told) -> None:
        """engine: made with `Scratch.options`."""
        self._engine = engine
        self._told = told

    @contextlib.asynccontextmanager
    async def holding(self, request: GenerateRequest, name: str) -> AsyncIterator[tuple[str, ...]]:
        """Prepare what holds a request, and listen for it meanwhile; gives the warnings.

        Raises `ConstraintError` for a constraint that cannot be held, `RequestError` for a processor that is not there.
        """
        Processors(request.logits_processors)  # here, where an error is one of this request, and not in the engine
        warnings = () if request.constraint is None else await self._compile(request.constraint)
        self._told.expect(name)
        try:
            yield warnings
        finally:
            self._told.forget(name)

    def step(self, name: str, place: int) -> Step:
        """What was told of the token at this place. Raises the error that ends the stream there."""
        return self._told.step(name, place)

    async def _compile(self, constraint: Constraint) -> tuple[str, ...]:
        text, wait = constraint_text(constraint), _FIRST_WAIT
        while True:
            outcomes = await self._engine.collective_rpc("lmtool_compile", args=(text,))
            if all(outcome is not None for outcome in outcomes):
                break
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
        for outcome in outcomes:
            if "error" in outcome:
                raise error_of(outcome["error"])
        return tuple(outcomes[0]["warnings"])
