"""A pool: a request goes to one member after another until one begins to answer."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.errors import RequestError
from lmtool.gateway.backend import CallFailedError, Reply
from lmtool.gateway.cache import StoredAnswer
from lmtool.gateway.failures import Attempt, broken, gave_up
from lmtool.providers.answer_events import TextDelta, TokenUsage, ToolCallDelta
from lmtool.providers.chat_answer import ChatAnswer, newer_usage
from lmtool.providers.outcomes import CONTEXT_TOO_LONG
from lmtool.routing.outcomes import OK, Outcome
from lmtool.routing.passes import GiveUp, Passes, Wait
from lmtool.routing.prefixes import PrefixTable
from lmtool.routing.strategies import STRATEGIES, Candidate, LeastLatency
from lmtool.types import ChatPrompt

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from lmtool.gateway.cache import AnswerCache
    from lmtool.gateway.config import PoolConfig
    from lmtool.gateway.member import Member
    from lmtool.gateway.pool_request import PoolRequest
    from lmtool.providers.answer_events import AnswerEvent
    from lmtool.routing.strategies import Strategy

EXPECTED_TOKENS = 500
"""Of an answer without a limit, to compare prices."""
CHARACTERS_PER_TOKEN = 4
LATENCIES = 512
"""Answers whose latencies a pool's status goes by."""


