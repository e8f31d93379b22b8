"""Requests over HTTP: branches of recorded answers, sent and recorded like any other request."""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lmtool.core.errors import ConnectError, LmtoolError, RequestError, UsageError
from lmtool.net.access.outgoing import as_headers, key_in
from lmtool.protocol.providers.answer_events import TextDelta, ToolCallDelta, piece_of
from lmtool.protocol.providers.answer_reader import AnswerReader
from lmtool.protocol.providers.continuation import (
    STYLES_BY_OWNER,
    STYLES_BY_URL,
    ask_for_prompt_ids,
    continue_by_ids,
    continue_by_text,
    lost_parts,
    prompt_ids_in,
    rest_of,
    stops_of,
)
from lmtool.protocol.providers.json_values import list_of, object_of, text_of
from lmtool.terminal.tui.request_builder import AS_TEXT, HttpContinuation, may_have_begun, spell, whole_text
from lmtool.trace.codec import reference
from lmtool.trace.connection_tap import ConnectionTap
from lmtool.trace.events import JsonText, Piece, Request
from lmtool.trace.http_stream import Data, Head, HttpStream, Last

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.terminal.tui.sources.event_pipeline import EventPipeline
    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.view import View
    from lmtool.trace.proxy import Target

KEPT_HEADERS = ("anthropic-version", "anthropic-beta", "openai-beta")
"""Request headers that affect the meaning of the body."""


def whole_answer(view: View, stream: Stream) -> HttpContinuation:
    """An answer up to the moment, as it is, to be scored. Raises `UsageError`."""
    count = stream.count(view.token_count)
    if not count:
        raise UsageError(f"stream {stream.label} has no token yet")
    row = stream.rows[count - 1]
    name = view.measures.name(row)
    return continue_answer(view, row, name, generates=False)


def continue_answer(
    view: View, row: int, instead: str | bytes | int, typed: str = "", *, generates: bool = True
) -> HttpContinuation:
    """Go on from before `row` with another token, or with a text that a person typed. Raises `UsageError`.

    generates: whether more tokens are to come, for which the parameters of the request count.
    """
    stream, position = view.state.stream_of(row), view.position(row)
    assert stream.api is not None
    request = _request_of(view, stream)
    body = request.body.value if isinstance(request.body, JsonText) else None
    if not isinstance(body, dict) or any(reference(one) or "$redacted" in object_of(one) for one in body.values()):
        raise UsageError(f"stream {stream.label} cannot be branched: its request was not recorded whole")
    body, choice = _of_choice(body, stream.choice)
    before = [view.state.tokens.ids[one] for one in stream.rows[:position]]
    pieces = [view.state.texts.spelling(one) for one in before]
    end = typed or instead
    text = whole_text([*pieces, spell(view, end)])
    if text is None:
        raise UsageError(
            f"stream {stream.label} cannot be branched here: over HTTP an answer's beginning is sent as text, and "
            "these tokens end inside a character",
            "choose the token before or after it",
        )
    reasons = (lost_parts(body) if generates else []) + _parts_without_text(view, stream, row)
    if generates and may_have_begun(stops_of(body), [*pieces, spell(view, end)]):
        reasons.append("a stop text that may have begun")
    if reasons:
        raise UsageError(
            f"stream {stream.label} cannot be branched here: a branch would lose {' and '.join(reasons)}",
            "streams of LMTP keep all of that: lmtool chat sends them",
        )
    named = not typed and not any(view.state.texts.is_piece(one) for one in before)
    known = tuple(piece for piece in (*pieces, spell(view, end)) if piece is not None)
    prompt_ids, ids = _ids_in(view, stream)
    return HttpContinuation(
        stream.label,
        stream.api,
        request.path,
        body,
        choice,
        position,
        text,
        tuple(piece for piece in known if piece) if named else None,
        ids[:position] if ids is not None and len(ids) >= position and named else None,
        prompt_ids,
        {name: value for name, value in request.headers.items() if name.lower() in KEPT_HEADERS},
        is_score=not generates,
    )


