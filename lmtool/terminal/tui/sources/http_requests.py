"""Requests of the inspector's own over HTTP: answers that go on from a token of another one, watched like any other."""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lmtool.core.errors import ConnectError, RequestError, UsageError
from lmtool.net.access.outgoing import as_headers, key_in
from lmtool.protocol.providers.answer_events import piece_of
from lmtool.protocol.providers.continuation import (
    STYLES_BY_OWNER,
    STYLES_BY_URL,
    ask_for_prompt_ids,
    continue_by_ids,
    continue_by_text,
    prompt_ids_in,
    rest_of,
)
from lmtool.protocol.providers.json_values import list_of, object_of, text_of
from lmtool.terminal.tui.continuation import AS_TEXT
from lmtool.trace.connection_tap import ConnectionTap
from lmtool.trace.http_stream import Data, Head, HttpStream, Last

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.terminal.tui.continuation import HttpContinuation
    from lmtool.terminal.tui.sources.event_pipeline import EventPipeline
    from lmtool.trace.proxy import Target

OPEN_LIMIT = 10.0
"""Seconds that a server has to take a connection."""
SILENT_LIMIT = 600.0
"""Seconds without a byte of an answer that is watched."""
ASK_LIMIT = 60.0
"""Seconds for an answer that only prepares a request."""
LARGEST = 2**26
"""Bytes of such an answer."""
MOST_PIECES = 512
"""Tokens that are looked up one by one."""
_ENDINGS: Mapping[str, str] = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "responses": "/responses",
    "messages": "/messages",
}
_TAKES_IDS = "lmtool"
"""The owner of models whose server takes `prompt_token_ids`."""


