"""One end of a running session over any transport: WebSocket, gRPC or in process; a server's end or a client's.

A transport calls `run` with functions that receive and send frames. Programs read nodes by `node`, write them by
`output`, and ask the peer for actions by `invoke`; handlers do so through an `ActionCall`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import ConnectError, LmtoolError
from lmtool.protocol.evergreen.action_tasks import ActionTasks
from lmtool.protocol.evergreen.actions import Registry
from lmtool.protocol.evergreen.messages import Action, NamedParameter, SessionMessage, TargetSpec
from lmtool.protocol.evergreen.node_io import InputNode, OutputNode
from lmtool.protocol.evergreen.session import ActionReceived, Session
from lmtool.protocol.evergreen.status import Abort, Status, abort_of, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.protocol.evergreen.action_tasks import ActionLog
    from lmtool.protocol.evergreen.config import SessionLimits
    from lmtool.protocol.evergreen.messages import AnyMessage, ChunkMetadata
    from lmtool.protocol.evergreen.node_io import References
    from lmtool.protocol.evergreen.nodes import ActionRecord, Node
    from lmtool.protocol.evergreen.session import Event

Receive: TypeAlias = Callable[[], Awaitable[SessionMessage | None]]
"""The next message of the peer, None once it has half-closed.

Raises `Abort` for what is no message, `ConnectError` where the peer is gone.
"""
Send: TypeAlias = Callable[[SessionMessage | None], Awaitable[None]]
"""Sends a message, None for the half-close; returns when the transport takes more.

