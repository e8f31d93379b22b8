"""What is not a chat of texts: passed on to members with OpenAI's API, under the same health and passes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from lmtool.gateway.backend import CallFailedError
from lmtool.gateway.config import HttpTarget
from lmtool.gateway.failures import Attempt, gave_up
from lmtool.http_api.errors import ApiError
from lmtool.providers.json_values import load
from lmtool.providers.outcomes import MALFORMED
from lmtool.routing.outcomes import OK
from lmtool.routing.passes import GiveUp, Passes, Wait
from lmtool.routing.strategies import Candidate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.gateway.http_backend import HttpClient
    from lmtool.gateway.member import Member
    from lmtool.gateway.pool import Pool
    from lmtool.routing.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class Task:
    """One kind of request that is passed on."""

    name: str
    """For people."""
    path: str
    """Of OpenAI's API."""
    sound_in: bool = False
    """Whether the body is a sound, and not JSON."""
    sound_out: bool = False


TASKS: Mapping[str, Task] = {
    "/v1/embeddings/{pool}/embed": Task("embeddings", "/embeddings"),
    "/v1/speech/transcribers/{pool}": Task("transcription", "/audio/transcriptions", sound_in=True),
    "/v1/speech/synthesizers/{pool}": Task("speech synthesis", "/audio/speech", sound_out=True),
    "/v1/multi/{pool}/multimodal": Task("multimodal chat", "/chat/completions"),
}
"""By the unified API's paths."""


@dataclass(slots=True)
class Forwarded:
    """One request that is passed on."""

    pool: Pool
    task: Task
    body: bytes
    content_type: str
    parameters: Mapping[str, str]
    """Of the URL: beside a sound, what else OpenAI's API takes."""
    client: HttpClient
    attempts: list[Attempt] = field(default_factory=list)
    member: Member | None = None
    """Which one answered."""

    async def answer(self) -> tuple[str, bytes]:
        """Content type and body of the first member that answers. Raises `ApiError` 501 where none can."""
        pool, clock = self.pool, self.pool.clock
        able = {at: one.health for at, one in enumerate(pool.members) if _is_openai(one)}
        if not able:
            raise ApiError(
                501,
                f"no model of the pool {pool.id} can do {self.task.name}: it takes one with OpenAI's API",
                code="not_implemented",
            )
        fields = None if self.task.sound_in else _fields(self.body)
        passes = Passes(pool.config.retry, clock(), able, self._order)
        while True:
            step = passes.step(clock())
            if isinstance(step, GiveUp):
                error = gave_up(pool.id, step, context=False)
                error.attempts = self.attempts
                raise error
            if isinstance(step, Wait):
                await asyncio.sleep(step.seconds)
                continue
            found = await self._attempt(step.member, fields, passes)
            if found is not None:
                return found

    def _order(self, members: Any, now: float) -> list[int]:  # noqa: ANN401  # a sequence of numbers
        weights = [Candidate(at, weight=self.pool.members[at].config.weight) for at in members]
        return self.pool.order_candidates(weights, now)

    async def _attempt(self, number: int, fields: dict[str, Any] | None, passes: Passes) -> tuple[str, bytes] | None:
        """The answer of one member; None where it failed."""
        member, began = self.pool.members[number], self.pool.clock()
        probe, outcome = member.health.begin(), None
        member.running += 1
        try:
            found = await self._call(member, fields)
            outcome = OK
        except CallFailedError as error:
            outcome, found = error.outcome, None
        finally:
            member.running -= 1
            member.count(outcome)
            if outcome is None:
                member.health.release(probe=probe)
        self._record(number, outcome, began, passes, probe=probe)
        return found

    def _record(self, number: int, outcome: Outcome, began: float, passes: Passes, *, probe: bool) -> None:
        member, now = self.pool.members[number], self.pool.clock()
        member.health.record(outcome, now, probe=probe)
        self.attempts.append(Attempt(member.id, outcome.words, round((now - began) * 1000)))
        if outcome.kind == "ok":
            self.member = member
        elif outcome.about_request:
            passes.exclude(number)

    async def _call(self, member: Member, fields: dict[str, Any] | None) -> tuple[str, bytes]:
        """The body of one member's answer. Raises `CallFailedError`."""
        target, model = member.config.target, member.config.model or ""
        assert isinstance(target, HttpTarget)
        request = target.provider.json_request(
            self.task.path, model, {**(fields or {}), "model": model}, target.settings
        )
        data: Any = request.body
        headers = request.wire_headers()
        if fields is None:
            data = aiohttp.FormData({"model": model, **self.parameters})
            data.add_field("file", self.body, filename="sound", content_type=self.content_type or "audio/wav")
            headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
        kind, answer = await self.client.exchange(request.url, data, headers, member.config.timeouts.total)
        if not self.task.sound_out and not isinstance(load(answer), dict) and "json" in kind:
            raise CallFailedError(MALFORMED)
        return kind, answer


def _is_openai(member: Member) -> bool:
    target = member.config.target
    return isinstance(target, HttpTarget) and target.provider.api == "chat"


def _fields(body: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises `ApiError`."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the request is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the request is not a JSON object")
    if "model" in value:
        raise ApiError(400, "model is the pool's to choose; leave it out", param="model")
    return value
