"""Two ends of a session in one process, without a network."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from lmtool.core.errors import ConnectError
from lmtool.protocol.evergreen.status import Abort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lmtool.protocol.evergreen.connection import Connection
    from lmtool.protocol.evergreen.messages import SessionMessage

_MESSAGES = 16
"""Messages that wait in each direction, until the writer pauses."""


class Pipe:
    """One direction: messages, then None for the end, or the error that ends the session."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[SessionMessage | None] = asyncio.Queue(_MESSAGES)
        self._broken: asyncio.Future[SessionMessage | None] = asyncio.get_running_loop().create_future()

    async def send(self, message: SessionMessage | None) -> None:
        """Pass on a message, or the end; waits while many have not been received."""
        await self._queue.put(message)

    def fail(self, reason: Abort | ConnectError) -> None:
        """End the session with an error; what waits is not received any more."""
        if not self._broken.done():
            self._broken.set_exception(reason)
            self._broken.exception()  # maybe nobody receives it

    async def receive(self) -> SessionMessage | None:
        """The next message; None at the end. Raises the error that ended the session."""
        getting = asyncio.ensure_future(self._queue.get())
        try:
            await asyncio.wait({getting, self._broken}, return_when=asyncio.FIRST_COMPLETED)
            return self._broken.result() if self._broken.done() else getting.result()
        finally:
            getting.cancel()


@contextlib.asynccontextmanager
async def in_process(server: Connection, client: Connection) -> AsyncIterator[Connection]:
    """Run both ends of a session, and give the client's. The session ends with the block.

    Leaving the block in order half-closes the client's side and waits for the server's answers: raises `Abort` where
    the session does not end in order.
    """
    requests, answers = Pipe(), Pipe()

    async def serve() -> None:
        try:
            await server.run(requests.receive, answers.send)
        except (Abort, ConnectError) as error:
            answers.fail(error)

    serving = asyncio.create_task(serve())
    running = asyncio.create_task(client.run(answers.receive, requests.send))
    try:
        yield client
        client.finish()
        await running
    finally:
        requests.fail(ConnectError("the client has left"))
        await asyncio.gather(serving, return_exceptions=True)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