class Pool:
    """Members under one name; belongs to one event loop."""

    def __init__(
        self,
        config: PoolConfig,
        members: Sequence[Member],
        cache: AnswerCache | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.members = members
        self.cache = cache
        self.clock = clock
        self.requests = 0
        """Since the start, those from the cache included."""
        self.cached = 0
        """Answers from the cache."""
        self.seconds: deque[float] = deque(maxlen=LATENCIES)
        """Until recent answers began."""
        self._prefixes = PrefixTable()
        strategies = [self._strategy() for _ in range(2)]
        self._strategies = strategies if config.strategy == "least_latency" else strategies[:1] * 2
        """For whole answers and for streams: a token takes longer where it waits for all others."""

    def _strategy(self) -> Strategy:
        if self.config.strategy == "least_latency":
            return LeastLatency({at: member.config.latency for at, member in enumerate(self.members)})
        return STRATEGIES[self.config.strategy]()

    @property
    def id(self) -> str:
        """Its name."""
        return self.config.id

    def answer(self, request: PoolRequest) -> PoolAnswer:
        """The answer to a request, which nothing has been called for yet.

        Raises `RequestError` where no member can do what is asked.
        """
        lacking = [
            member.backend.lacks(request) if request.of(member.config).messages else ("messages of its own",)
            for member in self.members
        ]
        able = [at for at, one in enumerate(lacking) if not one]
        if not able:
            parts = [f"{member.id} has no {', '.join(one)}" for member, one in zip(self.members, lacking, strict=True)]
            raise RequestError(f"no model of the pool {self.id} can do this: {'; '.join(parts)}")
        self.requests += 1
        return PoolAnswer(self, request, able)

    def order(self, request: PoolRequest, available: Sequence[int], now: float) -> list[int]:
        """Members in the order in which to try them."""
        prompt = ChatPrompt(request.chat.messages, request.chat.tools)
        known = self._prefixes.matches(prompt) if self.config.strategy == "least_loaded" else {}
        candidates = [
            Candidate(
                at, self.members[at].running, known.get(at, 0), self.members[at].config.weight, self._cost(at, request)
            )
            for at in available
        ]
        ordered = [one.member for one in self._strategies[request.chat.stream].order(candidates, now)]
        if ordered and self.config.strategy == "least_loaded":
            self._prefixes.add(prompt, ordered[0])
        return ordered

    def _cost(self, member: int, request: PoolRequest) -> float:
        prices = self.members[member].config.prices
        if prices is None:
            return 0.0
        length = sum(len(message.content) for message in request.chat.messages)
        limit = request.chat.parameters.get("maxTokens")
        return prices.of(length // CHARACTERS_PER_TOKEN, limit if isinstance(limit, int) else EXPECTED_TOKENS)

    def record_latency(self, member: int, seconds: float, *, stream: bool) -> None:
        """Take how long a member took for a token."""
        self._strategies[stream].record_latency(member, seconds, self.clock())

    def status(self) -> dict[str, object]:
        """Its state for people and programs; nothing secret."""
        now, recent = self.clock(), sorted(self.seconds)
        costs = [member.totals.cost for member in self.members if member.config.prices is not None]
        return {
            "id": self.id,
            "strategy": self.config.strategy,
            "requests": self.requests,
            "cached": self.cached,
            "p50_seconds": round(recent[len(recent) // 2], 4) if recent else None,
            "cost": round(sum(costs), 6) if costs else None,
            "models": [member.status(now) for member in self.members],
        }


@dataclass(eq=False)
class PoolAnswer:
    """One request on its way over the members of a pool."""

    pool: Pool
    request: PoolRequest
    able: Sequence[int]
    """Members that can do what is asked."""
    attempts: list[Attempt] = field(default_factory=list)
    member: Member | None = None
    """Which one answers, once it has begun."""
    reply: Reply = field(default_factory=Reply)
    usage: TokenUsage = field(default_factory=TokenUsage)
    cached: bool = False
    cost: float | None = None
    """Of a finished answer, where its member has prices."""
    _pieces: int = 0

    async def events(self) -> AsyncGenerator[list[AnswerEvent], None]:
        """The events of the answer of the first member that begins one, those that arrive together as one list.

        Raises `PoolFailedError`. Closing it ends the call under way.
        """
        cache = self.pool.cache
        key = None if cache is None else cache.key(self.request)
        if cache is None or key is None:
            async with aclosing(self._from_members()) as events:
                async for some in events:
                    yield some
            return
        stored = await cache.get(key)
        if stored is not None:
            yield self._recall(stored)
            return
        answer = ChatAnswer()
        async with aclosing(self._from_members()) as events:
            async for some in events:
                answer.add(some)
                yield some
        assert self.member is not None
        await cache.put(key, StoredAnswer.of(self.member.id, answer, self.reply.ids, self.reply.model))

    def _recall(self, stored: StoredAnswer) -> list[AnswerEvent]:
        """The events of an answer that was kept."""
        self.pool.cached += 1
        self.cached = True
        self.member = next((one for one in self.pool.members if one.id == stored.member), None)
        self.reply = Reply(stored.ids, stored.model)
        events = list(stored.events())
        self._count(events)
        return events

    async def _from_members(self) -> AsyncGenerator[list[AnswerEvent], None]:
        """The events of the answer of the first member that begins one."""
        pool, clock = self.pool, self.pool.clock
        health = {at: pool.members[at].health for at in self.able}
        passes = Passes(pool.config.retry, clock(), health, lambda members, now: pool.order(self.request, members, now))
        while True:
            step = passes.step(clock())
            if isinstance(step, GiveUp):
                context = any(attempt.outcome == CONTEXT_TOO_LONG.words for attempt in self.attempts)
                raise gave_up(pool.id, step, self.attempts, context=context)
            if isinstance(step, Wait):
                await asyncio.sleep(step.seconds)
                continue
            async with aclosing(self._attempt(step.member, passes)) as events:
                async for some in events:
                    yield some
            if self.member is not None:
                return

    async def _attempt(self, number: int, passes: Passes) -> AsyncGenerator[list[AnswerEvent], None]:
        """The events of one member, held back until it has begun to answer; none where it fails before."""
        member, began = self.pool.members[number], self.pool.clock()
        probe, outcome = member.health.begin(), None
        waiting: list[AnswerEvent] = []
        self.reply, self.usage = Reply(), TokenUsage()
        member.running += 1
        try:
            async with aclosing(self._called(member)) as answered:
                async for events in answered:
                    self._count(events)
                    if self.member is None:
                        waiting += events
                        if not self._pieces:
                            continue
                        self._begin(number, began, probe=probe)
                        events, waiting = waiting, []  # noqa: PLW2901  # those held back come first
                    yield events
            if self.member is None:  # an answer without a word is one
                self._begin(number, began, probe=probe)
            if waiting:
                yield waiting
            outcome = OK
        except (CallFailedError, RequestError) as error:
            outcome = _outcome(error)
            self._fail(number, outcome, began, passes, probe=probe)
        finally:
            member.running -= 1
            member.count(outcome)
            if outcome is None and self.member is None:
                member.health.release(probe=probe)
        if outcome is OK:
            self._finish(number, began)

    def _called(self, member: Member) -> AsyncGenerator[list[AnswerEvent], None]:
        """The events of the member's answer, see `Backend.answer`."""
        return member.backend.answer(self.request, self.reply)

    def _count(self, events: Sequence[AnswerEvent]) -> None:
        for event in events:
            if isinstance(event, TokenUsage):
                self.usage = newer_usage(self.usage, event)
            elif isinstance(event, ToolCallDelta) or (isinstance(event, TextDelta) and event.kind != "reasoning"):
                self._pieces += 1

    def _begin(self, number: int, began: float, *, probe: bool) -> None:
        """From here on the answer is this member's, whatever becomes of it."""
        now = self.pool.clock()
        self.member = self.pool.members[number]
        self.member.health.record(OK, now, probe=probe)
        self.attempts.append(Attempt(self.member.id, "ok", _ms(now - began)))
        self.pool.seconds.append(now - began)

    def _fail(self, number: int, outcome: Outcome, began: float, passes: Passes, *, probe: bool) -> None:
        """Record a failure. Raises `PoolFailedError` where the answer has begun: nobody can go on with it."""
        member, now = self.pool.members[number], self.pool.clock()
        begun = self.member is not None
        member.health.record(outcome, now, probe=probe and not begun)
        if begun:
            self.attempts[-1] = Attempt(member.id, f"broke off: {outcome.words}", self.attempts[-1].ms)
            error = broken(member.id, outcome.words, self._pieces)
            error.attempts = self.attempts
            raise error
        self.attempts.append(Attempt(member.id, outcome.words, _ms(now - began)))
        if outcome.about_request:
            passes.exclude(number)

    def _finish(self, number: int, began: float) -> None:
        assert self.member is not None
        self.cost = self.member.charge(self.usage)
        self._record_latency(number, began)

    def _record_latency(self, number: int, began: float) -> None:
        if tokens := self.usage.completion_tokens or self._pieces:
            seconds = (self.pool.clock() - began) / tokens
            self.pool.record_latency(number, seconds, stream=self.request.chat.stream)


def _outcome(error: CallFailedError | RequestError) -> Outcome:
    """What became of a call; a request that its API cannot express is refused in our own words."""
    return error.outcome if isinstance(error, CallFailedError) else Outcome("refused", error.message)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
