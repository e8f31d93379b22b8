"""A provider on a port of its own that answers, or fails, as a test wants; every request is kept.

`async with FakeUpstream() as upstream:`; then `upstream.url` is its base, with the paths of every API below it, and
`upstream.plan` has what the next requests get, before `upstream.usual`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

from lmtool.protocol.providers.answer_events import Api
from lmtool.protocol.providers.answer_reader import api_of
from tests.fake_answers import LINES, Words, error, events, line, whole

Fault: TypeAlias = Literal["", "reset", "hang", "half", "error"]
"""`reset` cuts the connection, `hang` stays silent, `half` ends in the middle, `error` is an event of the stream."""
_PHRASES = {200: "OK", 401: "Unauthorized", 429: "Too Many Requests"}


HELLO = Words()


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What becomes of one request."""

    words: Words = HELLO
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """In place of an answer, and of the error that belongs to the status."""
    content_type: str = ""
    """In place of the API's own."""
    fault: Fault = ""
    after: int = 0
    """Parts of a stream that are sent before the fault, which is else before anything."""
    delay: float = 0.0
    """Seconds before the head of the answer."""
    pause: float = 0.0
    """Seconds between two parts of a stream."""
    torn: bool = False
    """Whether each byte of a body is sent on its own, so that characters are cut."""
    message: str = "no"
    """Of an error. `{key}` stands for the key of the request, as some providers repeat it."""
    code: str = "server_error"


