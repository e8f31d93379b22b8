"""Mock server: answers LMTP, Evergreen and HTTP requests from recordings on one port, or forwards them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from lmtool.core.errors import ConnectError, LmtoolError, RateLimitError, UnknownModelError, UsageError
from lmtool.net.access.caller import counted_stream, current_caller
from lmtool.net.access.credentials import without_query_keys
from lmtool.net.access.outgoing import as_headers
from lmtool.net.access.policy import AccessPolicy, Refusal, answer_headers, is_preflight
from lmtool.protocol.lmtp.messages import wire_code
from lmtool.protocol.lmtp.transport import dial
from lmtool.protocol.providers.answer_reader import api_of
from lmtool.trace.exchanges import HttpExchange, LmtpExchange, read_request
from lmtool.trace.http_server import (
    UNREADABLE,
    Admission,
    ConnectionServer,
    arriving,
    check_model,
    count_answer,
    count_entries,
    last_answer,
    preflight_answer,
    refusal_answer,
    refusal_of,
    until,
)
from lmtool.trace.http_stream import Data, Head, HttpStream, Last, is_session, is_websocket_handshake, path_below
from lmtool.trace.matching import Chaos, IncomingRequest, Miss
from lmtool.trace.proxy import CONNECT_LIMIT
from lmtool.trace.websocket_stream import ServerSocket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    import aiohttp
    from websockets.asyncio.client import ClientConnection

    from lmtool.net.access.caller import StreamUse
    from lmtool.net.access.stall import ArrivalTimer
    from lmtool.trace.exchanges import RecordedRequest
    from lmtool.trace.matching import Matcher, OnMiss, Pace
    from lmtool.trace.proxy import Target
    from lmtool.trace.session_player import SessionPlayer

_LARGEST = 2**26
_OWN = frozenset(
    {"transfer-encoding", "content-length", "content-encoding", "connection", "vary", "access-control-allow-origin"}
)
"""Headers that this server writes itself."""
_STREAMS = ("GENERATE", "SCORE")


class Player(ConnectionServer):
    """Answers requests as they were answered when they were recorded."""

    def __init__(
        self,
        matcher: Matcher[RecordedRequest],
        pace: Pace,
        on_miss: OnMiss,
        warn: Callable[[str], None],
        chaos: Chaos | None = None,
        target: Target | None = None,
        policy: AccessPolicy | None = None,
    ) -> None:
        """Make a server; call `listen`. warn: called with a sentence for each request without a recorded answer.

        target: a real server for such requests, whatever `on_miss` is. policy: access policy.
        """
        self.policy = policy or AccessPolicy()
        self.target = target
        self.chaos = chaos or Chaos(())
        self.pace = pace
        self.on_miss: OnMiss = on_miss
        self._matcher = matcher
        self._warn = warn
        super().__init__(self._serve)
        self.sessions: SessionPlayer | None = None
        """Player of Evergreen sessions; None if none was recorded."""
        if any(one.protocol == "evergreen" for one in matcher.recorded):
            from lmtool.trace.session_player import SessionPlayer  # needs packages of the `serve` extra

            self.sessions = SessionPlayer(self, matcher, self.policy)
        self.answered = 0
        """Requests with a recorded answer."""
        self.missed = 0
        """Requests without a recorded answer."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _Connection(self, reader, writer).run()
        except (ConnectionError, asyncio.CancelledError):  # the client disconnected, or `close` was called
            writer.transport.abort()
        else:
            writer.close()

    async def close(self) -> None:
        """Accept no more connections, and end the open ones."""
        if self.sessions is not None:
            await self.sessions.close()
        await super().close()

    async def speak(self, head: Head, socket: ServerSocket) -> None:
        """Serve an admitted WebSocket with the protocol of its path."""
        if self.sessions is not None and is_session(head):
            await self.sessions.speak(socket, head.get("user-agent"))
        else:
            await _LmtpSocket(self, socket).run()

    def find(self, request: IncomingRequest) -> tuple[RecordedRequest | None, str]:
        """Exchange that answers; or None, and a sentence with the reason."""
        match = self._matcher.match(request)
        if not isinstance(match, Miss):
            self.answered += 1
            return match, ""
        self.missed += 1
        reason = f"no recorded request matches this {request.kind or 'frame'}"
        if match.nearest is not None:
            nearest = f"{match.nearest.kind} at {match.nearest.time:.3f} s on connection {match.nearest.connection}"
            reason += f"; the nearest is {nearest}: " + "; ".join(match.differences)
        self._warn(reason)
        return (match.nearest if self.on_miss == "nearest" else None), reason


