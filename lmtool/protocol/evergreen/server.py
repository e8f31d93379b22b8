"""Evergreen over WebSocket at `/evergreen`, and the sessions of a server whatever carries them.

Light to import: protobuf, and what sessions consist of, are imported when the first session comes, in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from lmtool.core.errors import ConnectError
from lmtool.core.metrics import MetricFamily
from lmtool.net.subprocesses.offload import is_long, run_in_subprocess
from lmtool.protocol.evergreen.actions import Registry
from lmtool.protocol.evergreen.config import EvergreenConfig
from lmtool.protocol.evergreen.status import ABORTED, Abort, Status, close_reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

    from starlette.websockets import WebSocket

    from lmtool.protocol.evergreen.action_tasks import ActionLog
    from lmtool.protocol.evergreen.config import SessionLimits
    from lmtool.protocol.evergreen.connection import Connection
    from lmtool.protocol.evergreen.messages import SessionMessage
    from lmtool.protocol.evergreen.node_io import References

_FLUSH_SECONDS = 2.0
_GOING_AWAY = 1001


class Tap(Protocol):
    """Observes sessions, such as to record them; no method may raise."""

    def opened(self, connection: int, agent: str) -> None:
        """A client has begun a session; agent: its `User-Agent`."""

    @property
    def active(self) -> bool:
        """True if messages need be shown now."""

    def message(self, connection: int, direction: Literal[">", "<"], value: Mapping[str, object]) -> None:
        """A message was received (`>`) or is about to be sent (`<`); value: as proto-JSON."""

    def ended(self, connection: int, by: Literal["client", "server"], code: int | None, reason: str) -> None:
        """A session has ended; code and reason: as WebSocket's, also where something else carried it."""


@dataclass(frozen=True, slots=True)
class Plugs:
    """What a server and all its sessions are plugged into."""

    registry: Registry | Callable[[], Registry] = field(default_factory=Registry)
    """The actions that it offers, or what makes them when the first session comes; called in a thread."""
    config: EvergreenConfig = field(default_factory=EvergreenConfig)
    references: References | None = None
    """Outside data that leaves may refer to; None: none."""
    log: Callable[[ActionLog], None] = lambda _entry: None
    """Called with each action that ended."""
    tap: Tap | None = None
    """Observes every message."""
    peer_actions: bool = False
    """True if actions may ask clients for actions of theirs."""