OK = Behaviour()
BAD: dict[str, Behaviour] = {
    "429 in seconds": Behaviour(status=429, headers={"retry-after": "30"}, message="slow down, {key}"),
    "429 with a date": Behaviour(status=429, headers={"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}),
    "429 alone": Behaviour(status=429),
    "401": Behaviour(status=401, message="Incorrect API key provided: {key}"),
    "403": Behaviour(status=403, message="no access for {key}"),
    "500": Behaviour(status=500, message="{key} broke it"),
    "529": Behaviour(status=529, code="overloaded_error"),
    "400": Behaviour(status=400, message="temperature must be below 2"),
    "400 context": Behaviour(
        status=400, code="context_length_exceeded", message="This model's maximum context length is 8 tokens"
    ),
    "404": Behaviour(status=404, message="no such model"),
    "reset": Behaviour(fault="reset"),
    "reset in the body": Behaviour(fault="reset", after=2),
    "half a body": Behaviour(fault="half", after=2),
    "malformed": Behaviour(body=b'{"choices": [{"message":', content_type="application/json"),
    "html": Behaviour(body=b"<html><body>Bad gateway {key}</body></html>", content_type="text/html"),
    "empty": Behaviour(words=Words(())),
    "no choices": Behaviour(body=b'{"choices": []}', content_type="application/json"),
    "an error in the stream": Behaviour(fault="error", after=0, message="{key} overloaded"),
}
"""Failures by name, all of them final: they end without any clock."""
HANG = Behaviour(fault="hang")
STRANGE = Words(("Zoë \u2028", "line\u2029", " 🙂 ", "data: x\n\n", "end"))
"""Characters that lines and chunks must not cut: of two to four bytes, and the separators of Unicode."""


@dataclass(frozen=True, slots=True)
class Received:
    """One request."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)

    @property
    def key(self) -> str:
        """The key that was sent, whichever header has it."""
        names = ("authorization", "x-api-key", "api-key")
        return next((self.headers[name] for name in names if name in self.headers), "").removeprefix("Bearer ")


class FakeUpstream:
    """One fake provider."""

    def __init__(self, usual: Behaviour = OK) -> None:
        self.usual = usual
        """What requests get for which nothing is planned."""
        self.plan: deque[Behaviour] = deque()
        """What the next requests get, in order."""
        self.received: list[Received] = []
        self.left = asyncio.Event()
        """Set when a client has closed a connection whose answer was not complete."""
        self.connections = 0
        """Opened so far."""
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._errors: list[BaseException] = []

    @property
    def url(self) -> str:
        """The base of every API's paths."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the same port as before if this is not the first time."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and cut every connection. Raises what went wrong in this server itself."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()
        if self._errors:
            raise self._errors[0]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        first: bytes | None = b""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while first is not None:
                first = await self._exchange(first, reader, writer)
        self._writers.discard(writer)
        writer.close()

    async def _exchange(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """Answer one request, whose first bytes may have been read; those of the next one, None for the end."""
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        start, *lines = head.split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
        method, path, _ = start.split(" ")
        request = Received(method, path, headers, await _body(reader, headers))
        self.received.append(request)
        behaviour = self.plan.popleft() if self.plan else self.usual
        answering = asyncio.create_task(_answer(behaviour, request, writer))
        leaving = asyncio.create_task(reader.read(1))
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():  # clients here send nothing before the answer is complete: this one has gone
            self.left.set()
        leaving.cancel()
        answering.cancel()
        complete, ahead = await asyncio.gather(answering, leaving, return_exceptions=True)
        if isinstance(complete, BaseException) and not isinstance(complete, ConnectionError | asyncio.CancelledError):
            self._errors.append(complete)
        if complete is not True:
            return None
        return ahead if isinstance(ahead, bytes) else b""


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    data = b""
    while size := int(await reader.readline(), 16):
        data += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return data


async def _answer(behaviour: Behaviour, request: Received, writer: asyncio.StreamWriter) -> bool:
    """Write an answer; whether it is complete."""
    await asyncio.sleep(behaviour.delay)
    api = api_of(request.method, request.path) or "chat"
    if behaviour.fault in ("reset", "hang") and not behaviour.after:
        return await _fail(behaviour, writer)
    if behaviour.status != 200 or behaviour.body is not None:
        return await _plain(behaviour, request, api, writer)
    asked = request.json
    model = asked.get("model", "")
    if asked.get("stream", api == "ollama"):
        return await _stream(behaviour, request, api, model, writer)
    data = json.dumps(whole(api, behaviour.words, model), ensure_ascii=False).encode()
    if behaviour.fault == "error":
        data = _error(behaviour, request, api)
    return await _whole(behaviour, data, "application/json", writer)


async def _plain(behaviour: Behaviour, request: Received, api: Api, writer: asyncio.StreamWriter) -> bool:
    data = _error(behaviour, request, api) if behaviour.body is None else behaviour.body
    data = data.replace(b"{key}", request.key.encode())
    return await _whole(behaviour, data, behaviour.content_type or "application/json", writer)


def _error(behaviour: Behaviour, request: Received, api: Api) -> bytes:
    return json.dumps(error(api, behaviour.message.replace("{key}", request.key), behaviour.code)).encode()


async def _whole(behaviour: Behaviour, data: bytes, content_type: str, writer: asyncio.StreamWriter) -> bool:
    _head(behaviour, writer, {"content-type": content_type, "content-length": str(len(data))})
    if behaviour.fault in ("half", "reset"):
        data = data[: len(data) // 2]
    for piece in _pieces(behaviour, data):
        writer.write(piece)
        await writer.drain()
    return await _fail(behaviour, writer) if behaviour.fault in ("half", "reset") else True


async def _stream(behaviour: Behaviour, request: Received, api: Api, model: str, writer: asyncio.StreamWriter) -> bool:
    kind = "application/x-ndjson" if api in LINES else "text/event-stream"
    _head(behaviour, writer, {"content-type": behaviour.content_type or kind, "transfer-encoding": "chunked"})
    parts = [line(api, event) for event in events(api, behaviour.words, model)]
    parts += [b"data: [DONE]\n\n"] if api == "chat" else []
    if behaviour.fault == "error":
        parts = [*parts[: behaviour.after], line(api, json.loads(_error(behaviour, request, api)))]
    elif behaviour.fault:
        parts = parts[: behaviour.after]
        parts[-1] = parts[-1][: len(parts[-1]) // 2] if behaviour.fault == "half" else parts[-1]
    for number, part in enumerate(parts):
        await asyncio.sleep(behaviour.pause if number else 0)
        for piece in _pieces(behaviour, part):
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
    if behaviour.fault not in ("", "error"):
        return await _fail(behaviour, writer)
    writer.write(b"0\r\n\r\n")
    return True


def _head(behaviour: Behaviour, writer: asyncio.StreamWriter, headers: dict[str, str]) -> None:
    fields = {**headers, **behaviour.headers}
    lines = [f"HTTP/1.1 {behaviour.status} {_PHRASES.get(behaviour.status, 'No')}"]
    writer.write("\r\n".join([*lines, *(f"{name}: {value}" for name, value in fields.items()), "", ""]).encode())


def _pieces(behaviour: Behaviour, data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))] if behaviour.torn else [data]


async def _fail(behaviour: Behaviour, writer: asyncio.StreamWriter) -> bool:
    if behaviour.fault == "hang":
        await asyncio.Event().wait()  # until the client leaves, or the server stops
    if behaviour.fault == "reset":
        await writer.drain()
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
    return False