class _Connection:
    """One client."""

    def __init__(self, player: Player, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._player = player
        self._reader = reader
        self._writer = writer
        self._admission = Admission(player.policy, writer)
        self._cors: list[tuple[str, str]] = []
        """CORS headers for the response to the current request."""

    async def run(self) -> None:
        """Answer requests until the client disconnects or one is refused."""
        try:
            with arriving(self._writer) as arrival:
                await self._run(arrival)
        finally:
            self._admission.end()

    async def _run(self, arrival: ArrivalTimer) -> None:
        requests, head, body = HttpStream(responses=False), None, bytearray()
        while data := await self._reader.read(2**16):
            arrival.count(len(data))
            parts = requests.feed(data)
            for i, part in enumerate(parts):
                if isinstance(part, Head):
                    head, body = part, bytearray()
                    if refusal := refusal_of(self._player.policy, head) or self._admission.begin(head):
                        answer = refusal_answer(self._player.policy, head, refusal)
                        await last_answer(self._reader, self._writer, answer)
                        return
                elif isinstance(part, Data):
                    body += part.body
                elif isinstance(part, Last) and head is not None:
                    arrival.stop()
                    if is_websocket_handshake(head):
                        rest = b"".join(later.raw for later in parts[i + 1 :])
                        with self._admission.as_current():
                            await self._player.speak(head, ServerSocket(self._reader, self._writer, head.raw + rest))
                        return
                    is_last = head.start[2] == "HTTP/1.0" or "close" in head.get("connection").lower()
                    if not await self._answer(head, bytes(body)) or is_last:
                        return
                    self._admission.end()
                    arrival.start()
            if requests.broken or len(body) > _LARGEST:
                await last_answer(self._reader, self._writer, refusal_answer(self._player.policy, None, UNREADABLE))
                return

    async def _answer(self, head: Head, body: bytes) -> bool:
        """Answer an HTTP request. Returns True if the connection stays open."""
        if is_preflight(head.start[0], head.headers):
            self._writer.write(preflight_answer(self._player.policy, head))
            return True
        self._cors = answer_headers(self._player.policy, head.headers)
        try:
            value = json.loads(body) if body else {}
        except ValueError:
            value = {}
        request = IncomingRequest(
            f"{head.start[0]} {without_query_keys(head.start[1])}",
            value if isinstance(value, dict) else {},
            body,
            "http",
        )
        try:
            if self._admission.caller is not None:
                check_model(self._admission.caller, request.payload)
            exchange, why = self._player.find(request)
            if isinstance(exchange, HttpExchange) and exchange.response is not None:
                await self._play(exchange)
                return exchange.complete
        except RateLimitError as error:
            answer = refusal_answer(self._player.policy, head, Refusal.of_limit(error))
            await last_answer(self._reader, self._writer, answer)
            return False
        except UnknownModelError as error:
            await self._refuse(404, "Not Found", error.message)
            return True
        if self._player.target is not None:
            await self._forward(self._player.target, head, body)
            return True
        if self._player.on_miss == "hang":
            await self._reader.read()
        elif self._player.on_miss != "close":
            await self._refuse(404, "Not Found", why)
            return True
        return False

    async def _refuse(self, status: int, reason: str, why: str) -> None:
        error = json.dumps({"error": {"message": why, "type": "no_recording", "code": None}}).encode()
        self._write_head(status, reason, {"content-type": "application/json"}, len(error))
        self._writer.write(error)
        await self._writer.drain()

    async def _forward(self, target: Target, head: Head, body: bytes) -> None:
        """Answer as the real server does; 502 if it is unreachable."""
        started = False
        try:
            async for part in forward_http(target, head, body):
                if isinstance(part, bytes):
                    self._writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                    await self._writer.drain()
                else:
                    started = True
                    self._write_head(part.status, part.reason or "", part.headers, None)
            self._writer.write(b"0\r\n\r\n")
        except LmtoolError as error:
            if started:
                raise ConnectionAbortedError from error
            await self._refuse(502, "Bad Gateway", error.message)
        await self._writer.drain()

    async def _play(self, exchange: HttpExchange) -> None:
        """Send a recorded answer; it counts as a stream of the caller if it generates. Raises `RateLimitError`."""
        response, generates = exchange.response, api_of(exchange.request.method, exchange.request.path) is not None
        assert response is not None
        with self._admission.as_current(), counted_stream() if generates else contextlib.nullcontext() as use:
            if use is not None:
                count_answer(use, exchange)
            size = None if exchange.streamed else sum(len(part.data) for part in exchange.parts)
            self._write_head(response.status, response.reason, response.headers, size)
            parts, cut = self._player.chaos.parts(exchange, exchange.parts)
            due = self._player.pace.due(part.offset for part in parts)
            began = asyncio.get_running_loop().time()
            for when, part in zip(due, parts, strict=True):
                await until(began + when)
                self._writer.write(part.data if size is not None else b"%x\r\n%s\r\n" % (len(part.data), part.data))
                await self._writer.drain()
            if cut:
                raise ConnectionAbortedError
            if size is None and exchange.complete:
                self._writer.write(b"0\r\n\r\n")
                await self._writer.drain()

    def _write_head(self, status: int, reason: str, headers: Mapping[str, str], size: int | None) -> None:
        framing = "transfer-encoding: chunked" if size is None else f"content-length: {size}"
        passed_on = [f"{name}: {value}" for name, value in headers.items() if name.lower() not in _OWN]
        cors = [f"{name}: {value}" for name, value in self._cors]
        lines = [f"HTTP/1.1 {status} {reason}", *passed_on, *cors, framing, "", ""]
        self._writer.write("\r\n".join(lines).encode("latin-1", "replace"))


class _LmtpSocket:
    """One client that speaks LMTP."""

    def __init__(self, player: Player, socket: ServerSocket) -> None:
        self._player = player
        self._socket = socket
        self._plays: list[asyncio.Task[None]] = []
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._extended = False
        """True once the client has shown that it supports the extensions."""
        self._forwarder = None if player.target is None else FrameForwarder(player.target, socket.send)

    async def run(self) -> None:
        """Serve until the client closes or disconnects."""
        try:
            async for message in self._socket.messages():
                if not await self._receive(message):
                    self._socket.close(1011, "no recording")
                    break
        finally:
            await self._socket.flush()
            if self._forwarder is not None:
                await self._forwarder.close()
            for play in self._plays:
                play.cancel()
            for failed in await asyncio.gather(*self._plays, return_exceptions=True):
                if isinstance(failed, Exception):
                    raise failed

    async def _receive(self, frame: str | bytes) -> bool:
        """Start to answer a frame. Returns True if the connection stays open."""
        command, payload = read_request(frame)
        self._extended = self._extended or "lmtp" in payload
        key = json.dumps(payload.get("stream_id"), sort_keys=True)
        if command == "CANCEL":
            if self._forwarder is not None and key not in self._streams:
                await self._forward(frame, payload.get("stream_id"), "TOKEN")
            else:
                await self._cancel(key, payload.get("stream_id"))
            return True
        try:
            use = _begun(command, payload)
        except LmtoolError as error:
            await self._fail(_answer_of(command), payload.get("stream_id"), error.sentence, error)
            return True
        exchange, why = self._player.find(IncomingRequest(command or "", payload, frame))
        if isinstance(exchange, LmtpExchange):
            self._streams[key] = asyncio.create_task(self._play(exchange, payload.get("stream_id"), use))
            if use is not None:
                self._streams[key].add_done_callback(lambda _: use.end())
            self._plays.append(self._streams[key])
            return True
        if use is not None:
            use.end()
        if self._player.on_miss == "close":
            return False
        if self._player.on_miss != "hang":
            answer = _answer_of(command)
            if self._forwarder is None:
                await self._fail(answer, payload.get("stream_id"), why)
            else:
                await self._forward(frame, payload.get("stream_id"), answer)
        return True

    async def _forward(self, frame: str | bytes, stream_id: object, answer: str) -> None:
        assert self._forwarder is not None
        try:
            await self._forwarder.send(frame)
        except LmtoolError as error:
            await self._fail(answer, stream_id, error.message)

    async def _fail(self, answer: str, stream_id: object, why: str, error: LmtoolError | None = None) -> None:
        """Refuse a request. error: its code is sent too if the client supports the extensions (EXT-2, EXT-7)."""
        entry: dict[str, object] = {"stream_id": stream_id, "error": why}
        if error is not None and self._extended:
            entry |= {"error_code": wire_code(error.code), "retryable": error.retryable}
            entry |= {"retry_after": error.retry_after} if error.retry_after else {}
        await self._socket.send(f"{answer} {json.dumps([entry])}")

    async def _play(self, exchange: LmtpExchange, stream_id: object, use: StreamUse | None) -> None:
        replies, cut = self._player.chaos.replies(exchange, exchange.replies)
        due = self._player.pace.due(reply.offset for reply in replies)
        began = asyncio.get_running_loop().time()
        for when, reply in zip(due, replies, strict=True):
            await until(began + when)
            if use is not None:
                count_entries(use, reply.entries)
            await self._socket.send(reply.wire(exchange.stream_id, stream_id))
        if cut:
            self._socket.cut()

    async def _cancel(self, key: str, stream_id: object) -> None:
        play = self._streams.get(key)
        if play is not None and not play.done():
            play.cancel()
            await self._socket.send(f"TOKEN {json.dumps([{'stream_id': stream_id, 'finish_reason': 'cancelled'}])}")


def _begun(command: str | None, payload: Mapping[str, object]) -> StreamUse | None:
    """Start a stream of the current caller, counted until its end; None for other requests, and without a key file.

    Raises `LmtoolError` for what its key does not allow.
    """
    caller = current_caller.get()
    if caller is None or command not in _STREAMS:
        return None
    check_model(caller, payload)
    prompt = payload.get("prompt")
    return caller.begin_stream(len(prompt) if isinstance(prompt, list) else 0)


def _answer_of(command: str | None) -> str:
    """The command of the answer to a request."""
    return "TOKEN" if command in _STREAMS else "MSG"


_HOP = {
    *("host", "connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "accept-encoding"),
    "expect",
}
"""Headers of one connection, which are not forwarded (RFC 9110, 7.6.1); answers must come uncompressed."""
_OURS = {"origin", "sec-fetch-site", "proxy-authorization"}
"""Headers meant for this server only; the server behind it is called by a program, not a browser."""
_KEYS = {"authorization", "x-api-key"}
"""Headers with the client's key for the server behind, unless this program has its own key for it."""


class FrameForwarder:
    """One client's connection to an LMTP server, opened for the first forwarded frame."""

    def __init__(self, target: Target, answer: Callable[[str], Awaitable[None]]) -> None:
        """answer: takes each frame from the server."""
        self._target = target
        self._answer = answer
        self._connecting: asyncio.Task[ClientConnection] | None = None
        self._reading: asyncio.Task[None] | None = None

    async def send(self, frame: str | bytes) -> None:
        """Forward a frame. Raises `ConnectError` if the server is unreachable or disconnected, `AccessDeniedError`."""
        from websockets.exceptions import ConnectionClosed

        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        connection = await self._connecting
        try:
            await connection.send(frame)
        except ConnectionClosed:
            raise ConnectError(f"the connection to {self._target.url} is lost") from None

    async def close(self) -> None:
        """End the connection."""
        if self._connecting is None:
            return
        self._connecting.cancel()
        (connection,) = await asyncio.gather(self._connecting, return_exceptions=True)
        if self._reading is not None and not isinstance(connection, BaseException):
            await connection.close()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _connect(self) -> ClientConnection:
        if self._target.url.startswith("http"):
            raise ConnectError(f"{self._target.url} takes HTTP, this is an LMTP frame")
        options = {"open_timeout": CONNECT_LIMIT, "max_size": None, "proxy": None}
        connection = await dial(self._target.url, self._target.authorization, **options)
        self._reading = asyncio.create_task(self._read(connection))
        return connection

    async def _read(self, connection: ClientConnection) -> None:
        async for frame in connection:
            await self._answer(frame if isinstance(frame, str) else frame.decode("utf-8", "replace"))


async def forward_http(target: Target, head: Head, body: bytes) -> AsyncIterator[aiohttp.ClientResponse | bytes]:
    """Forward a request; yields the response, then pieces of its body as they arrive.

    Raises `ConnectError` if the server is unreachable or breaks off.
    """
    import aiohttp

    from lmtool.net.http_client import as_body, open_client, reason_of, verbatim

    method, path, _ = head.start
    dropped = _HOP | _OURS | (_KEYS if target.authorization is not None else set())
    headers = [(name, value) for name, value in head.headers if name not in dropped]
    headers += [("accept-encoding", "identity"), *as_headers(target.authorization).items()]
    url = verbatim(_url(target, path))
    try:
        async with (
            open_client(connect_timeout=CONNECT_LIMIT) as client,
            client.request(method, url, headers=headers, data=as_body(body), allow_redirects=False) as response,
        ):
            yield response
            async for piece in response.content.iter_any():
                yield piece
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ConnectError(f"{target.url}: {reason_of(error)}") from None


def _url(target: Target, path: str) -> str:
    parts = urlsplit(target.url)
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"{target.url} takes LMTP frames, this is an HTTP request")
    asked = urlsplit(path)
    return urlunsplit((parts.scheme, parts.netloc, path_below(asked.path, target.path), asked.query, ""))
