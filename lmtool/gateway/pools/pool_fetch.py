"""A request of a pool that is no chat: one whole answer of the first member that gives one."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from lmtool.core.types import ChatMessage
from lmtool.gateway.pools.backend import CallFailedError
from lmtool.gateway.pools.caller import in_time, metered
from lmtool.gateway.pools.http_backend import HttpBackend
from lmtool.gateway.pools.pool_answer import PoolAnswer
from lmtool.gateway.pools.pool_request import PoolRequest
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.providers.answer_events import TokenUsage
from lmtool.protocol.providers.chat_request import ChatRequest
from lmtool.protocol.providers.outcomes import MALFORMED

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from lmtool.gateway.pools.caller import Caller
    from lmtool.gateway.pools.http_backend import Write
    from lmtool.gateway.pools.member import Member
    from lmtool.gateway.pools.pool import Pool
    from lmtool.protocol.providers.answer_events import AnswerEvent
    from lmtool.protocol.providers.provider import Provider

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Exchange(Generic[T]):
    """What is sent to a provider, and how its answer is read."""

    name: str
    """For errors: `embeddings`."""
    supports: Callable[[Provider], bool]
    write: Write
    read: Callable[[str, bytes], T | None]
    """The answer of a content type and a body; None for one that is malformed."""
    text: str = ""
    """What the model reads, by which members are ordered."""
    prompt_tokens: Callable[[T], int | None] = lambda _: None
    """As the provider counts them."""


@dataclass(eq=False)
class PoolFetch(PoolAnswer, Generic[T]):
    """One such request on its way over the members that can do it."""

    exchange: Exchange[T] = field(kw_only=True)
    results: list[T] = field(default_factory=list)

    async def result(self) -> T:
        """The answer. Raises `PoolFailedError`, and `RateLimitError` before anything is called."""
        events = metered(in_time(self.caller, self._from_members(), self.attempts), lambda: self.usage)
        async with aclosing(events):
            async for _ in events:
                pass
        return self.results[-1]

    async def _called(self, member: Member) -> AsyncGenerator[list[AnswerEvent], None]:
        assert isinstance(member.backend, HttpBackend)
        answer = self.exchange.read(*await member.backend.fetch(self.exchange.write))
        if answer is None:
            raise CallFailedError(MALFORMED)
        self.results.append(answer)
        yield [TokenUsage(self.exchange.prompt_tokens(answer), 0)]

    def _record_latency(self, number: int, began: float, tokens: int | None) -> None:
        """Nothing: how long a chat takes for a token is another question."""


def begin(pool: Pool, exchange: Exchange[T], caller: Caller) -> PoolFetch[T]:
    """The request, which nobody has been called for yet. Raises `ApiError` where no member can do it."""
    backends = [member.backend for member in pool.members]
    able = [at for at, one in enumerate(backends) if isinstance(one, HttpBackend) and exchange.supports(one.provider)]
    if not able:
        kinds = ", ".join(f"{member.id} ({member.config.target.name})" for member in pool.members)
        sentence = f"no model of the pool {pool.id} can do {exchange.name} through this gateway: {kinds}"
        raise ApiError(501, sentence, code="not_implemented")
    pool.requests += 1
    request = PoolRequest(ChatRequest((ChatMessage("user", exchange.text),)))
    return PoolFetch(pool, request, able, caller, exchange=exchange)
