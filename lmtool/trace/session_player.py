"""Play recorded Evergreen sessions to clients: each action gets the recorded answer of an equal action.

Sessions follow the protocol; only the outputs of actions come from the recording, so clients may choose other ids,
fragments and order. CANCEL, DROP and SET_TTL act on the session as usual.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from lmtool.core.errors import ConnectError, ResourceError
from lmtool.net.access.caller import counted_stream
from lmtool.protocol.evergreen.actions import ActionType, Registry
from lmtool.protocol.evergreen.codec import encode, encode_json
from lmtool.protocol.evergreen.server import EvergreenServer, Plugs
from lmtool.protocol.evergreen.session_actions import session_actions
from lmtool.protocol.evergreen.status import ABORTED, Abort, Status, close_reason, invalid
from lmtool.trace.http_server import until
from lmtool.trace.matching import IncomingRequest
from lmtool.trace.sessions import SessionAction, action_payload
from lmtool.trace.stream_events import INCOMPLETE, INPUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.net.access.policy import AccessPolicy
    from lmtool.protocol.evergreen.actions import ActionCall
    from lmtool.protocol.evergreen.connection import Connection
    from lmtool.protocol.evergreen.grpc_server import GrpcServer
    from lmtool.protocol.evergreen.messages import Action, SessionMessage
    from lmtool.protocol.evergreen.node_io import OutputNode
    from lmtool.trace.exchanges import RecordedRequest
    from lmtool.trace.matching import Matcher, OnMiss, Pace
    from lmtool.trace.sessions import OutputStep
    from lmtool.trace.websocket_stream import ServerSocket

_OVER_THE_SESSION = ("CANCEL", "DROP", "SET_TTL")
_LINGER = 2.0
"""Seconds that a client has to read the end of its session."""


class Finder(Protocol):
    """Finds recorded answers to requests of any protocol."""

    pace: Pace
    on_miss: OnMiss

    def find(self, request: IncomingRequest) -> tuple[RecordedRequest | None, str]:
        """Recorded request that answers; or None, and a sentence with the reason."""


class SessionPlayer:
    """Answers actions of Evergreen sessions from a recording."""

    def __init__(self, player: Finder, matcher: Matcher[RecordedRequest], policy: AccessPolicy) -> None:
        """policy: for the gRPC port; WebSockets were admitted earlier."""
        self._policy = policy
        self._player = player
        self._matcher = matcher
        self.server = EvergreenServer(Plugs(_RecordedActions(self), references=_Unread()))
        """Opens sessions over any transport."""
        self._over_grpc: GrpcServer | None = None

    async def listen(self, host: str, port: int) -> str:
        """Also play over gRPC on this port, 0 for a free one; returns the address. Raises `ResourceError`."""
        try:
            from lmtool.protocol.evergreen.grpc_server import GrpcServer
        except ImportError:
            raise ResourceError("Evergreen over gRPC needs grpcio", "install it:  pip install 'lmtool[grpc]'") from None
        self._over_grpc = GrpcServer(self.server, self._policy)
        return f"{host}:{await self._over_grpc.start(host, port)}"

    async def close(self) -> None:
        """End all sessions, and close the gRPC port."""
        await self.server.drain(0)
        if self._over_grpc is not None:
            await self._over_grpc.stop()

    async def speak(self, socket: ServerSocket, agent: str) -> None:
        """Run a session over a WebSocket."""
        if refusal := await self.server.refusal(socket.address):
            await _leave(socket, refusal)
            return
        async with self.server.session(socket.address, agent) as connection:
            end: Abort | None = None
            try:
                await _Frames(self.server, connection, socket).run()
            except ConnectError:
                return
            except Abort as abort:
                end = abort
        await _leave(socket, end)

    async def answer(self, call: ActionCall) -> None:
        """Answer an action as recorded. Raises `Abort` for an unrecorded action, and if the recorded one failed.

        Inputs that the recorded client never completed are not awaited.
        """
        inputs = dict.fromkeys((INPUT + name for name in call.inputs), INCOMPLETE)
        early = self._matcher.candidates(_request(call, inputs))
        waited = (isinstance(one, SessionAction) and one.waited for one in early)
        if next(waited, True) or any(waited):
            for node in call.inputs.values():
                await node.completed()
        with counted_stream():
            await self._answer(call)

    async def _answer(self, call: ActionCall) -> None:
        recorded, why = self._player.find(_request(call))
        if isinstance(recorded, SessionAction):
            await self._play(recorded, call)
        elif self._player.on_miss == "hang":
            await asyncio.Event().wait()
        else:
            raise Abort(Status.NOT_FOUND, why)

    async def _play(self, recorded: SessionAction, call: ActionCall) -> None:
        nodes = {recorded.roots[name]: node for name, node in call.outputs.items() if name in recorded.roots}
        due = self._player.pace.due(step.offset for step in recorded.steps)
        began = asyncio.get_running_loop().time()
        for when, step in zip(due, recorded.steps, strict=True):
            await until(began + when)
            if step.fragment.id in nodes:  # otherwise it is below an output that was not requested
                await _write(nodes, step)
        if recorded.abort is not None:
            raise recorded.abort
        if not recorded.complete:
            await asyncio.Event().wait()  # nothing more was recorded


def _request(call: ActionCall, more: Mapping[str, object] | None = None) -> IncomingRequest:
    payload = {**action_payload(call.record), **(more or {})}
    return IncomingRequest(call.action.name, payload, "", "evergreen")


async def _write(nodes: dict[str, OutputNode], step: OutputStep) -> None:
    """Write a fragment of a recorded answer. nodes: the new answer's nodes by their recorded ids."""
    fragment, node = step.fragment, nodes[step.fragment.id]
    chunk = fragment.chunk_fragment
    if chunk is not None and chunk.ref is not None:
        raise invalid("the recorded answer refers to outside data, which is not played")
    if chunk is not None:
        await node.write(chunk.data or b"", metadata=chunk.metadata)
    for child_id in fragment.child_ids:
        if child_id in nodes:
            node.add(nodes[child_id].id)
        else:
            nodes[child_id] = node.child()
    if not fragment.continued:
        node.close()


