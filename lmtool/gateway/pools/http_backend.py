"""Calls of providers over HTTP: one aiohttp session, timeouts, a limit of bytes, keys that are read again."""

from __future__ import annotations

import asyncio
import importlib
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.outcomes import OK
from lmtool.gateway.pools.backend import MAX_ANSWER_BYTES, CallFailedError, Reply
from lmtool.gateway.pools.pool_request import response_format
from lmtool.net.access.secret import Secret, SecretFilter
from lmtool.protocol.providers.answer_events import AnswerFailed, ChatAnswer, TextDelta, ToolCallDelta
from lmtool.protocol.providers.continuation import RestOfAnswer
from lmtool.protocol.providers.outcomes import (
    EMPTY,
    FIRST_TOKEN_TIMEOUT,
    INCOMPLETE,
    MALFORMED,
    NO_CONNECTION,
    RESET,
    TIMEOUT,
    TOO_LARGE,
    outcome_of_answer,
    outcome_of_failure,
    outcome_of_status,
)
from lmtool.protocol.providers.provider import Provider

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
    from types import TracebackType
    from typing import Self

    import aiohttp

    from lmtool.core.interfaces import UpstreamExchange, UpstreamTap
    from lmtool.core.outcomes import Outcome
    from lmtool.gateway.pools.config import HttpTarget, MemberConfig
    from lmtool.gateway.pools.pool_request import PoolRequest
    from lmtool.protocol.providers.answer_events import AnswerEvent
    from lmtool.protocol.providers.answer_reader import AnswerReader
    from lmtool.protocol.providers.chat_request import ChatRequest
    from lmtool.protocol.providers.provider import HttpRequest

Write: TypeAlias = "Callable[..., HttpRequest]"
"""Makes a request from a provider, and by name its `model` and `settings`."""
MAX_ERROR_BYTES = 64 * 1024
"""Of an error's body, which is read to tell its kind."""


class HttpClient:
    """The one session of all members.

    aiohttp is imported in a thread: it takes a quarter of a gateway's start, most of it for certificates.
    """

    def __init__(self, tap: UpstreamTap | None = None) -> None:
        """tap: shown every exchange."""
        self.tap = tap
        self._session: asyncio.Task[aiohttp.ClientSession] | None = None

    def prepare(self) -> None:
        """Begin to open the session; needs a running event loop."""
        self._session = self._session or asyncio.create_task(_open_session())

    async def session(self) -> aiohttp.ClientSession:
        """The session, once it is open."""
        self.prepare()
        assert self._session is not None
        return await asyncio.shield(self._session)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await (await self._session).close()


async def _open_session() -> aiohttp.ClientSession:
    http_client = await asyncio.to_thread(importlib.import_module, "lmtool.net.http_client")
    headers = {"accept-encoding": "identity", "user-agent": "lmtool"}
    session: aiohttp.ClientSession = http_client.open_client(headers=headers, decompress=True)
    return session