@dataclass(slots=True)
class HttpRequestSource:
    """Sends requests to one server, each on a connection of its own. Belongs to one event loop."""

    target: Target
    pipeline: EventPipeline
    number: Callable[[], int]
    """Gives each connection its number."""
    agent: str = field(default_factory=lambda: f"lmtool inspect {secrets.token_hex(4)}")
    """What its requests, and nobody else, call their client: a server that shows its clients shows these, too."""
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def continue_answer(self, continuation: HttpContinuation) -> str:
        """Ask for the rest of an answer; the label of its stream.

        Raises `UsageError` where the server cannot be asked so, or would read other tokens; `ConnectError`.
        """
        try:
            body, note = await self._body(continuation)
        except UsageError as error:
            raise UsageError(
                f"stream {continuation.label} cannot be branched here: {error.message}", *error.hints
            ) from None
        if note:
            self.pipeline.note(f"branch of {continuation.label}: {note}")
        return await self.send(self._path(continuation), body, continuation.headers)

    async def ids_of(self, answer: HttpContinuation) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids of an answer's prompt, and of its text. Raises `UsageError` where the server does not tell them."""
        exact = await self._exact_ids(answer, await self._tokenize(answer, answer.text))
        if exact is None:
            raise UsageError(
                f"stream {answer.label} cannot be scored: its server does not tell how it cuts a text into tokens",
                "servers with /tokenize do, such as lmtool and vLLM",
            )
        return await self._prompt_ids(answer), exact

    async def _body(self, continuation: HttpContinuation) -> tuple[dict[str, Any], str]:
        """The body of the request, and a sentence on what is not certain, or empty."""
        owner = await self._owner(continuation)
        rest = rest_of(continuation.body, continuation.choice, continuation.used)
        read = await self._tokenize(continuation, continuation.text)
        exact = await self._exact_ids(continuation, read)
        api = continuation.api
        by_ids = api == "responses" or "prompt_token_ids" in rest or (exact is not None and exact != read)
        if owner == _TAKES_IDS and exact is not None and (by_ids or api == "completions"):
            prompt = await self._prompt_ids(continuation)
            return continue_by_ids(api, rest, (*prompt, *exact)), ""
        if exact is not None and exact != read:
            raise UsageError(
                "the server takes an answer's beginning as text, and would cut this one into other tokens",
                "choose an earlier token",
            )
        if exact is not None and api == "completions":  # a text's tokens may merge with those of the prompt
            prompt = await self._prompt_ids(continuation)
            return continue_by_ids(api, rest, (*prompt, *exact)), ""
        by_url = (style for url, style in STYLES_BY_URL.items() if self.target.url.startswith(url))
        body = continue_by_text(api, rest, continuation.text, next(by_url, STYLES_BY_OWNER.get(owner)))
        return body, "" if exact is not None else AS_TEXT

    # What the server tells of tokens.

    async def _owner(self, continuation: HttpContinuation) -> str:
        """What the server's list of models says who owns the model; empty where it says nothing."""
        if continuation.api not in ("chat", "completions", "responses", "messages"):
            return ""
        path = self._path(continuation).partition("?")[0].removesuffix(_ENDINGS[continuation.api])
        status, answer = await self.ask("GET", f"{path}/models", None)
        cards = [object_of(one) for one in list_of(answer.get("data"))] if status == 200 else []
        name = continuation.body.get("model")
        own = [one for one in cards if one.get("id") == name] or cards
        return text_of(own[0].get("owned_by")) if own else ""

    async def _tokenize(
        self, continuation: HttpContinuation, text: str, *, start: bool = False
    ) -> tuple[int, ...] | None:
        """Ids of a text behind another, or at a start, as the server cuts it; None where it does not tell."""
        asked = {"model": continuation.body.get("model"), "prompt": text, "add_special_tokens": start}
        status, answer = await self.ask("POST", "/tokenize", asked)
        ids = answer.get("tokens")
        return tuple(ids) if status == 200 and isinstance(ids, list) and all(type(i) is int for i in ids) else None

    async def _exact_ids(self, continuation: HttpContinuation, read: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Ids of the very tokens that the branch begins with; None where that cannot be known.

        read: what the server makes of their text. Raises `UsageError` where it makes others of it, and the right ones
        cannot be found.
        """
        pieces, ids = continuation.pieces, continuation.ids
        if pieces is None or read is None:
            return read
        if await self._spelled(continuation, read) == pieces and (ids is None or ids == read[: len(ids)]):
            return read
        if ids is not None:
            return (*ids, *await self._one_by_one(continuation, pieces[-1:]))
        return await self._one_by_one(continuation, pieces)

    async def _spelled(self, continuation: HttpContinuation, ids: Sequence[int]) -> tuple[bytes, ...] | None:
        """What each of these ids adds to a text, as the server tells it."""
        asked = {"model": continuation.body.get("model"), "prompt": list(ids), "max_tokens": 1, "echo": True}
        path = self._path(continuation).partition("?")[0]
        path = f"{path.removesuffix(_ENDINGS.get(continuation.api, ''))}/completions"
        status, answer = await self.ask("POST", path, {**asked, "logprobs": 0, "temperature": 0})
        choices = list_of(answer.get("choices"))
        logprobs = object_of(object_of(choices[0]).get("logprobs")) if status == 200 and choices else {}
        pieces = [piece_of(one) for one in list_of(logprobs.get("tokens"))[: len(ids)]]
        spelled = tuple(one if isinstance(one, bytes) else one.encode() for one in pieces)
        return spelled if len(spelled) == len(ids) else None

    async def _one_by_one(self, continuation: HttpContinuation, pieces: Sequence[bytes]) -> tuple[int, ...]:
        """The id of each piece, where it is a token of its own. Raises `UsageError`."""
        problem = UsageError(
            "the server would cut its text into other tokens, and does not tell the ids of these",
            'send  "return_token_ids": true  with the request, or choose an earlier token',
        )
        if len(pieces) > MOST_PIECES:
            raise problem
        found: dict[bytes, int] = {}
        for piece in dict.fromkeys(pieces):
            try:
                ids = await self._tokenize(continuation, piece.decode())
            except UnicodeDecodeError:
                raise problem from None
            if ids is None or len(ids) != 1:
                raise problem
            found[piece] = ids[0]
        return tuple(found[piece] for piece in pieces)

    async def _prompt_ids(self, continuation: HttpContinuation) -> tuple[int, ...]:
        """Ids of the prompt: as the answer told them, else asked for again. Raises `RequestError`."""
        prompt = continuation.body.get("prompt", continuation.body.get("prompt_token_ids"))
        if isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt):
            return tuple(prompt)
        if continuation.prompt_ids is not None:
            return continuation.prompt_ids
        if isinstance(prompt, str):
            start = continuation.body.get("add_special_tokens") is not False
            if (ids := await self._tokenize(continuation, prompt, start=start)) is not None:
                return ids
        path = self._path(continuation)
        status, answer = await self.ask("POST", path, ask_for_prompt_ids(continuation.body), continuation.headers)
        told = prompt_ids_in(answer)
        if status != 200 or told is None:
            why = text_of(object_of(answer.get("error")).get("message")) or f"HTTP status {status}"
            raise RequestError(f"the server does not tell the ids of the prompt: {why}")
        return told

    # Over the wire.

    def _path(self, continuation: HttpContinuation) -> str:
        """Where the request goes: below the server's base where that names one, else where it went before."""
        base, ending = self.target.path.rstrip("/"), _ENDINGS.get(continuation.api)
        path, mark, query = continuation.path.partition("?")
        if base and ending is not None and not path.startswith(f"{base}/"):
            path = f"{base}{ending}"
        return f"{path}{mark}{query}"

    async def send(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> str:
        """Send a request that is watched; the label of its stream. Raises `ConnectError`."""
        reader, writer = await self._open()
        number = self.number()
        tap = ConnectionTap(number, "msgspec")
        data = self._request("POST", path, body, headers)
        self.pipeline.add(number, tap.request_parts(self.pipeline.clock(), tap.requests.feed(data)))
        label = f"{number}/1"
        self._running[label] = asyncio.create_task(self._receive(number, tap, reader, writer, data))
        self._running[label].add_done_callback(lambda _: self._running.pop(label, None))
        return label

    async def _receive(
        self, number: int, tap: ConnectionTap, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes
    ) -> None:
        ended_by = "client"
        try:
            writer.write(data)
            await writer.drain()
            while more := await asyncio.wait_for(reader.read(2**16), SILENT_LIMIT):
                self.pipeline.add(number, tap.response_bytes(self.pipeline.clock(), more))
            ended_by = "server"
        except OSError:  # or its time is over
            ended_by = "server"
        finally:
            self.pipeline.add(number, tap.end(self.pipeline.clock(), ended_by))
            writer.transport.abort()

    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, Any]]:
        """Status and JSON object of an answer that nobody is shown. Raises `ConnectError`."""
        stream, status, found = HttpStream(responses=True), 0, bytearray()
        stream.methods.append(method)
        async for part in self._parts(stream, self._request(method, path, body, headers or {})):
            if isinstance(part, Head):
                status = int(part.start[1]) if part.start[1].isdigit() else 0
            elif isinstance(part, Data) and len(found) < LARGEST:
                found += part.body
        try:
            return status, object_of(json.loads(found))
        except ValueError:
            return status, {}

    async def _parts(self, stream: HttpStream, data: bytes) -> AsyncIterator[object]:
        reader, writer = await self._open()
        try:
            async with asyncio.timeout(ASK_LIMIT):
                writer.write(data)
                await writer.drain()
                while more := await reader.read(2**16):
                    for part in stream.feed(more):
                        yield part
                        if isinstance(part, Last):
                            return
        except TimeoutError:
            raise ConnectError(f"no answer from {self.target.url} within {ASK_LIMIT:g} s") from None
        except OSError as error:
            raise ConnectError(f"{self.target.url}: {error.strerror or error}") from None
        finally:
            writer.transport.abort()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(OPEN_LIMIT):
                return await self.target.open()
        except TimeoutError:
            raise ConnectError(f"no connection to {self.target.url} within {OPEN_LIMIT:g} s") from None
        except OSError as error:
            raise ConnectError(f"no server at {self.target.url} ({error.strerror or error})") from None

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> bytes:
        """The bytes of a request, with the key of this server."""
        content = b"" if body is None else json.dumps(body).encode()
        key = key_in(self.target.authorization)
        own = {"host": self.target.authority, "connection": "close", "user-agent": self.agent}
        own |= as_headers(self.target.authorization)
        own |= {"x-api-key": key} if key is not None and path.endswith("/messages") else {}
        own |= {} if body is None else {"content-type": "application/json", "content-length": str(len(content))}
        lines = [
            f"{method} {path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in {**headers, **own}.items()),
            "",
            "",
        ]
        return "\r\n".join(lines).encode("latin-1", "replace") + content

    def cancel(self, label: str) -> None:
        """End a stream of these connections; harmless for any other."""
        if task := self._running.get(label):
            task.cancel()

    async def close(self) -> None:
        """End all that runs."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def http_requests(
    endpoint: str | Endpoint, pipeline: EventPipeline, number: Callable[[], int]
) -> HttpRequestSource | None:
    """Requests over HTTP to the server of an LMTP endpoint; None for one that is a program's pipe."""
    from lmtool.protocol.lmtp.endpoint import SocketEndpoint, parse

    parsed = parse(endpoint)
    target = http_target(parsed.url, parsed.authorization) if isinstance(parsed, SocketEndpoint) else None
    return None if target is None else HttpRequestSource(target, pipeline, number)


def http_target(url: str, authorization: str | None) -> Target | None:
    """Where the server of an LMTP endpoint takes HTTP: at the same address. None for one that has none."""
    from lmtool.net.unix_sockets import HOST, unix_path
    from lmtool.trace.proxy import Target

    if (path := unix_path(url)) is not None:
        return Target(url, HOST, 80, tls=False, path="/", authorization=authorization, unix=path)
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        return None
    tls = parts.scheme == "wss"
    port = parts.port or (443 if tls else 80)
    return Target(url, parts.hostname, port, tls, parts.path or "/", authorization)