class _RecordedActions(Registry):
    """Registry that accepts every action with any parameters: the recording decides what can be answered."""

    def __init__(self, player: SessionPlayer) -> None:
        super().__init__([each for each in session_actions(self) if each.name in _OVER_THE_SESSION])
        self._player = player

    def find(self, name: str) -> ActionType:
        """The action of a name."""
        if name in _OVER_THE_SESSION:
            return super().find(name)
        return _AnyAction(name, (), (), self._player.answer, seconds=None)


class _AnyAction(ActionType):
    """An action that accepts parameters of any name."""

    def resolve(self, action: Action) -> tuple[dict[str, str], dict[str, str]]:
        """Parameter names unchanged."""
        return {each.name: each.name for each in action.inputs}, {each.name: each.name for each in action.outputs}


class _Unread:
    """References are accepted and compared by URI, but never read."""

    def check(self, uri: str) -> None:
        """Accept any."""

    async def read(self, uri: str, mimetype: str, max_bytes: int) -> bytes:  # noqa: ARG002  # the interface has them
        """Refuse to read."""
        raise invalid("a server of recordings reads no outside data")


class _Frames:
    """Frames of a session over one WebSocket; answers use the client's latest encoding, text or binary."""

    def __init__(self, server: EvergreenServer, connection: Connection, socket: ServerSocket) -> None:
        self._server = server
        self._connection = connection
        self._socket = socket
        self._messages = socket.messages()
        self._text = True

    async def run(self) -> None:
        await self._connection.run(self._receive, self._send)

    async def _receive(self) -> SessionMessage | None:
        frame = await anext(self._messages, None)
        if frame is None:
            raise ConnectError("the client has left")
        self._text = isinstance(frame, str)
        return await self._server.read(self._connection, frame)

    async def _send(self, message: SessionMessage | None) -> None:
        if message is not None:
            await self._socket.send(encode_json(message) if self._text else encode(message))


async def _leave(socket: ServerSocket, end: Abort | None) -> None:
    """Close the session regularly; read and discard input meanwhile: unread data would reset the connection."""
    socket.close(*((1000, "") if end is None else (ABORTED, close_reason(end))))
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            async for _ in socket.messages():
                pass
