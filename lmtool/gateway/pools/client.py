"""A client of the unified API: whole answers and streams of pools, for Python programs and `lmtool pools`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp

from lmtool.core.errors import (
    AccessDeniedError,
    ConnectError,
    LmtoolError,
    RemoteProtocolError,
    RequestError,
    ServerError,
    TimeLimitError,
    UsageError,
    rebuilt,
)
from lmtool.net.access.outgoing import DENIED, as_headers, untrusted
from lmtool.net.unix_sockets import HOST, unix_path
from lmtool.protocol.lmtp.endpoint import SocketEndpoint, parse
from lmtool.protocol.providers.body_parts import EventStream
from lmtool.protocol.providers.json_values import list_of, load, object_of, text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

_START = "start one:  lmtool gateway --config FILE"
TIMEOUT = 600.0
"""Seconds for a whole answer."""


@dataclass(frozen=True, slots=True)
class PoolReply:
    """One answer of a pool."""

    text: str
    pool: str
    provider: str
    model: str
    """As the provider calls it."""
    cached: bool
    prompt_tokens: int | None
    response_tokens: int | None
    cost: float | None = None
    """In the currency of the gateway's prices."""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The reply as it was sent."""


def pools(url: str, api_key: str | None = None) -> PoolsClient:
    """A client of a gateway's pools, to use as `async with`. url, api_key: of the gateway. Raises `UsageError`."""
    return PoolsClient(url, api_key)


class PoolsClient:
    """A gateway's pools. Use it as `async with`, or `close` it."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """url: of the server; `http://`, `ws://`, HOST:PORT, or `unix:PATH`. Raises `UsageError` for another."""
        self._url, self._headers, self._socket = _http(url, api_key)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        if self._session is not None:
            await self._session.close()

    async def chat(
        self,
        pool: str,
        message: str,
        *,
        history: Sequence[Mapping[str, str]] = (),
        overrides: Mapping[str, str] | None = None,
        **parameters: object,
    ) -> PoolReply:
        """The answer of a pool to a message.

        history: earlier turns, each with `role` and `content`. overrides: the message for single models, by their id
        or name. parameters: such as `temperature`, as far as the pool lets requests set them. Raises `RequestError`,
        `ServerError` or `ConnectError`.
        """
        reply = object_of(await self._call("POST", _path(pool), _body(message, history, overrides, parameters)))
        answer = object_of(reply.get("provider_response"))
        counts: Any = object_of(answer.get("token_count"))
        cost = reply.get("cost")
        return PoolReply(
            _text(reply),
            pool,
            text_of(reply.get("provider")),
            text_of(reply.get("model")),
            reply.get("cached") is True,
            counts.get("prompt_tokens"),
            counts.get("response_tokens"),
            cost if isinstance(cost, float) else None,
            reply,
        )

    async def stream(
        self,
        pool: str,
        message: str,
        *,
        history: Sequence[Mapping[str, str]] = (),
        overrides: Mapping[str, str] | None = None,
        **parameters: object,
    ) -> AsyncIterator[str]:
        """The pieces of the answer as they come; as `chat`. Leaving early ends the call of the provider."""
        body = _body(message, history, overrides, parameters) | {"stream": True}
        try:
            async with self._open().post(self._url + _path(pool), json=body) as response:
                if response.status != 200:
                    raise _error(response.status, load(await response.read()))
                events = EventStream()
                async for data in response.content.iter_any():
                    for event in events.events(data):
                        value = object_of(load(event.data))
                        if "name" in value:
                            raise _error(502, value)
                        if text := _text(value):
                            yield text
        except aiohttp.ClientError:
            raise ConnectError(f"the connection to {self._url} is gone", "is the gateway running?") from None

    async def status(self) -> list[Mapping[str, Any]]:
        """The state of every pool and of its models."""
        reply = object_of(await self._call("GET", "/v1/language/"))
        pools = reply.get("pools")
        if not isinstance(pools, list):
            raise RemoteProtocolError(f"the server at {self._url} has no pools", _START)
        return pools

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT, sock_connect=10.0)
            connector = aiohttp.UnixConnector(self._socket) if self._socket else None
            self._session = aiohttp.ClientSession(timeout=timeout, headers=self._headers, connector=connector)
        return self._session

    async def _call(self, method: str, path: str, body: object = None) -> object:
        try:
            async with self._open().request(method, self._url + path, json=body) as response:
                value = load(await response.read())
        except aiohttp.ClientSSLError as error:
            raise untrusted(self._url, error) from None
        except (aiohttp.ClientError, TimeoutError):
            raise ConnectError(f"no server answers at {self._url}", _START) from None
        if response.status != 200:
            raise _error(response.status, value)
        return value


def _path(pool: str) -> str:
    return f"/v1/language/{quote(pool, safe='')}/chat"


def _text(reply: Mapping[str, object]) -> str:
    """The text of a reply, or of a piece of one."""
    return text_of(object_of(object_of(reply.get("provider_response")).get("message")).get("content"))


def _body(
    message: str,
    history: Sequence[Mapping[str, str]],
    overrides: Mapping[str, str] | None,
    parameters: Mapping[str, object],
) -> dict[str, object]:
    own = {name: {"message": {"role": "user", "content": text}} for name, text in (overrides or {}).items()}
    return {
        "message": {"role": "user", "content": message},
        "messageHistory": [dict(turn) for turn in history],
        **({"override_params": own} if own else {}),
        **parameters,
    }


def _http(url: str, api_key: str | None) -> tuple[str, dict[str, str], str | None]:
    """The base of a server's routes, the headers for it, and the path of its Unix socket. Raises `UsageError`."""
    endpoint = parse(url, api_key)
    if not isinstance(endpoint, SocketEndpoint):
        raise UsageError("pools are behind a port, not a command", "such as http://127.0.0.1:9099")
    path = unix_path(endpoint.url)
    base = f"http://{HOST}" if path else "http" + endpoint.url.removeprefix("ws").rstrip("/")
    return base, as_headers(endpoint.authorization), path


def _error(status: int, value: object) -> LmtoolError:
    """The error of a refusal: its sentence and what each model said."""
    members = object_of(value)
    attempts = map(object_of, list_of(members.get("attempts")))
    outcomes = [f"{one.get('model')}: {one.get('outcome')}" for one in attempts]
    message = (
        text_of(members.get("message")) or text_of(object_of(members.get("error")).get("message")) or f"status {status}"
    )
    if status in DENIED:
        return AccessDeniedError(message)
    if status == 504:  # its own deadline is over
        return rebuilt(TimeLimitError, message, outcomes, retryable=False)
    return (RequestError if status < 500 else ServerError)(message, *outcomes)