Raises `ConnectError` where the peer is gone.
"""


_SHARES = 4
"""How much more all actions of a session may have written than one of them may, before they pause."""


class Connection:
    """A session that runs. Belongs to one event loop; `run` must run while anything else is used."""

    def __init__(
        self,
        registry: Registry | None = None,
        limits: SessionLimits | None = None,
        *,
        number: int = 0,
        references: References | None = None,
        log: Callable[[ActionLog], None] = lambda _entry: None,
        peer_actions: bool = True,
    ) -> None:
        """registry: actions that the peer may ask for; log: called with each that ended.

        peer_actions: whether this end may ask the peer for actions.
        """
        self.number = number
        self.references = references
        self.session = Session(limits) if references is None else Session(limits, references.check)
        self._peer_actions = peer_actions
        self.failure: Abort | None = None
        """Why the session was aborted, by either side."""
        self._tasks = ActionTasks(self, registry or Registry(), log)
        self._waiting: dict[Node, list[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sendable = asyncio.Event()
        self._roomy = asyncio.Event()
        self._over = asyncio.Event()
        """Set at the session's end, however it comes."""
        self._finishing = False
        self._refusal: Abort | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    # Transport.

    async def run(self, receive: Receive, send: Send) -> None:
        """Speak until the session ends in order. Raises `Abort`, or `ConnectError` where the peer is gone.

        Whatever it ends with, its actions are cancelled, and their tasks have ended, when this returns.
        """
        self._rest()
        reader, writer = asyncio.create_task(self._read(receive)), asyncio.create_task(self._write(send))
        over = asyncio.create_task(self._over.wait())
        running = {reader, writer}
        try:
            while running and not over.done():
                done, _ = await asyncio.wait({*running, over}, return_when=asyncio.FIRST_COMPLETED)
                running -= done
                if any(task.exception() is not None for task in done):
                    break
        finally:
            tasks = self.close()
            for task in (reader, writer, over):
                task.cancel()
            ends = await asyncio.gather(reader, writer, over, *tasks, return_exceptions=True)
        if self.failure is not None:
            raise self.failure
        for end in ends[:2]:
            if isinstance(end, Exception):
                raise self._reason(end)

    def _reason(self, end: Exception) -> Abort | ConnectError:
        """What a session's end by this error is; a bug of ours is told to the event loop, and INTERNAL."""
        if isinstance(end, ConnectError):
            return end
        if not isinstance(end, LmtoolError):
            context = {"message": "an Evergreen session failed", "exception": end}
            asyncio.get_running_loop().call_exception_handler(context)
            end = Abort(Status.INTERNAL, f"this end of the session failed ({type(end).__name__})")
        self.failure = abort_of(end)
        return self.failure

    async def _read(self, receive: Receive) -> None:
        try:
            while (message := await receive()) is not None:
                await self.receive(message)
            self.session.feed_end()
            self._sendable.set()
        except ConnectError:
            raise
        except LmtoolError as error:
            self.fail(abort_of(error))

    async def receive(self, message: SessionMessage) -> None:
        """Take a message of the peer. Raises `Abort`."""
        for _ in self.session.feed_slices(message):
            await asyncio.sleep(0)
        events = self.session.finish_feed(message)
        self._rest()
        self._handle(events)
        for event in events:
            if isinstance(event, ActionReceived):
                if self._refusal is not None:
                    raise self._refusal
                self._idle.clear()
                self._tasks.start(event.record)
        self._note_idle()

    async def _write(self, send: Send) -> None:
        stall = self.session.limits.stall_limit
        while True:
            while (message := self.session.take()) is not None:
                self._roomy.set()
                try:
                    async with asyncio.timeout(stall or None):
                        await send(message)
                except TimeoutError:
                    raise ConnectError(f"the peer took no byte for {stall:g} s") from None
            self._note_idle()
            if self.finished:
                await send(None)
                return
            self._sendable.clear()
            await self._sendable.wait()

    @property
    def finished(self) -> bool:
        """True if this end has nothing more to send (rule 39).

        The peer, or this program, has half-closed, and all that the peer asked for is answered.
        """
        return (self.session.peer_ended or self._finishing) and not self._tasks and not self.session.unsent

    def finish(self) -> None:
        """Half-close: this program writes nothing more. `run` returns when the peer has answered everything."""
        self._finishing = True
        self._sendable.set()

    @property
    def running(self) -> int:
        """Actions of the peer that run."""
        return len(self._tasks)

    def refuse_new(self, abort: Abort) -> None:
        """Abort the session when the peer asks for another action."""
        self._refusal = abort

    async def idle(self) -> None:
        """Return when no action of the peer runs, and all output was handed to the transport."""
        await self._idle.wait()

    def _note_idle(self) -> None:
        if not self._tasks and not self.session.unsent:
            self._idle.set()

    def fail(self, abort: Abort) -> None:
        """Abort the session: `run` raises this (rule 38)."""
        if self.failure is None:
            self.failure = abort
        self.close()

    def close(self) -> list[asyncio.Task[None]]:
        """End everything; tasks of actions that are still to end."""
        self._over.set()
        self._idle.set()
        if self._timer is not None:
            self._timer.cancel()
        tasks = self._tasks.close()
        reason = self.failure or ConnectError("the session is over")
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(reason)
        self._waiting.clear()
        self._roomy.set()
        return tasks

    # Time.

    def _rest(self) -> None:
        """Something has happened: count idle time from here."""
        now = asyncio.get_running_loop().time()
        self.session.note_traffic(now)
        if self._timer is None or self._timer.when() > self.session.deadline:
            self._set_timer()

    def _set_timer(self) -> None:
        """Look at the time at the next deadline; one that moves away meanwhile is found out then."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._over.is_set():
            self._timer = asyncio.get_running_loop().call_at(self.session.deadline, self._check_time)

    def _check_time(self) -> None:
        try:
            self._handle(self.session.check_time(asyncio.get_running_loop().time()))
        except Abort as abort:
            self.fail(abort)
        self._set_timer()

    # Nodes, for `node_io`.

    def _handle(self, events: Sequence[Event]) -> None:
        for event in events:
            if not isinstance(event, ActionReceived):
                for future in self._waiting.pop(event.node, ()):
                    if not future.done():
                        future.set_result(None)
        if self.session.unsent or self.finished:
            self._sendable.set()

    async def growth(self, node: Node) -> None:
        """Return when the node has grown. Raises `Abort` or `ConnectError` once the session is over."""
        if self._over.is_set():
            raise self.failure or ConnectError("the session is over")
        if node.dropped:
            raise Abort(Status.NOT_FOUND, f"node {quoted(node.id)} was dropped")
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(node, []).append(future)
        try:
            await future
        finally:
            futures = self._waiting.get(node)
            if futures is not None and future in futures:
                futures.remove(future)

    async def room(self, owner: ActionRecord | None) -> None:
        """Return when little enough that this action, or this program, has written waits to be read by the peer.

        And little enough of all actions: a peer that reads nothing may have many.
        """
        while self._is_full(owner):
            if self._over.is_set():
                raise self.failure or ConnectError("the session is over")
            self._roomy.clear()
            await self._roomy.wait()

    def _is_full(self, owner: ActionRecord | None) -> bool:
        limit, waiting = self.session.limits.unread_bytes, self.session.unsent_bytes
        if owner is None:
            return waiting > limit
        return owner.unsent_bytes > limit or waiting > _SHARES * limit

    def write(
        self,
        node_id: str,
        data: bytes,
        metadata: ChunkMetadata | None = None,
        *,
        final: bool = False,
        owner: ActionRecord | None = None,
    ) -> None:
        """Write a piece of a leaf; metadata with the first one. Raises `Abort` for an id that is not this end's."""
        self._handle(self.session.emit(node_id, data, metadata, final=final, owner=owner))

    def write_children(
        self, node_id: str, child_ids: Sequence[str], *, final: bool = False, owner: ActionRecord | None = None
    ) -> None:
        """Append children to a parent. Raises `Abort`."""
        self._handle(self.session.emit_children(node_id, child_ids, final=final, owner=owner))

    def close_node(self, node_id: str, owner: ActionRecord | None = None) -> None:
        """End a node."""
        self._handle(self.session.close(node_id, owner))

    def end_action(self, record: ActionRecord) -> None:
        """An action of the peer has ended; its open outputs are closed."""
        self._handle(self.session.end_action(record))
        self._rest()

    def node(self, node_id: str) -> InputNode:
        """A node of the session to read, also one that has not arrived yet. Raises `Abort`."""
        return InputNode(self, self.session.graph.node(node_id))

    def output(self, node_id: str | None = None) -> OutputNode:
        """A node to write; the id is random by default."""
        return OutputNode(self, node_id or uuid.uuid4().hex)

    # What programs and actions do to the session.

    def start(self, action: Action) -> dict[str, InputNode]:
        """Ask the peer for an action, whose inputs may be written later; its outputs by name. Raises `Abort`."""
        if not self._peer_actions:
            raise Abort(Status.FAILED_PRECONDITION, "this server may not ask clients for actions", "see --peer-actions")
        record = self.session.start(action)
        self._sendable.set()
        return {name: InputNode(self, node) for name, node in record.outputs.items()}

    async def invoke(
        self,
        name: str,
        inputs: Mapping[str, bytes | str | InputNode],
        outputs: Sequence[str],
        configs: Sequence[AnyMessage] = (),
        target: str = "",
    ) -> dict[str, InputNode]:
        """Ask the peer for an action with new nodes; its outputs, which may still be on their way. Raises `Abort`.

        inputs: a node of the session, or a value to send as text/plain or application/octet-stream.
        """
        ids = {each: value.id if isinstance(value, InputNode) else uuid.uuid4().hex for each, value in inputs.items()}
        nodes = self.start(
            Action(
                name,
                tuple(NamedParameter(each, node_id) for each, node_id in ids.items()),
                tuple(NamedParameter(each, uuid.uuid4().hex) for each in outputs),
                tuple(configs),
                TargetSpec(target) if target else None,
            )
        )
        for each, value in inputs.items():
            if not isinstance(value, InputNode):
                kind = "text/plain" if isinstance(value, str) else "application/octet-stream"
                await self.output(ids[each]).put(value, kind)
        return nodes

    def cancel(self, output_id: str) -> None:
        """End the running action that has this output; one that has ended meanwhile needs nothing.

        Raises `Abort`, NOT_FOUND, for a node that is no output.
        """
        node = self.session.graph.find(output_id)
        ended = node is not None and node.writer == "here" and node.complete
        if not self._tasks.cancel(output_id) and not ended:
            raise Abort(Status.NOT_FOUND, f"no running action has the output {quoted(output_id)}")

    def drop(self, node_id: str, but: ActionRecord | None = None) -> None:
        """Drop a node; but: the action that asks for it. Raises `Abort`, NOT_FOUND or FAILED_PRECONDITION."""
        self._handle(self.session.drop(node_id, but))

    def set_ttl(self, node_id: str, seconds: float) -> None:
        """Drop a node and what is below it after a time in seconds. Raises `Abort`, NOT_FOUND."""
        self.session.set_ttl(node_id, asyncio.get_running_loop().time() + seconds)
        self._set_timer()
