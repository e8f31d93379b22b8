"""One request on its way over the members of a pool: until one answers, and on to others where an answer breaks off."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.core.errors import RequestError
from lmtool.core.outcomes import OK, Outcome
from lmtool.core.seam import Seam
from lmtool.gateway.pools.attempt_span import in_span
from lmtool.gateway.pools.backend import CallFailedError, Reply
from lmtool.gateway.pools.cache import StoredAnswer
from lmtool.gateway.pools.caller import Caller, in_time, metered, observed
from lmtool.gateway.pools.failures import OVER, Attempt, broken, deadline_passed, gave_up
from lmtool.gateway.pools.partial_answer import (
    PartialAnswer,
    is_piece,
    is_reasoning,
    obstacle_to_prefill,
    without_prefill,
)
from lmtool.gateway.routing.passes import GiveUp, Passes, Wait
from lmtool.net.telemetry.trace_context import current_trace
from lmtool.protocol.providers.answer_events import ChatAnswer, ChoiceFinished, TokenUsage, newer_usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lmtool.gateway.pools.member import Member
    from lmtool.gateway.pools.pool import Pool
    from lmtool.gateway.pools.pool_request import PoolRequest
    from lmtool.net.telemetry.trace_context import TraceContext
    from lmtool.protocol.providers.answer_events import AnswerEvent

_Way: TypeAlias = Literal["anew", "tokens", "prefill"]
"""How members are called: for a whole answer; to go on with a stream of the same fingerprint; to go on with a text."""
MAX_SEAMS = 8
"""Of one answer: what breaks off more often is given up."""
REASONS_ANEW = Outcome("refused", "reasons before it goes on")


@dataclass(frozen=True, slots=True)
class _Cut:
    """An answer that broke off after its first words, until a member goes on with it."""

    member: Member
    reason: str
    obstacle: str
    """Why it cannot go on by prefill, where that is wanted."""


@dataclass(eq=False)
class PoolAnswer:
    """The answer to one request; take its `events` once."""

    pool: Pool
    request: PoolRequest
    able: Sequence[int]
    """Members that can do what is asked."""
    caller: Caller = field(default_factory=Caller)
    attempts: list[Attempt] = field(default_factory=list)
    member: Member | None = None
    """Which one answers, or did so last, once one has begun."""
    reply: Reply = field(default_factory=Reply)
    usage: TokenUsage = field(default_factory=TokenUsage)
    """Of the whole answer, each token counted once."""
    cached: bool = False
    cost: float | None = None
    """Of a finished answer, where its members have prices."""
    seams: list[Seam] = field(default_factory=list)
    """Each is there before the first event behind it is given out."""
    trace_context: TraceContext | None = field(default_factory=current_trace.get)
    """What the calls of its members are part of."""
    partial: PartialAnswer = field(default_factory=PartialAnswer)
    """What the caller has got."""
    _way: _Way = "anew"
    _further_ways: list[_Way] = field(default_factory=list)
    """To go on where this one fails."""
    _cut: _Cut | None = None
    _begun: bool = False
    """True if the present call has brought something."""
    _done: bool = False
    _prefilled: int = 0
    """Tokens that stood in the prefill of the present call."""
    _charged: int = 0
    """Generated tokens that members were charged for whose calls broke off."""
    _overflows: list[tuple[int, int]] = field(default_factory=list)
    """See `Outcome.overflow`; of each member whose context was too short."""
    _skipped: set[int] = field(default_factory=set)
    """Members that the attempts name as those that cannot go on."""
    _refused: set[str] = field(default_factory=set)
    """See `Reply.refused`."""

    async def events(self) -> AsyncGenerator[list[AnswerEvent], None]:
        """The events of the answer of the first member that begins one, those that arrive together as one list.

        Raises `PoolFailedError`, and `RateLimitError` before anything is called. Closing it ends the call under way.
        """
        events = in_time(self.caller, self._events(), self.attempts)
        if not self.caller.counted:
            events = metered(events, lambda: self.usage)
            if (observation := self.pool.observe()) is not None:
                self.trace_context = observation.trace or self.trace_context
                events = observed(events, lambda: self.usage, observation)
        async with aclosing(events):
            async for some in events:
                yield some

    async def _events(self) -> AsyncGenerator[list[AnswerEvent], None]:
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
        if not self.seams:
            await cache.put(key, StoredAnswer.of(self.member.id, answer, self.reply.ids, self.reply.model))

    def _recall(self, stored: StoredAnswer) -> list[AnswerEvent]:
        """The events of an answer that was kept."""
        self.pool.cached += 1
        self.cached = True
        self.member = next((one for one in self.pool.members if one.id == stored.member), None)
        self.reply = Reply(stored.ids, stored.model)
        return self._counted(list(stored.events()))

    async def _from_members(self) -> AsyncGenerator[list[AnswerEvent], None]:
        """The events of the answer of the first member that begins one, and of those that go on with it."""
        passes = self._passes(self.able)
        try:
            while not self._done:
                step = passes.step(self.pool.clock())
                if isinstance(step, Wait):
                    await asyncio.sleep(step.seconds)
                    continue
                if isinstance(step, GiveUp):
                    passes = await self._next_way(step)
                    continue
                async with aclosing(self._attempt(step.member, passes)) as events:
                    async for some in events:
                        yield some
                if self._begun and not self._done:
                    if (ending := self._break_off()) is not None:
                        yield ending
                        return
                    passes = await self._next_way()
        finally:
            await self._release()

    async def _release(self) -> None:
        """Give up the stream of a member that nobody goes on with."""
        stream, self.reply.stream = self.reply.stream, None
        if stream is not None:
            await stream.close()

    # One call.

    async def _attempt(self, number: int, passes: Passes) -> AsyncGenerator[list[AnswerEvent], None]:
        """The events of one member, held back until it has begun to answer; none where it fails before."""
        member, began = self.pool.members[number], self.pool.clock()
        probe, outcome = member.health.begin(), None
        waiting: list[AnswerEvent] = []
        if not member.backend.resumes:
            await self._release()
        self.reply = Reply(
            stream=self.reply.stream,
            must_resume=self._cut is not None,
            caller=self.caller,
            refused=self._refused,
            trace_context=self.trace_context,
        )
        self.usage, self._begun = TokenUsage(), False
        member.running += 1
        try:
            async with aclosing(self._called(member)) as answered:
                async for events in answered:
                    waiting += self._counted(events)
                    if not self._begun:
                        if not any(map(is_piece, events)):
                            continue
                        self._begin(number, began, probe=probe)
                    some, waiting = waiting, []
                    self.partial.add(some)
                    yield some
            if not self._begun:  # an answer without a word is one
                self._begin(number, began, probe=probe)
            self.partial.add(waiting)
            if waiting:
                yield waiting
            outcome = OK
        except (CallFailedError, RequestError) as error:
            outcome = self._outcome(error)
            self._fail(number, outcome, began, passes, probe=probe)
        finally:
            member.running -= 1
            member.count(outcome)
            if outcome is None and not self._begun:
                member.health.release(probe=probe)
                self.attempts.append(Attempt(member.id, "cancelled", _ms(self.pool.clock() - began)))
        if outcome is OK:
            self._finish(number, began)

    def _outcome(self, error: CallFailedError | RequestError) -> Outcome:
        """What became of a call; a request that its API cannot express is refused in our own words.

        Raises `PoolDeadlineError` where the caller's time is over, which is no fault of the member.
        """
        seconds = self.caller.deadline
        outcome = error.outcome if isinstance(error, CallFailedError) else Outcome("refused", error.message)
        if seconds is not None and (outcome is OVER or self.caller.seconds_left == 0):
            raise deadline_passed(seconds, self.attempts) from None
        return outcome

    def _called(self, member: Member) -> AsyncGenerator[list[AnswerEvent], None]:
        """The events of the member's answer, see `Backend.answer`."""
        events, tracer = member.backend.answer(self._request, self.reply), self.pool.tracer
        return events if tracer is None else in_span(events, tracer, member, self.reply)

    @property
    def _request(self) -> PoolRequest:
        """What members are asked now."""
        return replace(self.request, prefill=self.partial.as_prefill) if self._way == "prefill" else self.request

    def _counted(self, events: Sequence[AnswerEvent]) -> list[AnswerEvent]:
        """The events, once their usage is taken. What was a prefill counts as generated, and not as prompt.

        Raises `CallFailedError` for one that reasons where it should go on.
        """
        if self._way == "prefill" and any(map(is_reasoning, events)):
            raise CallFailedError(REASONS_ANEW)
        found: list[AnswerEvent] = []
        for event in events:
            if isinstance(event, TokenUsage):
                counted = without_prefill(event, self._prefilled)
                self.usage = newer_usage(self.usage, counted)
                found.append(counted)
            else:
                found.append(event)
        return found

    def _begin(self, number: int, began: float, *, probe: bool) -> None:
        """From here on the answer is this member's."""
        now, before = self.pool.clock(), self.member
        self._begun, self.member = True, self.pool.members[number]
        self.member.health.record(OK, now, probe=probe)
        self.attempts.append(Attempt(self.member.id, "ok", _ms(now - began)))
        if self._cut is None or before is None:
            self.pool.seconds.append(now - began)
            return
        self._charge(before, TokenUsage(None, self.partial.tokens - self._charged))
        self._charged, self._cut = self.partial.tokens, None
        if self._way == "prefill":
            self.seams.append(Seam(len(self.partial.text), before.id, self.member.id))

    def _fail(self, number: int, outcome: Outcome, began: float, passes: Passes, *, probe: bool) -> None:
        """Record a failure: of the answer, if it had begun, else of the call alone."""
        member, now = self.pool.members[number], self.pool.clock()
        member.health.record(outcome, now, probe=probe and not self._begun)
        if self._begun:
            self.attempts[-1] = Attempt(member.id, f"broke off: {outcome.words}", self.attempts[-1].ms)
            obstacle = obstacle_to_prefill(self.request, self.partial, member.config)
            self._cut = _Cut(member, outcome.words, obstacle)
            return
        self.attempts.append(Attempt(member.id, outcome.words, _ms(now - began)))
        self._overflows += [outcome.overflow] * (outcome.kind == "context_too_long")
        if outcome.about_request:
            passes.exclude(number)
        if self.reply.refused_by is not None:
            self._refused.add(self.reply.refused_by)

    def _finish(self, number: int, began: float) -> None:
        assert self.member is not None
        self._done = True
        completion = self.usage.completion_tokens
        own = None if completion is None else completion - self._charged
        self._charge(self.member, replace(self.usage, completion_tokens=own))
        self._record_latency(number, began, own)

    def _charge(self, member: Member, usage: TokenUsage) -> None:
        cost = member.charge(usage)
        if cost is not None:
            self.cost = cost + (self.cost or 0.0)

    def _record_latency(self, number: int, began: float, tokens: int | None) -> None:
        if tokens := tokens or self.partial.pieces:
            seconds = (self.pool.clock() - began) / tokens
            self.pool.record_latency(number, seconds, stream=self.request.chat.stream)

    # Going on.

    def _break_off(self) -> list[AnswerEvent] | None:
        """Look for ways to go on with an answer that broke off; its last events where nothing of it is missing."""
        stream = self.reply.stream
        if stream is not None:
            self.partial.tokens = self._prefilled + stream.tokens
        self._further_ways = [] if stream is None else ["tokens"]
        wanted = self.pool.config.continue_by == "prefill" and len(self.seams) < MAX_SEAMS
        if not wanted or self._cut is None or self._cut.obstacle:
            return None
        limit = self.request.chat.parameters.get("maxTokens")
        if self.partial.finish_reasons or (isinstance(limit, int) and self.partial.tokens >= limit):
            return self._complete()
        self._further_ways.append("prefill")
        return None

    def _complete(self) -> list[AnswerEvent]:
        """End an answer whose end alone was lost."""
        assert self._cut is not None
        self.usage = replace(self.usage, completion_tokens=self.partial.tokens)
        self._charge(self._cut.member, replace(self.usage, completion_tokens=self.partial.tokens - self._charged))
        return [] if self.partial.finish_reasons else [ChoiceFinished(0, "length")]

    async def _next_way(self, step: GiveUp | None = None) -> Passes:
        """The members that may go on, as there is no other one in the way before.

        Raises `PoolFailedError`.
        """
        if self._cut is None:
            assert step is not None
            raise gave_up(self.pool.id, step, self.attempts, self._overflows)
        while self._further_ways:
            self._way = self._further_ways.pop(0)
            self._refused.clear()  # it is another request now
            resuming = [at for at in self.able if self.pool.members[at].backend.resumes]
            members = resuming if self._way == "tokens" else await self._prefilling()
            if members:
                return self._passes(members)
        raise self._broken()

    def _broken(self) -> Exception:
        assert self._cut is not None
        wanted = self.pool.config.continue_by is not None
        why = (self._cut.obstacle or "no other model did so") if wanted else ""
        error = broken(self._cut.member.id, self._cut.reason, self.partial.pieces, why)
        error.attempts = self.attempts
        return error

    async def _prefilling(self) -> list[int]:
        """Members that go on with a text; the others are named in the attempts."""
        await self._release()
        self._prefilled, found = self.partial.tokens, []
        for at in self.able:
            member = self.pool.members[at]
            lacking = member.backend.lacks(self._request)
            if not lacking:
                found.append(at)
            elif at not in self._skipped:
                self._skipped.add(at)
                self.attempts.append(Attempt(member.id, f"skipped: no {' and no '.join(lacking)}", 0))
        return found

    def _passes(self, members: Sequence[int]) -> Passes:
        """The way over these members; where there is another way it is only one pass."""
        retry = self.pool.config.retry
        retry = replace(retry, max_retries=0) if self._further_ways else retry
        health = {at: self.pool.members[at].health for at in members}
        return Passes(retry, self.pool.clock(), health, self._order)

    def _order(self, members: Sequence[int], now: float) -> list[int]:
        """Members in the order in which to try them; whoever broke off is last."""
        ordered = self.pool.order(self.request, members, now)
        cut = None if self._cut is None else self._cut.member
        return sorted(ordered, key=lambda at: self.pool.members[at] is cut)


def begin_answer(pool: Pool, request: PoolRequest, caller: Caller | None = None) -> PoolAnswer:
    """The answer to a request, which nothing has been called for yet.

    Raises `RequestError` where no member can do what is asked.
    """
    lacking = [
        member.backend.lacks(request) if request.of(member.config).messages else ("messages of its own",)
        for member in pool.members
    ]
    able = [at for at, one in enumerate(lacking) if not one]
    if not able:
        parts = [f"{member.id} has no {', '.join(one)}" for member, one in zip(pool.members, lacking, strict=True)]
        raise RequestError(f"no model of the pool {pool.id} can do this: {'; '.join(parts)}")
    pool.requests += 1
    return PoolAnswer(pool, request, able, caller or Caller())


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
