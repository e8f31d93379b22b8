"""Calls of the providers that the litellm package has: the long tail, as an extra."""

from __future__ import annotations

import asyncio
import importlib
import time
from typing import TYPE_CHECKING, Any

from lmtool.access.secret import Secret
from lmtool.gateway.backend import CallFailedError, Reply
from lmtool.gateway.pool_request import response_format
from lmtool.providers import openai_completions
from lmtool.providers.chat_answer import ChatAnswer
from lmtool.providers.chat_request import UNIFIED_PARAMETERS
from lmtool.providers.outcomes import EMPTY, INCOMPLETE, RESET, TIMEOUT, outcome_of_status

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lmtool.gateway.config import LitellmTarget, MemberConfig
    from lmtool.gateway.pool_request import PoolRequest
    from lmtool.providers.answer_events import AnswerEvent
    from lmtool.routing.outcomes import Outcome


class LitellmBackend:
    """A member behind litellm, which is imported by the first call; retries and fallbacks of its own are off."""

    def __init__(self, config: MemberConfig, target: LitellmTarget) -> None:
        self._config = config
        self._target = target

    def lacks(self, request: PoolRequest) -> Sequence[str]:
        """Constraints that no API has; all else shows when it is asked."""
        constraint = request.constraint
        known = constraint is None or response_format(constraint) is not None
        return [] if known or constraint is None else [f"constraints of kind {constraint.kind}"]

    async def close(self) -> None:
        """It keeps its connections itself."""

    async def answer(self, request: PoolRequest, reply: Reply) -> AsyncGenerator[list[AnswerEvent], None]:
        """See `Backend.answer`."""
        litellm: Any = await asyncio.to_thread(importlib.import_module, "litellm")
        timeouts, loop = self._config.timeouts, asyncio.get_running_loop()
        began, answer = loop.time(), ChatAnswer()
        deadline = began + timeouts.total
        stream = request.chat.stream
        first = deadline if not stream or timeouts.first_token is None else began + timeouts.first_token
        try:
            async with asyncio.timeout_at(min(first, deadline)):
                got = await litellm.acompletion(**self._arguments(request))
            parts = aiter(got) if stream else None
            while True:
                async with asyncio.timeout_at(min(first, deadline)):
                    part = got if parts is None else await anext(parts, None)
                if part is None:
                    break
                value, first = part.model_dump(), deadline
                events = list(openai_completions.read(value))
                answer.add(events)
                reply.ids, reply.model = {"id": str(value.get("id"))}, value.get("model")
                yield events
                if parts is None:
                    break
        except TimeoutError:
            raise CallFailedError(TIMEOUT) from None
        except Exception as error:  # noqa: BLE001  # litellm has an exception for each status, and lets its providers' own through
            raise CallFailedError(_outcome(error)) from None
        if not answer.finished or answer.empty:
            raise CallFailedError(EMPTY if answer.empty else INCOMPLETE)

    def _arguments(self, request: PoolRequest) -> dict[str, Any]:
        chat = request.of(self._config)
        parameters = {UNIFIED_PARAMETERS.get(name, name): value for name, value in chat.parameters.items()}
        body = openai_completions.write_chat(chat, self._config.model or "", parameters)
        if request.constraint is not None:
            body["response_format"] = response_format(request.constraint)
        own = self._target.arguments
        secrets = {name: one.reveal() if isinstance(one, Secret) else one for name, one in own.items()}
        return {**body, **secrets, "num_retries": 0, "max_retries": 0, "timeout": self._config.timeouts.total}


def _outcome(error: Exception) -> Outcome:
    """How the call failed, by the status that litellm found; never in its words."""
    if isinstance(error, CallFailedError):
        return error.outcome
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return RESET
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    lower = {str(name).lower(): str(value) for name, value in dict(headers).items()}
    kind = b"context_length_exceeded" if type(error).__name__ == "ContextWindowExceededError" else b""
    return outcome_of_status(status, lower, kind, time.time())