def _of_choice(body: Mapping[str, Any], choice: int) -> tuple[Mapping[str, Any], int]:
    """The request of one prompt out of several, and the index of the choice among its answers."""
    prompts, n = body.get("prompt"), body.get("n") or 1
    if not isinstance(prompts, list) or not prompts or type(prompts[0]) is int or type(n) is not int:
        return body, choice
    return {**body, "prompt": prompts[min(choice // n, len(prompts) - 1)]}, choice % n


def _request_of(view: View, stream: Stream) -> Request:
    try:
        event = view.lines.whole(stream.frame)
    except LmtoolError as error:
        raise UsageError(f"stream {stream.label} cannot be branched: {error.message}") from None
    if not isinstance(event, Request):
        raise UsageError(
            f"stream {stream.label} cannot be branched: the unified API's WebSocket cannot continue an answer",
            "ask over chat completions, or LMTP",
        )
    return event


def _pieces_of(view: View, stream: Stream, last: int) -> Iterator[Piece]:
    """The pieces of a stream's answer up to a frame."""
    log = view.state.frames
    for frame in range(stream.frame + 1, last + 1):
        if log.connections[frame] == stream.connection:
            event = view.lines.whole(frame)
            if isinstance(event, Piece):
                yield event
            elif isinstance(event, Request):
                return


def _parts_without_text(view: View, stream: Stream, row: int) -> list[str]:
    """Parts of an answer other than text before a token: a thought, tool calls."""
    lost: dict[str, None] = {}
    reader: AnswerReader | None = None
    for piece in _pieces_of(view, stream, view.state.tokens.frames[row]):
        if reader is None:
            assert stream.api is not None
            reader = AnswerReader(stream.api, "events" if piece.kind == "sse" else stream.form)
        for event in reader.feed(piece.wire()):
            if isinstance(event, ToolCallDelta) and event.choice == stream.choice:
                lost["its calls of tools"] = None
            elif isinstance(event, TextDelta) and event.choice == stream.choice and event.kind == "reasoning":
                lost["its thought"] = None
    return list(lost)


def _ids_in(view: View, stream: Stream) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Ids of prompt and answer, as far as the answer has them (`return_token_ids`)."""
    prompt: tuple[int, ...] | None = None
    ids: list[int] = []
    has_ids = False
    for piece in _pieces_of(view, stream, len(view.state.frames) - 1):
        value = object_of(piece.content.value if isinstance(piece.content, JsonText) else None)
        for part in (value, object_of(value.get("response")), object_of(value.get("message"))):
            prompt = prompt_ids_in(part) if prompt is None else prompt
        choices = [object_of(one) for one in list_of(value.get("choices"))]
        own = [one for one in choices if one.get("index", 0) == stream.choice]
        for part in (*own, value, object_of(value.get("response"))):
            if isinstance(new := part.get("token_ids"), list) and all(type(one) is int for one in new):
                has_ids = True
                ids += new
    return prompt, tuple(ids) if has_ids else None


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
    """Sends requests to one server, each on a separate connection. Belongs to one event loop."""

    target: Target
    pipeline: EventPipeline
    number: Callable[[], int]
    """Gives each connection its number."""
    agent: str = field(default_factory=lambda: f"lmtool inspect {secrets.token_hex(4)}")
    """Unique user agent of its requests, by which they are recognised among a server's clients."""
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
        """Ids of an answer's prompt and text. Raises `UsageError` if the server does not provide them."""
        exact = await self._exact_ids(answer, await self._tokenize(answer, answer.text))
        if exact is None:
            raise UsageError(
                f"stream {answer.label} cannot be scored: its server does not provide the tokens of a text",
                "servers with /tokenize do, such as lmtool and vLLM",
            )
        return await self._prompt_ids(answer), exact

    async def _body(self, continuation: HttpContinuation) -> tuple[dict[str, Any], str]:
        """Body of the request, and a note on what is uncertain, or an empty text."""
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

    # Tokens, according to the server.

    async def _owner(self, continuation: HttpContinuation) -> str:
        """Owner of the model according to the server's list of models; empty if unknown."""
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
        """Ids of a text from the server's `/tokenize`, with special tokens if at a start; None if unavailable."""
        body = {"model": continuation.body.get("model"), "prompt": text, "add_special_tokens": start}
        status, answer = await self.ask("POST", "/tokenize", body)
        ids = answer.get("tokens")
        return tuple(ids) if status == 200 and isinstance(ids, list) and all(type(i) is int for i in ids) else None

    async def _exact_ids(self, continuation: HttpContinuation, read: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Ids of exactly the tokens that the branch begins with; None if they cannot be known.

        read: what the server makes of their text. Raises `UsageError` where it makes others of it, and the right ones
        cannot be found.
        """
        pieces, ids = continuation.pieces, continuation.ids
        if pieces is None or read is None:
            return read
        if await self._spellings_of(continuation, read) == pieces and (ids is None or ids == read[: len(ids)]):
            return read
        if ids is not None:
            return (*ids, *await self._one_by_one(continuation, pieces[-1:]))
        return await self._one_by_one(continuation, pieces)

    async def _spellings_of(self, continuation: HttpContinuation, ids: Sequence[int]) -> tuple[bytes, ...] | None:
        """Bytes of each of these ids according to the server; None if unknown."""
        body = {"model": continuation.body.get("model"), "prompt": list(ids), "max_tokens": 1, "echo": True}
        path = self._path(continuation).partition("?")[0]
        path = f"{path.removesuffix(_ENDINGS.get(continuation.api, ''))}/completions"
        status, answer = await self.ask("POST", path, {**body, "logprobs": 0, "temperature": 0})
        choices = list_of(answer.get("choices"))
        logprobs = object_of(object_of(choices[0]).get("logprobs")) if status == 200 and choices else {}
        pieces = [piece_of(one) for one in list_of(logprobs.get("tokens"))[: len(ids)]]
        spellings = tuple(one if isinstance(one, bytes) else one.encode() for one in pieces)
        return spellings if len(spellings) == len(ids) else None

    async def _one_by_one(self, continuation: HttpContinuation, pieces: Sequence[bytes]) -> tuple[int, ...]:
        """The id of each piece. Raises `UsageError` if a piece is not a single token."""
        problem = UsageError(
            "the server would cut its text into other tokens, and does not provide the ids of these",
            'send  "return_token_ids": true  with the request, or choose an earlier token',
        )
        if len(pieces) > MOST_PIECES:
            raise problem
        ids_by_piece: dict[bytes, int] = {}
        for piece in dict.fromkeys(pieces):
            try:
                ids = await self._tokenize(continuation, piece.decode())
            except UnicodeDecodeError:
                raise problem from None
            if ids is None or len(ids) != 1:
                raise problem
            ids_by_piece[piece] = ids[0]
        return tuple(ids_by_piece[piece] for piece in pieces)

    async def _prompt_ids(self, continuation: HttpContinuation) -> tuple[int, ...]:
        """Ids of the prompt from the request or answer, else from the server. Raises `RequestError`."""
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
        prompt_ids = prompt_ids_in(answer)
        if status != 200 or prompt_ids is None:
            why = text_of(object_of(answer.get("error")).get("message")) or f"HTTP status {status}"
            raise RequestError(f"the server does not provide the ids of the prompt: {why}")
        return prompt_ids

    # Over the wire.

    def _path(self, continuation: HttpContinuation) -> str:
        """Path of the request: below the server's base path if it has one, else as recorded."""
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
        """Status and JSON object of an answer that is not fed to the inspector. Raises `ConnectError`."""
        stream, status, content = HttpStream(responses=True), 0, bytearray()
        stream.methods.append(method)
        async for part in self._parts(stream, self._request(method, path, body, headers or {})):
            if isinstance(part, Head):
                status = int(part.start[1]) if part.start[1].isdigit() else 0
            elif isinstance(part, Data) and len(content) < LARGEST:
                content += part.body
        try:
            return status, object_of(json.loads(content))
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
        """Cancel a stream of these connections; no effect on others."""
        if task := self._running.get(label):
            task.cancel()

    async def close(self) -> None:
        """Cancel all running requests."""
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
    """HTTP target of an LMTP endpoint: the same address. None if it is not a socket."""
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