class HttpBackend:
    """A member behind one of `providers`."""

    resumes = False

    def __init__(self, config: MemberConfig, target: HttpTarget, client: HttpClient) -> None:
        self._config = config
        self._target = target
        self._provider = target.provider
        self._client = client

    def lacks(self, request: PoolRequest) -> Sequence[str]:
        """See `Backend.lacks`."""
        chat = self._chat(request)
        lacking: list[str] = [*self._provider.missing_parameters(chat, self._target.settings)]
        lacking += self._provider.missing_features(chat)
        if request.constraint is not None and chat.response_format is None:
            lacking.append(f"constraints of kind {request.constraint.kind}")
        if chat.prefill and self._provider.prefill_style(self._target.settings) is None:
            lacking.append("prefill")
        return lacking

    def _chat(self, request: PoolRequest) -> ChatRequest:
        chat = request.of(self._config)
        if request.constraint is None:
            return chat
        return replace(chat, response_format=response_format(request.constraint))

    async def close(self) -> None:
        """The session is everybody's."""

    async def answer(self, request: PoolRequest, reply: Reply) -> AsyncGenerator[list[AnswerEvent], None]:
        """See `Backend.answer`."""
        chat = self._chat(request)
        call = _Call(self._config, self._target, chat.stream, reply, self._client.tap)
        call.is_rest = bool(chat.prefill)
        repeats = self._provider.prefill_style(self._target.settings) == "prefix"
        rest = RestOfAnswer(chat.prefill, trimmed=self._provider.trims_prefill, repeats=repeats)
        async with self._response(partial(Provider.request, chat=chat), call) as response:
            async for events in call.read(response):
                if some := rest.events(events) if chat.prefill else events:
                    yield some

    @property
    def provider(self) -> Provider:
        """The API that it calls."""
        return self._provider

    async def fetch(self, write: Write) -> tuple[str, bytes]:
        """Content type and body of a whole answer that is no chat. write: makes the request.

        Raises `CallFailedError`, and `RequestError` for what the API cannot express.
        """
        call, data = _Call(self._config, self._target, False, Reply(), self._client.tap), bytearray()  # noqa: FBT003
        async with self._response(write, call) as response:
            while piece := await call.within(response.content.readany()):
                call.show(piece)
                data += piece
                if len(data) > MAX_ANSWER_BYTES:
                    raise CallFailedError(TOO_LARGE)
            call.complete = True
        return response.headers.get("content-type", ""), bytes(data)

    @asynccontextmanager
    async def _response(self, write: Write, call: _Call) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """The response to the request, until it has been read. Raises `CallFailedError`, inside as well."""
        session = await self._client.session()
        import aiohttp  # by now there, see `HttpClient`

        try:
            async with call, await self._opened(session, write, call) as response:
                yield response
        except TimeoutError:
            raise CallFailedError(call.lateness) from None
        except aiohttp.ClientError as error:
            raise CallFailedError(_outcome(error)) from None

    async def _opened(self, session: aiohttp.ClientSession, write: Write, call: _Call) -> aiohttp.ClientResponse:
        """The response, once it is a good one. A key that is refused is read again, and once more sent.

        Raises `CallFailedError`.
        """
        response = await call.send(session, self._written(write))
        if response.status in {401, 403} and self._read_key_again():
            response.close()
            response = await call.send(session, self._written(write))
        if 200 <= response.status < 300:
            return response
        async with response:
            data = await call.within(response.content.read(MAX_ERROR_BYTES))
        call.show(data)
        call.complete = True
        headers = {name.lower(): value for name, value in response.headers.items()}
        raise CallFailedError(outcome_of_status(response.status, headers, data, time.time()))

    def _written(self, write: Write) -> HttpRequest:
        return write(self._provider, model=self._config.model or "", settings=self._target.settings)

    def _read_key_again(self) -> bool:
        """True if the key has another value by now, which is used from now on."""
        key = self._target.key
        if key is None or (new := key.again()) == key:
            return False
        self._target = replace(self._target, key=new, settings=replace(self._target.settings, api_key=new.secret))
        return True


