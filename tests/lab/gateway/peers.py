"""What gateways are measured between and against: a provider that answers at once, and a bare forwarder.

`python -m tests.lab gateway.peers upstream PORT` is a provider of OpenAI's API on asyncio alone, whose
answers are made beforehand. `... forwarder PORT URL` passes requests on to it: starlette, uvicorn and aiohttp, nothing
else.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.applications import Starlette
    from starlette.requests import Request

HOST = "127.0.0.1"
WORDS = tuple(f" word{number}" for number in range(20))
"""The deltas of every answer."""
_HEAD = {"id": "chatcmpl-1", "created": 1, "model": "bench"}
_USAGE = {"prompt_tokens": 9, "completion_tokens": len(WORDS), "total_tokens": 9 + len(WORDS)}


def whole_answer() -> bytes:
    """The body of an answer that comes whole."""
    message = {"role": "assistant", "content": "".join(WORDS)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _USAGE}).encode()


def streamed_answer() -> bytes:
    """The body of an answer that comes as events, one a word."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": word} for word in WORDS), {}]
    lines = []
    for number, delta in enumerate(deltas, 1):
        choice = {"index": 0, "delta": delta, "finish_reason": "stop" if number == len(deltas) else None}
        chunk: dict[str, Any] = {**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}
        lines.append(json.dumps(chunk | ({"usage": _USAGE} if number == len(deltas) else {})))
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


def _response(kind: str, body: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class Upstream(asyncio.Protocol):
    """One connection to the provider. Requests need a `content-length` and come one after the other."""

    WHOLE = _response("application/json", whole_answer())
    STREAMED = _response("text/event-stream", streamed_answer())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self._received = b""

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(fields.get(b"content-length", 0)):
            return
        self._received = b""
        streamed = bool(body) and bool(json.loads(body).get("stream"))
        self._transport.write(self.STREAMED if streamed else self.WHOLE)


async def serve_upstream(port: int) -> None:
    """Serve until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Upstream, HOST, port, backlog=1024)
    await server.serve_forever()


def forwarder(upstream: str) -> Starlette:
    """The application that passes every POST on to `upstream` and its answer back, piece by piece."""
    from starlette.applications import Starlette
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    from lmtool.net.http_client import open_client

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.client = open_client()
        yield
        await app.state.client.close()

    async def forward(request: Request) -> StreamingResponse:
        body, headers = await request.body(), {"content-type": "application/json"}
        answer = await request.app.state.client.post(upstream + request.url.path, data=body, headers=headers)

        async def pieces() -> AsyncIterator[bytes]:
            async with answer:
                async for piece in answer.content.iter_any():
                    yield piece

        return StreamingResponse(pieces(), answer.status, media_type=answer.headers["content-type"])

    return Starlette(routes=[Route("/{path:path}", forward, methods=["POST"])], lifespan=lifespan)


def main(words: list[str]) -> None:
    """Run one of the two; see the module."""
    if words[0] == "upstream":
        asyncio.run(serve_upstream(int(words[1])))
        return
    import uvicorn

    uvicorn.run(forwarder(words[2]), host=HOST, port=int(words[1]), access_log=False, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1:])
