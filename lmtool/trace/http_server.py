"""HTTP/1.1 connections of the proxy and the mock server: admission, request limits per key, refusals."""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING

from lmtool.core.errors import RateLimitError, UnknownModelError
from lmtool.net.access.caller import current_caller
from lmtool.net.access.forwarding import ConflictingAddressesError, client_address
from lmtool.net.access.policy import Refusal, answer_headers, find_refusal, is_open, is_preflight, preflight_headers
from lmtool.net.access.stall import ArrivalTimer
from lmtool.protocol.http.errors import ApiError, answer_of, refused
from lmtool.protocol.providers.answer_events import TokenUsage
from lmtool.protocol.providers.answer_reader import AnswerReader, api_of
from lmtool.protocol.providers.body_parts import form_of
from lmtool.trace.http_stream import has_no_body, is_unambiguous, is_websocket_handshake

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
    from socket import socket
    from ssl import SSLContext

    from lmtool.net.access.caller import Caller, StreamUse
    from lmtool.net.access.policy import AccessPolicy
    from lmtool.protocol.lmtp.frames import Entry
    from lmtool.trace.exchanges import HttpExchange
    from lmtool.trace.http_stream import Head

CHUNK = 2**16
"""Bytes read at once; a peer that does not read stops the other one after a few of these."""
LINGER = 2.0
"""Seconds that a client has to read the last answer while it still sends."""
UNREADABLE = Refusal("invalid_headers", "this is not HTTP/1.1", "send requests that follow RFC 9112")


