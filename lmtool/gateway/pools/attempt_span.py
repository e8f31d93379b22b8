"""The span of one call of a member: a client's part of the trace of its request."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lmtool.core.errors import LmtoolError
from lmtool.gateway.pools.backend import CallFailedError
from lmtool.gateway.pools.config import HttpTarget
from lmtool.net.telemetry.spans import PROVIDERS
from lmtool.protocol.providers.answer_events import TokenUsage, newer_usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lmtool.gateway.pools.backend import Reply
    from lmtool.gateway.pools.member import Member
    from lmtool.net.telemetry.spans import Tracer, Value
    from lmtool.protocol.providers.answer_events import AnswerEvent


async def in_span(
    events: AsyncGenerator[list[AnswerEvent], None], tracer: Tracer, member: Member, reply: Reply
) -> AsyncGenerator[list[AnswerEvent], None]:
    """The events of a member's answer, in a span below that of `reply`, which then names this one to the member.

    Raises what `events` raises.
    """
    name = f"chat {member.config.model}" if member.config.model else "chat"
    span = tracer.begin(name, "client", _attributes(member), reply.trace_context)
    reply.trace_context, usage = span.trace, TokenUsage()
    error: str | None = None
    try:
        async with aclosing(events):
            async for some in events:
                for event in some:
                    if isinstance(event, TokenUsage):
                        usage = newer_usage(usage, event)
                yield some
    except CallFailedError as failed:
        error = failed.outcome.kind
        raise
    except LmtoolError as refused:
        error = refused.code
        raise
    except (GeneratorExit, asyncio.CancelledError):
        span.set({"gen_ai.response.finish_reasons": ["cancelled"]})
        raise
    except Exception as bug:
        error = type(bug).__name__
        raise
    finally:
        span.set(_found(usage, reply))
        span.end(error)


def _attributes(member: Member) -> dict[str, Value]:
    target = member.config.target
    found: dict[str, Value] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDERS.get(target.name, target.name),
        "lmtool.member": member.id,
    }
    if member.config.model is not None:
        found["gen_ai.request.model"] = member.config.model
    if isinstance(target, HttpTarget):
        address = urlsplit(target.settings.base_url or target.provider.base_url)
        found["server.address"] = address.hostname or ""
        found["server.port"] = address.port or (443 if address.scheme == "https" else 80)
    return found


def _found(usage: TokenUsage, reply: Reply) -> dict[str, Value]:
    known: dict[str, Value | None] = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens or None,
        "gen_ai.response.model": reply.model,
    }
    return {name: value for name, value in known.items() if value is not None}
