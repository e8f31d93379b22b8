"""The unified API's streams over one WebSocket: any number of conversations at once, told apart by their ids."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.websockets import WebSocketDisconnect

from lmtool.core.errors import LmtoolError
from lmtool.gateway.pools.caller import Caller
from lmtool.gateway.pools.pool_answer import begin_answer
from lmtool.gateway.pools.unified_replies import Reply, error_body
from lmtool.gateway.pools.unified_requests import read
from lmtool.net.access.caller import caller_turns, may_use
from lmtool.protocol.http.decoding import refuse
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.http import MAX_BYTES, to_json

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from lmtool.gateway.pools.pool import Pool
    from lmtool.gateway.pools.pools import Pools
    from lmtool.gateway.pools.unified_requests import UnifiedRequest

MAX_STREAMS = 64
"""At once, on one socket."""


class ChatSocket:
    """One connection. A client that leaves ends the calls behind all its streams."""

    def __init__(self, websocket: WebSocket, pools: Pools) -> None:
        self._websocket = websocket
        self._pools = pools
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._draining = False
        self._sending = asyncio.Lock()

    @property
    def running(self) -> int:
        """Streams that have not ended."""
        return len(self._streams)

    async def drain(self, seconds: float) -> bool:
        """Take nothing new, and wait for the streams; whether all ended within `seconds`."""
        self._draining = True
        if not self._streams:
            return True
        await asyncio.wait(list(self._streams.values()), timeout=seconds)
        return not self._streams

    async def serve(self) -> None:
        """Answer until the client leaves."""
        name = self._websocket.path_params["pool"]
        pool = self._pools.pool(name) if may_use(name) else None
        await self._websocket.accept()
        if pool is None:
            error = ApiError(404, f"there is no pool {name!r:.100}", code="unknown_model")
            await self._send(None, {"error": error_body(error) | {"finish_reason": "error"}})
            await self._websocket.close(1008)
            return
        try:
            while (message := await self._websocket.receive())["type"] == "websocket.receive":
                text = message.get("text")
                await self._take(pool, message["bytes"] if text is None else text.encode())
        except WebSocketDisconnect:  # between a message and its answer
            return
        finally:
            for task in self._streams.values():
                task.cancel()
            await asyncio.gather(*self._streams.values(), return_exceptions=True)

    async def _take(self, pool: Pool, data: bytes) -> None:
        """Begin the stream of one message, or say what is wrong with it."""
        request: UnifiedRequest | None = None
        try:
            if len(data) > MAX_BYTES:
                refuse("message", f"the message has more than {MAX_BYTES} bytes")
            request, asked = read(data, pool.config)
            number = self._free_id(request.id)
            asked = replace(asked, chat=replace(asked.chat, stream=True))
            reply = Reply(begin_answer(pool, asked, Caller(caller_turns() or self, request.deadline)), number)
        except (ApiError, LmtoolError) as error:
            await self._send(request or _head(data), {"error": error_body(error) | {"finish_reason": "error"}})
            return
        task = self._streams[number] = asyncio.create_task(self._stream(request, reply))
        task.add_done_callback(lambda _: self._streams.pop(number, None))

    def _free_id(self, number: str | None) -> str:
        """The id of a new stream. Raises `ApiError` where there can be none."""
        if self._draining:
            raise ApiError(503, "the server is shutting down; connect again when it is back")
        if number is None:
            refuse("id", "id is missing; expected a text that names the stream")
        if number in self._streams:
            refuse("id", f"id {number!r:.100} names a stream that still runs; pick another one")
        if len(self._streams) >= MAX_STREAMS:
            raise ApiError(503, f"{MAX_STREAMS} streams run on this socket; wait for one to end", code="overloaded")
        return number

    async def _stream(self, request: UnifiedRequest, reply: Reply) -> None:
        try:
            reply.attempts_told = -1  # here is no header for them
            async with aclosing(reply.answer.events()) as events:
                async for some in events:
                    for piece in reply.pieces(some):
                        await self._send(request, {"chunk": _chunk(piece)})
            await self._send(request, {"chunk": _chunk(reply.end())})
        except (ApiError, LmtoolError) as error:
            await self._send(request, {"error": error_body(error) | {"finish_reason": "error"}})

    async def _send(self, request: UnifiedRequest | _Head | None, content: dict[str, Any]) -> None:
        head = {"id": None if request is None else request.id, "pool": self._websocket.path_params["pool"]}
        if request is not None and request.metadata is not None:
            head["metadata"] = request.metadata
        async with self._sending:
            await self._websocket.send_text(to_json(head | content).decode())


class _Head(msgspec.Struct):
    """What tells which stream a message is of, whatever else is wrong with it."""

    id: str | None = None
    metadata: Any = None


def _head(data: bytes) -> _Head | None:
    try:
        return msgspec.json.decode(data, type=_Head)
    except (ValueError, RecursionError):
        return None


def _chunk(piece: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in piece.items() if name not in {"id", "pool"}}
