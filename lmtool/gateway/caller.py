"""Who waits for an answer of a pool, and until when: what the request says of itself, not of its conversation."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from lmtool.errors import TimeLimitError
from lmtool.gateway.failures import PoolFailedError, deadline_passed
from lmtool.streams import within

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Hashable, Sequence

    from lmtool.gateway.failures import Attempt

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who waits for an answer, and for how long."""

    client: Hashable = None
    """Whose turn it is where a member is a model of this process, see `interfaces.client_of`; None: nobody else's."""
    deadline: float | None = None
    """Seconds from the request's arrival after which an answer is of no use; None: any number."""
    arrived: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """When the request did, in the event loop's time; by default now."""

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
