"""A server that knows nothing but the LMTP document, with the faults of a real one; `python -m` runs it for a person.

It answers MODEL_INFO, GENERATE and SCORE with exactly the document's fields; any other field ends the stream with an
error, as LMQL's server does. The next token depends on all ids before it alone, so that a stream
which is sent again as prompt plus received ids goes on as the first one would have.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

_KNOWN = {"model", "prompt", "stream_id", "max_tokens", "temperature", "logit_bias", "top_logprobs", "scored"}


def next_token(ids: Sequence[int]) -> int:
    """The most likely token after these ids: printable ASCII where ids are bytes."""
    return 97 + (sum((position + 1) * token for position, token in enumerate(ids)) + len(ids)) % 26


def greedy(prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that the server continues a prompt with."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_token(ids))
    return ids[len(prompt) :]


@dataclass
class DocumentServer:
    """What it does, and what came."""

    silent_after: Sequence[int | None] = ()
    """Tokens of the first streams after which nothing more comes; None: to the end. Later streams are whole."""
    cut: bool = False
    """Whether the connection is cut there, instead."""
    batch_max: int = 0
    """Least `max_tokens` of a batch, which all its streams get (LMQL's batches)."""
    deaf: bool = False
    """Whether nothing is ever answered."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Every GENERATE and SCORE."""
    frames: list[str] = field(default_factory=list)
    """Everything that came."""
    url: str = ""

    def __post_init__(self) -> None:
        self._numbers = itertools.count()

    async def __call__(self, connection: ServerConnection) -> None:
        """Serve one connection."""
        with contextlib.suppress(ConnectionClosed):
            await self._serve(connection)

    async def _serve(self, connection: ServerConnection) -> None:
        async for frame in connection:
            self.frames.append(str(frame))
            command, _, text = str(frame).partition(" ")
            payload = json.loads(text)
            if self.deaf:
                continue
            if "model" not in payload:
                return  # LMQL's closes the connection
            await self._answer(connection, command, payload)

    async def _answer(self, connection: ServerConnection, command: str, payload: dict[str, Any]) -> None:
        own = {"stream_id": payload["stream_id"]}
        if command == "MODEL_INFO":
            await _send(connection, "MSG", {**own, "model_info": {"model": payload["model"], "constructor": "c"}})
        elif command not in {"GENERATE", "SCORE"}:
            await _send(connection, "MSG", {**own, "error": f"Unknown command: {command}"})
        else:
            self.requests.append(payload)
            if unknown := payload.keys() - _KNOWN:
                await _send(connection, "TOKEN", {**own, "error": f"model_kwargs are not used: {sorted(unknown)}"})
            else:
                await self._stream(connection, own, payload)

    async def _stream(self, connection: ServerConnection, own: dict[str, Any], payload: dict[str, Any]) -> None:
        number = next(self._numbers)
        most = self.silent_after[number] if number < len(self.silent_after) else None
        ids, scored = list(payload["prompt"]), payload.get("scored")
        count = len(scored) if scored is not None else max(payload.get("max_tokens", 32), self.batch_max)
        for step in range(count):
            if step == most:
                if self.cut:
                    connection.transport.abort()
                return
            ids.append(scored[step] if scored is not None else next_token(ids))
            reason = None if step < count - 1 else "stop" if scored is not None else "length"
            entry = {**own, "token": ids[-1], "logprob": -0.5, "finish_reason": reason}
            if scored is None:
                entry["top_logprobs"] = {str(ids[-1]): -0.5, "1": -2.0, "2": -3.0}
            await _send(connection, "TOKEN", entry)


async def _send(connection: ServerConnection, command: str, entry: dict[str, Any]) -> None:
    await connection.send(f"{command} {json.dumps([entry])}")


@contextlib.asynccontextmanager
async def document_server(port: int = 0, **options: Any) -> AsyncIterator[DocumentServer]:
    """Run one on a free port."""
    made = DocumentServer(**options)
    async with serve(made, "127.0.0.1", port, compression=None) as server:
        made.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        yield made


async def _main(port: int, options: dict[str, Any]) -> None:
    async with document_server(port, **options) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), json.loads(sys.argv[2]) if sys.argv[2:] else {}))