class ConnectionServer:
    """Serves each connection in its own task, until `close`."""

    def __init__(self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        """serve: called with both streams of each connection; cancelled by `close`."""
        self._handle = serve
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, sockets: Iterable[socket], tls: SSLContext | None = None) -> None:
        """Accept connections on bound sockets; returns at once. tls: context for TLS."""
        for one in sockets:
            self._servers.append(await asyncio.start_server(self._accept, sock=one, limit=CHUNK, ssl=tls))

    async def close(self) -> None:
        """Accept no more connections and abort the open ones."""
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def open_connections(self) -> int:
        """Number of open connections."""
        return len(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(asyncio.CancelledError):  # only `close` cancels, and waits for this
            await self._handle(reader, writer)


@contextlib.contextmanager
def arriving(writer: asyncio.StreamWriter) -> Iterator[ArrivalTimer]:
    """Abort the connection if a request takes too long to arrive while the block runs."""
    timer = ArrivalTimer(writer.transport)
    timer.start()
    try:
        yield timer
    finally:
        timer.stop()


def refusal_of(policy: AccessPolicy, head: Head) -> Refusal | None:
    """Reason a request is refused; None if it is admitted.

    Requests that need no key (`/health`, a preflight) must have no body: what follows would be admitted with them.
    """
    if not is_unambiguous(head):
        return UNREADABLE
    method, path = head.start[:2] if has_no_body(head) else ("", "")
    return find_refusal(policy, head.headers, method=method, path=path.partition("?")[0])


def refusal_answer(policy: AccessPolicy, head: Head | None, refusal: Refusal) -> bytes:
    """Response to a refused request; its connection ends. head: None if none could be parsed."""
    if head is None or is_websocket_handshake(head):
        answer = refusal.status, refusal.sentence.encode()
    else:
        answer = refused(head.start[1], refusal)
    return _ending(policy, head, *answer, refusal.headers)


def unreachable_answer(policy: AccessPolicy, head: Head, sentence: str) -> bytes:
    """Response of a proxy whose server is unreachable, 502; its connection ends."""
    if is_websocket_handshake(head):
        return _ending(policy, head, HTTPStatus.BAD_GATEWAY, sentence.encode())
    error = ApiError(HTTPStatus.BAD_GATEWAY, sentence, code="connection")
    return _ending(policy, head, *answer_of(head.start[1], error))


def _ending(
    policy: AccessPolicy, head: Head | None, status: int, body: bytes, more: Iterable[tuple[str, str]] = ()
) -> bytes:
    is_text = head is None or is_websocket_handshake(head)
    allowed = [] if head is None else answer_headers(policy, head.headers)
    kind = ("content-type", "text/plain; charset=utf-8" if is_text else "application/json")
    return _head(status, [*allowed, *more, kind, ("content-length", str(len(body))), ("connection", "close")]) + body


def preflight_answer(policy: AccessPolicy, head: Head) -> bytes:
    """Response to an admitted preflight."""
    return _head(HTTPStatus.NO_CONTENT, preflight_headers(policy, head.headers))


async def last_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes) -> None:
    """Send the last bytes of a connection and discard input for a moment: an unread body would reset the connection."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(LINGER):
            writer.write(answer)
            await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
            while await reader.read(CHUNK):
                pass


def _head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1", "replace")


CONFLICTING = Refusal("invalid_headers", "Forwarded and X-Forwarded-For name different clients", "send neither")


class Admission:
    """One connection's requests, each counted from `begin` to `end` against the limits of its key and address."""

    def __init__(self, policy: AccessPolicy, writer: asyncio.StreamWriter) -> None:
        """writer: of the connection to the client or to a trusted proxy."""
        name = writer.get_extra_info("peername")
        self._policy = policy
        self._peer: str | None = name[0] if isinstance(name, tuple) else None
        self._open = contextlib.ExitStack()
        self.caller: Caller | None = None
        """Caller of the current request; None if nothing is counted."""

    def begin(self, head: Head) -> Refusal | None:
        """Count a request with a valid key, a handshake while its WebSocket is open. Returns a refusal, or None."""
        method, path = head.start[0], head.start[1].partition("?")[0]
        callers = self._policy.callers
        try:
            address = self.address(head)
            if callers is None or is_open(method, path) or is_preflight(method, head.headers):
                return None
            self.caller = callers.showing(head.headers, address)
            if self.caller is not None:
                self._open.enter_context(self.caller.connected(as_request=not is_websocket_handshake(head)))
        except ConflictingAddressesError:
            return CONFLICTING
        except RateLimitError as error:
            return Refusal.of_limit(error)
        return None

    def address(self, head: Head) -> str | None:
        """Client address of a request; None for a Unix socket. Raises `ConflictingAddressesError`."""
        return client_address(self._policy.proxies, self._peer, head.headers)

    def end(self) -> None:
        """End the counted requests; does nothing if there are none."""
        self._open.close()
        self.caller = None

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        """Make the caller the current one for the block."""
        token = current_caller.set(self.caller)
        try:
            yield
        finally:
            current_caller.reset(token)


def check_model(caller: Caller, payload: Mapping[str, object]) -> None:
    """Raise `UnknownModelError` for a model that the key may not use, `AccessDeniedError` for a revoked key."""
    key, name = caller.key, payload.get("model")
    if isinstance(name, str) and not key.allows_name(name):
        raise UnknownModelError(f"model {name!r:.200} is not served here")


def count_entries(use: StreamUse, entries: Iterable[Entry]) -> None:
    """Count the tokens of LMTP entries of one stream."""
    for entry in entries:
        if "token" in entry:
            use.count(0, 1)
            use.begin()


def count_answer(use: StreamUse, exchange: HttpExchange) -> None:
    """Count the tokens that a recorded answer reports."""
    response = exchange.response
    api = api_of(exchange.request.method, exchange.request.path)
    if response is None or api is None:
        return
    reader = AnswerReader(api, form_of(response.headers.get("content-type", "")))
    events = [event for part in exchange.parts for event in reader.feed(part.data)] + reader.end()
    usage = [event for event in events if isinstance(event, TokenUsage)]
    if usage:
        use.count(usage[-1].prompt_tokens or 0, usage[-1].completion_tokens or 0)


async def until(time: float) -> None:
    """Wait until this time of the event loop's clock; if it is past, let other tasks run once."""
    await asyncio.sleep(max(0.0, time - asyncio.get_running_loop().time()))