class EvergreenServer:
    """Offers actions to any number of clients, over WebSocket and whatever else opens sessions here."""

    def __init__(self, plugs: Plugs) -> None:
        self.plugs = plugs
        self._count = 0
        self._sessions: dict[Connection, str] = {}
        """Each with its client's address."""
        self._lingering: Counter[str] = Counter()
        """Calls whose session has ended and whose client takes nothing, by its address."""
        self._empty = asyncio.Event()
        self._empty.set()
        self._draining: Abort | None = None
        self._totals: Counter[Status] = Counter()
        self._registry: Registry | None = None
        self._loading = asyncio.Lock()

    @property
    def running(self) -> int:
        """Actions of all sessions that have not ended."""
        return sum(connection.running for connection in self._sessions)

    def routes(self) -> list[BaseRoute]:
        """Routes for a starlette application; serve it behind `access.asgi.Door`."""
        return [WebSocketRoute("/evergreen", self._websocket)]

    def metrics(self) -> Iterable[MetricFamily]:
        """How many sessions are open and have ended, and actions that run."""
        held = sum(connection.session.graph.size for connection in self._sessions)
        ended = [(f'{{status="{status.name}"}}', count) for status, count in sorted(self._totals.items())]
        return [
            MetricFamily.gauge("evergreen_sessions", "Open Evergreen sessions.", len(self._sessions)),
            MetricFamily.gauge("evergreen_node_bytes", "Nodes of open Evergreen sessions.", held),
            MetricFamily.gauge("evergreen_actions_running", "Evergreen actions that run.", self.running),
            MetricFamily("evergreen_sessions_total", "counter", "Ended Evergreen sessions by status.", ended),
        ]

    async def drain(self, seconds: float) -> bool:
        """Take no new session and no new action, let running ones end, then end every session.

        Sessions with actions still running after `seconds` are aborted. Returns whether all ended by themselves.
        """
        self._draining = Abort(Status.UNAVAILABLE, "the server is shutting down", "connect again when it is back")
        for connection in self._sessions:
            connection.refuse_new(self._draining)
        await _within(seconds, [connection.idle() for connection in self._sessions])
        finished = not self.running
        for connection in list(self._sessions):
            connection.fail(self._draining)
        await _within(_FLUSH_SECONDS, [self._empty.wait()])
        return finished

    async def refusal(self, client: str) -> Abort | None:
        """Why another session of this address is not opened; None where it is, at once, by `session`."""
        await self._load()
        config = self.plugs.config
        if self._draining is not None:
            return self._draining
        if len(self._sessions) + self._lingering.total() >= config.max_sessions:
            return _too_many("max_sessions", config.max_sessions, "sessions are open")
        if list(self._sessions.values()).count(client) + self._lingering[client] >= config.max_client_sessions:
            return _too_many("max_client_sessions", config.max_client_sessions, "sessions of this address are open")
        return None

    @contextlib.asynccontextmanager
    async def session(
        self, client: str, agent: str = "", limits: SessionLimits | None = None
    ) -> AsyncIterator[Connection]:
        """A session while the block runs; `run` it there. limits: in place of those of the server."""
        plugs, registry = self.plugs, await self._load()
        from lmtool.protocol.evergreen.connection import Connection

        self._count += 1
        connection = Connection(
            registry,
            limits or plugs.config.limits,
            number=self._count,
            references=plugs.references,
            log=plugs.log,
            peer_actions=plugs.peer_actions,
        )
        self._sessions[connection] = client
        self._empty.clear()
        if plugs.tap is not None:
            plugs.tap.opened(connection.number, agent)
        try:
            yield connection
        finally:
            del self._sessions[connection]
            failure = connection.failure
            self._totals[Status.OK if failure is None else failure.status] += 1
            if plugs.tap is not None and failure is None:
                plugs.tap.ended(connection.number, "client", None, "")
            elif plugs.tap is not None and failure is not None:
                plugs.tap.ended(connection.number, "server", ABORTED, failure.reason)
            if not self._sessions:
                self._empty.set()

    @contextlib.contextmanager
    def lingering(self, client: str) -> Iterator[None]:
        """Count something that is left of a session of this address, while the block runs, like a session."""
        self._lingering[client] += 1
        try:
            yield
        finally:
            self._lingering -= Counter({client: 1})  # of addresses without one nothing is kept

    async def _load(self) -> Registry:
        """The actions, once all that sessions need is imported: in a thread, so that streams go on meanwhile."""
        if self._registry is None:
            async with self._loading:
                if self._registry is None:
                    self._registry = await asyncio.to_thread(_imported, self.plugs.registry)
        return self._registry

    def observe(self, connection: Connection, direction: Literal[">", "<"], message: SessionMessage) -> None:
        """Show a message to the tap."""
        if self.plugs.tap is not None and self.plugs.tap.active:
            from lmtool.protocol.evergreen.codec import json_value

            self.plugs.tap.message(connection.number, direction, json_value(message))

    async def read(self, connection: Connection, frame: str | bytes) -> SessionMessage:
        """The message of a frame; a long one is read in another process. Raises `Abort`."""
        from lmtool.protocol.evergreen.codec import decode, json_value

        decoder = partial(decode, limits=self.plugs.config.limits)
        if not is_long(frame):
            message = decoder(frame)
            self.observe(connection, ">", message)
            return message
        message = await run_in_subprocess(decoder, frame)
        if self.plugs.tap is not None and self.plugs.tap.active:
            value = await asyncio.to_thread(json_value, message)
            self.plugs.tap.message(connection.number, ">", value)
        return message

    # WebSocket.

    async def _websocket(self, websocket: WebSocket) -> None:
        client = websocket.client.host if websocket.client is not None else ""
        refusal = await self.refusal(client)
        if refusal is not None:
            await websocket.send_denial_response(PlainTextResponse(refusal.reason, 503, {"retry-after": "1"}))
            return
        # What its client takes, be it a byte, is seen by the transport, which cuts it (`access.stall`).
        limits = replace(self.plugs.config.limits, stall_limit=0)
        async with self.session(client, websocket.headers.get("user-agent", ""), limits) as connection:
            await websocket.accept()
            code, reason = 1000, ""
            try:
                await _Frames(self, connection, websocket).run()
            except Abort as abort:
                code, reason = ABORTED, close_reason(abort)
            except ConnectError:
                return
            with contextlib.suppress(TimeoutError, WebSocketDisconnect, OSError):
                async with asyncio.timeout(_FLUSH_SECONDS):  # a client that reads nothing does not see it
                    await websocket.close(code, reason)


class _Frames:
    """A session's frames over one WebSocket: answers go in the kind that the client last used."""

    def __init__(self, server: EvergreenServer, connection: Connection, websocket: WebSocket) -> None:
        self._server = server
        self._connection = connection
        self._websocket = websocket
        self._text = True

    async def run(self) -> None:
        await self._connection.run(self._receive, self._send)

    async def _receive(self) -> SessionMessage | None:
        event = await self._websocket.receive()
        if event["type"] == "websocket.disconnect":
            raise ConnectError("the client has left")
        text = event.get("text")
        self._text = text is not None
        frame = text if text is not None else event["bytes"]
        return await self._server.read(self._connection, frame)

    async def _send(self, message: SessionMessage | None) -> None:
        if message is None:
            return
        from lmtool.protocol.evergreen.codec import encode, encode_json

        self._server.observe(self._connection, "<", message)
        frame = encode_json(message) if self._text else encode(message)
        try:
            if isinstance(frame, str):
                await self._websocket.send_text(frame)
            else:
                await self._websocket.send_bytes(frame)
        except (WebSocketDisconnect, OSError) as error:
            raise ConnectError("the client has left") from error


def _imported(registry: Registry | Callable[[], Registry]) -> Registry:
    """The registry, once what sessions need is imported."""
    import lmtool.protocol.evergreen.connection  # noqa: F401  # with all below it

    return registry if isinstance(registry, Registry) else registry()


def _too_many(name: str, limit: int, what: str) -> Abort:
    return Abort(Status.RESOURCE_EXHAUSTED, f"{limit} {what}, the limit {name}", "end one, or try again later")


async def _within(seconds: float, waits: Iterable[object]) -> None:
    """Wait for all of these, but no longer than that."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*waits)  # type: ignore[call-overload]  # coroutines
