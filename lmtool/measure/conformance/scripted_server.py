"""The suite's side of a case for clients: a server that answers each GENERATE by a script, and keeps the transcript."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

from lmtool.measure.conformance.transcript import ConnectionEnd, Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from websockets.asyncio.server import Server, ServerConnection

    from lmtool.measure.conformance.case_script import Step
    from lmtool.measure.conformance.transcript import ClientRun

WORDS = (" one", " two", " three", " four")
"""Texts of the tokens, in text mode."""
_LARGEST = 2**26
_PONG = 5.0
_MODEL_INFO = {
    "model": "conformance",
    "constructor": "lmtool conformance client",
    "vocab_size": 32000,
    "context_length": 4096,
    "eos_token_ids": [2],
    "bos_token_id": 1,
    "tokenizer": {"name": "conformance", "sha256": "0" * 64},
    "chat_template": False,
    "running": 0,
    "waiting": 0,
    "lmtp": 1,
    "extensions": ["cancel", "stop", "sampling", "seed", "text", "usage", "error_code"],
}


class ScriptedServer:
    """A server for one run of a client."""

    def __init__(self, steps: Sequence[Step], run: ClientRun, tokens: tuple[int, ...], *, bare: bool = False) -> None:
        """Make a server; call `listen`. tokens: ids of the answer; bare: MODEL_INFO is answered with an object."""
        self._steps = steps
        self._run = run
        self._tokens = tokens
        self._bare = bare
        self._began = time.monotonic()
        self._server: Server | None = None
        self._count = 0

    async def listen(self) -> str:
        """Take connections on a free port of this machine; return the URL."""
        from websockets.asyncio.server import serve

        self._server = await serve(
            self._serve, "127.0.0.1", 0, compression=None, max_size=_LARGEST, ping_interval=None, close_timeout=1.0
        )
        port = next(iter(self._server.sockets)).getsockname()[1]
        return f"ws://127.0.0.1:{port}/"

    async def close(self) -> None:
        """Close what is open."""
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, connection: ServerConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        self._count += 1
        name, transcript = str(self._count), self._run.transcript
        transcript.handshakes[name] = 101
        self._run.paths.append("" if connection.request is None else connection.request.path)
        answers: set[asyncio.Task[None]] = set()
        try:
            async for content in connection:
                message = Message.of(self._now(), name, ">", content)
                transcript.add(message)
                answers.add(asyncio.create_task(self._answer(name, connection, message)))
        except ConnectionClosed:
            pass  # recorded below, with its code
        finally:
            for answer in answers:
                answer.cancel()
            for end in await asyncio.gather(*answers, return_exceptions=True):
                if isinstance(end, Exception) and not isinstance(end, ConnectionClosed):  # a client may leave any time
                    raise end
        by = "server" if connection.protocol.close_rcvd_then_sent is False else "client"
        code = connection.close_code or 1006
        transcript.closed.setdefault(name, ConnectionEnd(self._now(), code, connection.close_reason or "", by))

    def _now(self) -> float:
        return time.monotonic() - self._began

    async def _answer(self, name: str, connection: ServerConnection, message: Message) -> None:
        payload = message.payload if isinstance(message.payload, dict) else {}
        of = payload.get("stream_id")
        if message.command == "GENERATE":
            for step in self._steps:
                await self._do(name, connection, step, ScriptVariables(payload, self._tokens))
        elif message.command == "SCORE":
            await self._send(name, connection, f"TOKEN {json.dumps(list(_scores(payload, of)))}")
        elif message.command == "MODEL_INFO":
            answer: object = {"stream_id": of, "model_info": _MODEL_INFO}
            await self._send(name, connection, f"MSG {json.dumps(answer if self._bare else [answer])}")
        elif message.command == "CANCEL":
            await self._send(name, connection, f"TOKEN {json.dumps([{'stream_id': of, 'finish_reason': 'cancelled'}])}")

    async def _do(self, name: str, connection: ServerConnection, step: Step, variables: ScriptVariables) -> None:
        rest = step.filled(variables.text)
        if step.verb == "<":
            await self._send(name, connection, rest)
        elif step.verb == "fragments":
            third = len(rest) // 3
            self._run.transcript.add(Message.of(self._now(), name, "<", rest))
            await connection.send([rest[:third], rest[third : 2 * third], rest[2 * third :]])
        elif step.verb == "ping":
            try:
                async with asyncio.timeout(_PONG):
                    await (await connection.ping())
            except TimeoutError:
                self._run.notes.append(f"a ping was not answered within {_PONG:g} s")
        elif step.verb == "close":
            self._run.transcript.closed[name] = ConnectionEnd(self._now(), int(rest), "", "server")
            await connection.close(int(rest))
        elif step.verb == "drop":
            self._run.transcript.closed[name] = ConnectionEnd(self._now(), 1006, "", "server")
            connection.transport.abort()

    async def _send(self, name: str, connection: ServerConnection, text: str) -> None:
        self._run.transcript.add(Message.of(self._now(), name, "<", text))
        await connection.send(text)


class ScriptVariables:
    """Variables of a client case's script, for one request.

    `$id` its stream_id; `$token(0)` a whole entry, `$last(2)` one that ends the stream; `$t(0)` a token id alone,
    `$text(0)` its text as a further member where the client asked for text.
    """

    def __init__(self, payload: Mapping[str, object], tokens: tuple[int, ...]) -> None:
        self._of = json.dumps(payload.get("stream_id"))
        ids = isinstance(payload.get("prompt"), list)
        self._speaks_text = payload["text"] is True if "text" in payload else not ids
        self._tokens = tokens

    def text(self, name: str, argument: str) -> str:
        """The value of a variable as JSON."""
        number = int(argument or 0)
        token = self._tokens[number % len(self._tokens)]
        if name == "id":
            return self._of
        if name == "t":
            return str(token)
        if name == "text":
            return f', "text": {json.dumps(WORDS[number % len(WORDS)])}' if self._speaks_text else ""
        ending = {"token": "null", "last": '"stop"'}[name]
        entry = f'"token": {token}, "stream_id": {self._of}, "logprob": -0.5, "finish_reason": {ending}'
        return f'{{{entry}, "top_logprobs": {{"{token}": -0.5}}{self.text("text", argument)}}}'


def _scores(payload: Mapping[str, object], of: object) -> Iterator[dict[str, object]]:
    scored = payload.get("scored")
    ids = scored if isinstance(scored, list) else [5]
    for i, token in enumerate(ids):
        reason = "stop" if i + 1 == len(ids) else None
        yield {"token": token, "stream_id": of, "logprob": -0.5, "finish_reason": reason}
    if not ids:
        yield {"stream_id": of, "finish_reason": "stop"}
