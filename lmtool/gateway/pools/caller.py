"""Who waits for an answer of a pool, and until when: what the request says of itself, not of its conversation."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from lmtool.core.errors import LmtoolError, TimeLimitError
from lmtool.core.streams import within
from lmtool.core.types import Usage
from lmtool.gateway.pools.failures import PoolFailedError, deadline_passed
from lmtool.gateway.pools.partial_answer import is_piece
from lmtool.net.access.caller import caller_turns, counted_stream
from lmtool.protocol.providers.answer_events import ChoiceFinished

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Hashable, Sequence

    from lmtool.gateway.pools.failures import Attempt
    from lmtool.net.telemetry.observation import Observation
    from lmtool.protocol.providers.answer_events import AnswerEvent, TokenUsage

T = TypeVar("T")

FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter"})
"""Those that are counted by name; any other that a provider sends counts as `stop`."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who waits for an answer, and for how long."""

    client: Hashable = field(default_factory=caller_turns)
    """Whose turn it is where a member is a model of this process, see `interfaces.client_of`; None: nobody else's."""
    deadline: float | None = None
    """Seconds from the request's arrival after which an answer is of no use; None: any number."""
    arrived: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """When the request did, in the event loop's time; by default now."""
    counted: bool = False
    """True if it counts already against the limits of its key, being a stream of a model that counts streams."""

    @property
    def elapsed(self) -> float:
        """Seconds since then."""
        return asyncio.get_running_loop().time() - self.arrived

    @property
    def seconds_left(self) -> float | None:
        """Until the deadline, 0 once it is over; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - self.elapsed)


async def in_time(
    caller: Caller, events: AsyncGenerator[T, None], attempts: Sequence[Attempt]
) -> AsyncGenerator[T, None]:
    """The events until the caller's deadline, which ends the call under way. attempts: for its error.

    Raises `PoolDeadlineError`, and what `events` raises.
    """
    async with aclosing(events):
        if caller.deadline is None:
            async for some in events:
                yield some
            return
        while True:
            try:
                async with within(caller.deadline, caller.elapsed):
                    further = await anext(events, None)
            except TimeLimitError as error:
                if isinstance(error, PoolFailedError):
                    raise
                raise deadline_passed(caller.deadline, attempts) from None
            if further is None:
                return
            yield further


async def metered(events: AsyncGenerator[T, None], usage: Callable[[], TokenUsage]) -> AsyncGenerator[T, None]:
    """The events, counted against the limits of the caller's key. usage: the tokens, as far as they are known.

    Raises `RateLimitError` before the first, and what `events` raises.
    """
    with counted_stream() as use:
        try:
            async with aclosing(events):
                async for some in events:
                    if use is not None:
                        use.begin()
                    yield some
        finally:
            if use is not None:
                use.count(usage().prompt_tokens or 0, usage().completion_tokens or 0)


async def observed(
    events: AsyncGenerator[list[AnswerEvent], None], usage: Callable[[], TokenUsage], observation: Observation
) -> AsyncGenerator[list[AnswerEvent], None]:
    """The events, observed. usage: as in `metered`. Raises what `events` raises."""
    finished = "stop"
    reason: str | None = None
    code: str | None = None
    try:
        async with aclosing(events):
            async for some in events:
                if any(map(is_piece, some)):
                    observation.token(time.perf_counter())
                told = (event.reason for event in some if isinstance(event, ChoiceFinished))
                finished = next((one for one in told if one in FINISH_REASONS), finished)
                yield some
        reason = finished
    except (GeneratorExit, asyncio.CancelledError):
        reason = "cancelled"
        raise
    except LmtoolError as error:
        code = error.code
        raise
    finally:
        observation.end(reason, _counts(usage()), time.perf_counter(), code)


def _counts(usage: TokenUsage) -> Usage | None:
    """The tokens in the terms of models; None where the member does not count."""
    if usage.completion_tokens is None:
        return None
    return Usage(usage.prompt_tokens or 0, usage.completion_tokens, usage.cached_tokens or 0)
