"""The suite's side of a case for servers: connections by name, and everything that is sent and received on them."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from lmtool.measure.conformance import case_script as script
from lmtool.measure.conformance.transcript import ConnectionEnd, HttpAnswer, Message
from lmtool.net.access.credentials import key_protocol
from lmtool.net.access.outgoing import as_headers
from lmtool.net.unix_sockets import HOST, open_websocket, unix_path
from lmtool.protocol.lmtp.transport import connect_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from websockets.asyncio.client import ClientConnection

    from lmtool.measure.conformance.case_script import Step
    from lmtool.measure.conformance.server_under_test import ServerUnderTest
    from lmtool.measure.conformance.transcript import Transcript
    from lmtool.protocol.lmtp.endpoint import SocketEndpoint

_LARGEST = 2**28
_CLOSING = 1.0
"""Seconds that a server has to answer a close frame."""


class StepFailedError(Exception):
    """A step could not be done; the message gives the expected frame and the actual one."""


class Conversation:
    """The suite's side of a case: connections by name, and their transcript."""

    def __init__(self, server: SocketEndpoint, under_test: ServerUnderTest, log: Transcript, timeout: float) -> None:
        self._server = server
        self._under_test = under_test
        self._log = log
        self._timeout = timeout
        self._began = time.monotonic()
        self._connections: dict[str, ClientConnection] = {}
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._may_read: dict[str, asyncio.Event] = {}
        self._current = "a"
        self._fences = 0
        self._number = 0
        self._news = asyncio.Event()
        self._steps: Mapping[str, Callable[[str], Awaitable[object]]] = {
            ">": self.send,
            "fragments": self._fragments,
            "bytes": lambda rest: self.send(bytes.fromhex(rest)),
            "ping": self._ping,
            "wait end": self._wait_end,
            "wait tokens": self._wait_tokens,
            "wait answer": self._wait_answer,
            "wait error": lambda _: self.until(lambda: bool(self._orphans()), "a MSG error with a null stream_id"),
            "wait close": self._wait_close,
            "wait idle": self._wait_idle,
            "fence": lambda _: self.fence(),
            "connect": self._connect_step,
            "on": self._on,
            "leave": self._leave,
            "hold": self._hold,
            "read": self._read_again,
            "get": self._get,
        }

    async def do(self, step: Step) -> None:
        """Do a step. Raises `StepFailedError`."""
        if step.verb == "times":
            count, _, frame = step.rest.partition(" ")
            for self._number in range(1, int(count) + 1):
                await self.send(script.Step(">", frame).filled(self._text))
            return
        await self._steps[step.verb](step.filled(self._text))

    def _text(self, name: str, argument: str) -> str:
        if name == "pad":
            return " " * int(argument)
        if name == "newline":
            return "\n"
        if name == "n":
            return str(self._number)
        if name == "key_protocol":
            return key_protocol(self._under_test.key or "")
        return json.dumps(self.value(name, argument))

    def value(self, name: str, argument: str = "") -> object:
        """The value of a variable; those with an argument, such as `$tokens(1)`, tell what stream 1 brought."""
        if name in ("tokens", "after", "first", "begins", "seed"):
            (of,) = script.ids(argument)
            ids = self._log.ids(of)
            if name == "begins":
                return next((str(e["text"]) for e in self._log.entries(of) if e.get("text")), "")
            if name == "seed":
                return next((e["seed"] for e in self._log.entries(of) if "seed" in e), None)
            if name == "after":
                return [*self._under_test.prompt[:4], *ids]
            return ids if name == "tokens" else (ids or [None])[0]
        return self._under_test.value(name)

    def _now(self) -> float:
        return time.monotonic() - self._began

    async def connect(self, name: str, header: str = "") -> None:
        """Open a connection and speak on it. A refused handshake is a fact like others. Raises `ConnectError`.

        header: one more, or another one in place of what the suite sends.
        """
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        self._current = name
        url, headers, more = self._dialled(header)
        try:
            connection = await open_websocket(
                url,
                additional_headers=headers,
                **more,
                compression=None,
                open_timeout=self._timeout,
                ping_interval=None,
                close_timeout=_CLOSING,
                max_size=_LARGEST,
                proxy=None,
            )
        except InvalidStatus as refused:
            self._log.handshakes[name] = refused.response.status_code
            return
        except (InvalidHandshake, OSError) as error:
            failure = connect_error(self._server.url, error, key_sent=self._server.authorization is not None)
            failure.hints = ("start it, or give its URL",)
            raise failure from None
        self._log.handshakes[name] = 101
        self._connections[name] = connection
        self._may_read[name] = asyncio.Event()
        self._may_read[name].set()
        self._readers[name] = asyncio.create_task(self._read(name, connection))

    def _dialled(self, header: str) -> tuple[str, dict[str, str], dict[str, Any]]:
        """What to dial for a further header: URL, headers, and what else `websockets` needs."""
        name, _, value = (part.strip() for part in header.partition(":"))
        headers = as_headers(self._server.authorization)
        if name == "Sec-WebSocket-Protocol":  # a page shows its key in no other way
            return self._server.url, {}, {"subprotocols": [one.strip() for one in value.split(",")]}
        if name == "Host" and unix_path(self._server.url):
            return self._server.url, headers, {"authority": value}
        if name == "Host":
            parts = urlsplit(self._server.url)
            return parts._replace(netloc=value).geturl(), headers, {"host": parts.hostname, "port": _port(parts)}
        if name:
            headers[name] = value
        return self._server.url, headers, {}

    async def _read(self, name: str, connection: ClientConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        while True:
            await self._may_read[name].wait()
            try:
                content = await connection.recv()
            except ConnectionClosed:
                break
            self._log.add(Message.of(self._now(), name, "<", content))
            self._news.set()
        ours_first = connection.protocol.close_rcvd_then_sent is False
        code = connection.close_code or 1006
        by = "client" if ours_first else "server"
        self._log.closed.setdefault(name, ConnectionEnd(self._now(), code, connection.close_reason or "", by))
        self._news.set()

    async def send(self, content: str | bytes) -> None:
        """Send a message on the current connection."""
        await self._sending([content], whole=True)

    async def _fragments(self, content: str) -> None:
        third = len(content) // 3
        await self._sending([content[:third], content[third : 2 * third], content[2 * third :]], whole=False)

    async def _sending(self, parts: list[str | bytes] | list[str], *, whole: bool) -> None:
        from websockets.exceptions import ConnectionClosed

        content = parts[0] if whole else "".join(str(part) for part in parts)
        self._log.add(Message.of(self._now(), self._current, ">", content))
        try:
            async with asyncio.timeout(self._timeout):
                await self._here().send(content if whole else [str(part) for part in parts])
        except ConnectionClosed:
            await asyncio.sleep(0)  # the reader tells how it was closed
        except TimeoutError:
            raise StepFailedError(f"the server does not read: nothing could be sent for {self._timeout:g} s") from None

    def _here(self) -> ClientConnection:
        if self._current not in self._connections:
            status = self._log.handshakes.get(self._current)
            raise StepFailedError(f"connection {self._current} was not opened (HTTP status {status})")
        return self._connections[self._current]

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds. Raises `StepFailedError` when time is over or the connection closed."""
        name = self._current
        self._here()
        try:
            async with asyncio.timeout(self._timeout):
                while not holds():
                    end = self._log.closed.get(name)
                    if end is not None:
                        code = f"{end.code} {end.reason}".rstrip()
                        raise StepFailedError(f"waited for {what}; the connection was closed ({code})")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            last = next((m for m in reversed(self._log.received(name))), None)
            latest = "nothing came" if last is None else f"the last that came: {str(last.content)[:100]}"
            raise StepFailedError(f"waited {self._timeout:g} s for {what}; {latest}") from None

    async def _wait_end(self, rest: str) -> None:
        for of in script.ids(rest):
            await self.until(lambda of=of: self._log.has_ended(of, self._current), f"the end of stream {of}")  # type: ignore[misc] # bound now

    async def _wait_tokens(self, rest: str) -> None:
        of, count = script.ids(rest)
        least = count if isinstance(count, int) else 1
        await self.until(lambda: len(self._log.tokens(of, self._current)) >= least, f"{count} tokens of stream {of}")

    async def _wait_answer(self, rest: str) -> None:
        for of in script.ids(rest):
            await self.until(lambda of=of: self._log.is_answered(of, self._current), f"a MSG for request {of}")  # type: ignore[misc] # bound now

    async def _wait_close(self, _: str) -> None:
        name = self._current
        try:
            async with asyncio.timeout(self._timeout):
                while name not in self._log.closed:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise StepFailedError(f"waited {self._timeout:g} s for the server to close connection {name}") from None

    async def _wait_idle(self, rest: str) -> None:
        for _ in range(int(rest)):
            info = await self.fence()
            if isinstance(info, dict) and not info.get("running"):
                return
        raise StepFailedError(f"after {rest} answers to MODEL_INFO the server still tells that streams run")

    def _orphans(self) -> list[object]:
        return [entry for entry in self._log.replies(None, self._current) if "error" in entry]

    async def fence(self) -> object:
        """Ask MODEL_INFO and return its answer: the server has then read what was sent before."""
        self._fences += 1
        of = f"fence {self._fences}"
        await self.send(f"MODEL_INFO {json.dumps({'model': self._under_test.model, 'stream_id': of})}")
        await self.until(lambda: self._log.is_answered(of, self._current), "an answer to a MODEL_INFO behind it all")
        return self._log.replies(of, self._current)[0].get("model_info")

    async def _ping(self, _: str) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            async with asyncio.timeout(self._timeout):
                await (await self._here().ping())
        except ConnectionClosed as closed:
            raise StepFailedError(f"waited for the pong to a ping; the connection was closed ({closed})") from None
        except TimeoutError:
            raise StepFailedError(f"waited {self._timeout:g} s for the pong to a ping") from None

    async def _connect_step(self, rest: str) -> None:
        name, *header = script.words(rest)
        await self.connect(name, header[0] if header else "")

    async def _on(self, name: str) -> None:
        self._current = name

    async def _leave(self, _: str) -> None:
        self._here().transport.abort()
        await self._readers[self._current]

    async def _hold(self, _: str) -> None:
        self._may_read[self._current].clear()

    async def _read_again(self, _: str) -> None:
        self._may_read[self._current].set()

    async def _get(self, path: str) -> None:
        self._log.http[path] = await asyncio.to_thread(_fetch, self._server, path, self._timeout)

    async def end(self) -> None:
        """Close every connection."""
        for event in self._may_read.values():
            event.set()
        for connection in self._connections.values():
            await connection.close()
        await asyncio.gather(*self._readers.values())


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "wss" else 80)


def _fetch(server: SocketEndpoint, path: str, timeout: float) -> HttpAnswer:
    """The answer to a GET, whatever its status. Raises `StepFailedError`."""
    import http.client

    parts, path_of_socket = urlsplit(server.url), unix_path(server.url)
    kind = http.client.HTTPSConnection if parts.scheme == "wss" else http.client.HTTPConnection
    connection = kind(parts.hostname or HOST, parts.port, timeout=timeout)
    try:
        if path_of_socket is not None:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(timeout)
            connection.sock.connect(path_of_socket)
        connection.request("GET", path, headers=as_headers(server.authorization))
        response = connection.getresponse()
        return HttpAnswer(response.status, response.read(2**16).decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException) as error:
        raise StepFailedError(f"GET {path} was not answered: {error}") from None
    finally:
        connection.close()
