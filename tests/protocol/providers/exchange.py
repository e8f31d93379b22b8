"""One exchange with a provider over HTTP, as any caller has it: a request, an answer, an outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp

from lmtool.core.outcomes import Outcome
from lmtool.protocol.providers.answer_events import ChatAnswer
from lmtool.protocol.providers.outcomes import RESET, outcome_of_answer, outcome_of_status
from lmtool.protocol.providers.registry import provider_for

if TYPE_CHECKING:
    from lmtool.protocol.providers.answer_reader import AnswerReader
    from lmtool.protocol.providers.chat_request import ChatRequest
    from lmtool.protocol.providers.provider import Settings

NOW = 1792567680.0
"""Wed, 21 Oct 2026 07:28:00 GMT."""


async def exchange(name: str, chat: ChatRequest, settings: Settings) -> tuple[Outcome, ChatAnswer, AnswerReader | None]:
    """Send a chat and read its answer to the end."""
    provider = provider_for(name, settings)
    request = provider.request(chat, "m-1", settings)
    answer, reader = ChatAnswer(), None
    try:
        async with (
            aiohttp.ClientSession(auto_decompress=False) as client,
            client.post(request.url, data=request.body, headers=request.wire_headers()) as response,
        ):
            headers = {name.lower(): value for name, value in response.headers.items()}
            if response.status != 200:
                return outcome_of_status(response.status, headers, await response.read(), NOW), answer, None
            reader = provider.reader(response.content_type)
            async for data in response.content.iter_any():
                answer.add(reader.feed(data))
            answer.add(reader.end())
    except aiohttp.ClientError:
        return RESET, answer, reader
    return outcome_of_answer(reader, answer), answer, reader
