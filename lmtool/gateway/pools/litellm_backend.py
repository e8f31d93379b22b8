"""Calls of the providers that the litellm package has: the long tail, as an extra."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmtool.core.outcomes import Outcome
from lmtool.gateway.pools.backend import CallFailedError, Reply
from lmtool.gateway.pools.pool_request import response_format
from lmtool.net.access.secret import Secret
from lmtool.protocol.providers import openai_completions
from lmtool.protocol.providers.answer_events import ChatAnswer
from lmtool.protocol.providers.chat_request import UNIFIED_PARAMETERS
from lmtool.protocol.providers.continuation import RestOfAnswer, mark_prefill, with_prefill
from lmtool.protocol.providers.outcomes import EMPTY, FIRST_TOKEN_TIMEOUT, INCOMPLETE, RESET, TIMEOUT, outcome_of_status

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lmtool.gateway.pools.config import LitellmTarget, MemberConfig
    from lmtool.gateway.pools.pool_request import PoolRequest
    from lmtool.protocol.providers.answer_events import AnswerEvent


_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no price list from the network
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",  # nor a list of headers
    "LITELLM_MODE": "PRODUCTION",  # else it puts the .env of the working directory into the environment
    "LITELLM_LOG": "CRITICAL",
}
"""What litellm reads when it is imported; whoever sets it otherwise keeps it."""


class LitellmBackend:
    """A member behind litellm, which is imported by the first call; retries and fallbacks of its own are off."""

    resumes = False

    def __init__(self, config: MemberConfig, target: LitellmTarget) -> None:
        self._config = config
        self._target = target

    def lacks(self, request: PoolRequest) -> Sequence[str]:
        """Constraints that no API has, and images by address, which litellm would fetch from wherever a client says."""
        constraint = request.constraint
        lacking = ["image_urls"] if "image_urls" in request.chat.media else []
        if constraint is not None and response_format(constraint) is None:
            lacking.append(f"constraints of kind {constraint.kind}")
        return lacking

    async def close(self) -> None:
        """It keeps its connections itself."""

    async def answer(self, request: PoolRequest, reply: Reply) -> AsyncGenerator[list[AnswerEvent], None]:
        """See `Backend.answer`."""
        litellm, answer = await asyncio.to_thread(import_litellm), ChatAnswer()
        prefill = "" if request.prefill is None else request.prefill.text
        if prefill and not self._takes_prefill(litellm):
            raise CallFailedError(Outcome("refused", "has no prefill"))
        rest = RestOfAnswer(prefill, trimmed=True, repeats=True)
        async with aclosing(self._parts(litellm, request)) as parts:
            async for value in parts:
                events = list(openai_completions.read(value))
                answer.add(events)
                reply.ids = reply.ids or {"id": str(value.get("id"))}  # some of its streams have one for each part
                reply.model = value.get("model")
                if some := rest.events(events) if prefill else events:
                    yield some
        if not answer.finished or (answer.empty and not prefill):
            raise CallFailedError(EMPTY if answer.empty else INCOMPLETE)

    async def _parts(self, litellm: Any, request: PoolRequest) -> AsyncGenerator[dict[str, Any], None]:  # noqa: ANN401 # as `import_litellm`
        """The parts of an answer as OpenAI's API has them, a whole one as one. Raises `CallFailedError`."""
        timeouts, began = self._config.timeouts, asyncio.get_running_loop().time()
        stream, deadline = request.chat.stream, began + timeouts.total
        first = deadline if not stream or timeouts.first_token is None else min(began + timeouts.first_token, deadline)
        got: Any = None
        try:
            async with asyncio.timeout_at(first):
                got = await litellm.acompletion(**self._arguments(request))
            if not stream:
                yield got.model_dump()
                return
            parts = aiter(got)
            while True:
                async with asyncio.timeout_at(first):
                    part = await anext(parts, None)
                if part is None:
                    return
                first = deadline
                yield part.model_dump()
        except TimeoutError:
            raise CallFailedError(TIMEOUT if first == deadline else FIRST_TOKEN_TIMEOUT) from None
        except Exception as error:  # noqa: BLE001  # litellm has an exception for each status, and lets its providers' own through
            raise CallFailedError(_outcome(error)) from None
        finally:
            if stream and got is not None:
                await got.aclose()

    def _takes_prefill(self, litellm: Any) -> bool:  # noqa: ANN401  # as `import_litellm`
        """True if it knows that the model goes on with an answer that has begun."""
        try:
            return litellm.get_model_info(self._config.model).get("supports_assistant_prefill") is True
        except Exception:  # noqa: BLE001  # what it raises for a model that its price list lacks, has no class of its own
            return False

    def _arguments(self, request: PoolRequest) -> dict[str, Any]:
        chat = request.of(self._config)
        chat = replace(chat, messages=with_prefill(chat.messages, chat.prefill, trimmed=True))
        parameters = {UNIFIED_PARAMETERS.get(name, name): value for name, value in chat.parameters.items()}
        body = openai_completions.write_chat(chat, self._config.model or "", parameters)
        if chat.prefill:
            body = mark_prefill(body, "prefix")
        if chat.thinking is not None:
            body |= openai_completions.write_thinking(chat.thinking, chat, body)
        if request.constraint is not None:
            body["response_format"] = response_format(request.constraint)
        own = self._target.arguments
        secrets = {name: one.reveal() if isinstance(one, Secret) else one for name, one in own.items()}
        own_loops = {"num_retries": 0, "max_retries": 0, "timeout": self._config.timeouts.total}
        if chat.tools:
            own_loops["_skip_mcp_handler"] = True  # it would import its proxy, and call tools itself
        return {**body, **secrets, **own_loops}


def import_litellm() -> Any:  # noqa: ANN401 # its stubs are as large as it is
    """The package, quiet and without a look at the network; takes seconds the first time."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    litellm: Any = importlib.import_module("litellm")
    litellm.suppress_debug_info, litellm.telemetry = True, False
    return litellm


def _outcome(error: Exception) -> Outcome:
    """How the call failed, by the status that litellm found; never in its words."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return RESET
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    lower = {str(name).lower(): str(value) for name, value in dict(headers).items()}
    kind = b"context_length_exceeded" if type(error).__name__ == "ContextWindowExceededError" else b""
    return outcome_of_status(status, lower, kind, time.time())