class _Call:
    """One call: its deadlines, and what has arrived of its answer."""

    def __init__(
        self, config: MemberConfig, target: HttpTarget, stream: bool, reply: Reply, tap: UpstreamTap | None
    ) -> None:
        timeouts, now = config.timeouts, asyncio.get_running_loop().time()
        self._deadline = now + timeouts.total
        first = timeouts.first_token if stream and timeouts.first_token is not None else timeouts.total
        self._first_deadline = min(now + first, self._deadline)
        self._target = target
        self._stream = stream
        self._reply = reply
        self._begun = False
        self._answer = ChatAnswer()
        self._tap = tap
        self._exchange: UpstreamExchange | None = None
        self._filter = SecretFilter(())
        self.complete = False
        """True if the answer has come to its end."""
        self.is_rest = False
        """True if the rest of an answer is requested, which may be nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_exchange()

    def _end_exchange(self) -> None:
        if self._exchange is not None:
            self._exchange.data(self._filter.finish())
            self._exchange.end(complete=self.complete)
            self._exchange = None

    def show(self, data: bytes) -> None:
        """Show more of the answer to the tap."""
        if self._exchange is not None:
            self._exchange.data(self._filter.feed(data))

    @property
    def lateness(self) -> Outcome:
        """The outcome of a call that is not done in time."""
        waits_for_first = not self._begun and self._first_deadline < self._deadline
        return FIRST_TOKEN_TIMEOUT if waits_for_first else TIMEOUT

    async def within(self, work: Awaitable[bytes]) -> bytes:
        """The bytes that this reads, in time. Raises `TimeoutError`."""
        async with asyncio.timeout_at(self._deadline if self._begun else self._first_deadline):
            return await work

    async def send(self, session: aiohttp.ClientSession, request: HttpRequest) -> aiohttp.ClientResponse:
        """The response's head."""
        from lmtool.net.http_client import as_body

        trace = self._reply.trace_context
        headers = request.wire_headers() | ({} if trace is None else trace.headers)
        self._end_exchange()  # of a call with an older key
        if self._tap is not None:
            self._filter = SecretFilter(_secrets(request))
            self._exchange = self._tap.begin(request.method, request.url, headers, request.body)
        async with asyncio.timeout_at(self._first_deadline):
            response = await session.request(
                request.method, request.url, data=as_body(request.body), headers=headers, allow_redirects=False
            )
        if self._exchange is not None:
            self._exchange.head(response.status, response.headers)
        return response

    async def read(self, response: aiohttp.ClientResponse) -> AsyncGenerator[list[AnswerEvent], None]:
        """The events of the body: as they come where they were asked for as a stream, all at the end otherwise."""
        reader = self._target.provider.reader(response.headers.get("content-type", ""))
        collected: list[AnswerEvent] = []
        size = 0
        while data := await self.within(response.content.readany()):
            self.show(data)
            size += len(data)
            if size > MAX_ANSWER_BYTES:
                raise CallFailedError(TOO_LARGE)
            events = self._check(reader, reader.feed(data))
            if self._stream and events:
                yield events
            else:
                collected += events
        self.complete = True
        collected += self._check(reader, reader.end())
        outcome = outcome_of_answer(reader, self._answer)
        if outcome is EMPTY and self.is_rest and self._answer.finished:
            outcome = OK
        if outcome.kind != "ok":
            raise CallFailedError(outcome)
        if collected:
            yield collected

    def _check(self, reader: AnswerReader, events: list[AnswerEvent]) -> list[AnswerEvent]:
        """The events, if they are well-formed. Raises `CallFailedError`."""
        if reader.malformed:
            raise CallFailedError(MALFORMED)
        failed = next((event for event in events if isinstance(event, AnswerFailed)), None)
        if failed is not None:
            raise CallFailedError(outcome_of_failure(failed))
        self._answer.add(events)
        self._begun = self._begun or any(isinstance(event, TextDelta | ToolCallDelta) for event in events)
        self._reply.ids, self._reply.model = reader.ids, reader.model
        return events


def _secrets(request: HttpRequest) -> list[Secret]:
    """What an answer may repeat and nobody may see."""
    secrets = [one for one in request.headers.values() if isinstance(one, Secret)]
    return [Secret(one.reveal().removeprefix("Bearer ")) for one in secrets]


def _outcome(error: aiohttp.ClientError) -> Outcome:
    """What happened to a connection."""
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorError):
        return NO_CONNECTION
    if isinstance(error, aiohttp.ClientPayloadError):
        return INCOMPLETE
    return MALFORMED if isinstance(error, aiohttp.ClientResponseError | aiohttp.InvalidURL) else RESET
