"""What the tests of the suites share: frames said in a case."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

from websockets.asyncio.server import ServerConnection, serve

from lmtool.measure.conformance.transcript import Message, Transcript

Say = ServerConnection
"""What a test's server answers on."""


def said(*frames: str | bytes, at: str = "a") -> Transcript:
    """A case in which a server said these frames."""
    transcript = Transcript()
    for i, frame in enumerate(frames):
        transcript.add(Message.of(i / 10, at, "<", frame))
    return transcript


def token(token: int | None = 5, of: object = 1, **more: object) -> str:
    """A TOKEN frame with one entry."""
    entry = {"token": token, "stream_id": of, "logprob": -0.5, "finish_reason": None, "top_logprobs": {"5": -0.5}}
    entry |= more
    return f"TOKEN {json.dumps([{name: value for name, value in entry.items() if value is not ...}])}"


def msg(of: object = 1, **more: object) -> str:
    """A MSG frame with one entry."""
    return f"MSG {json.dumps([{'stream_id': of, **more}])}"


@contextlib.asynccontextmanager
async def speaking(answer: Callable[[str, Say], Awaitable[None]]) -> AsyncIterator[str]:
    """A WebSocket server on a free port that calls `answer(frame, say)` for each frame; the value is its URL."""

    async def handle(connection: ServerConnection) -> None:
        async for frame in connection:
            await answer(str(frame), connection)

    async with serve(handle, "127.0.0.1", 0, compression=None, max_size=2**23) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/"
