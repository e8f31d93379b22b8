"""One end of a session, without I/O: messages in, events out; and what this end writes, as messages to send.

Both ends are alike: each may write nodes and send actions. `feed` takes a message of the peer and returns what it
changed, or raises `Abort`: then the session is over, and nothing of that message has had an effect outside. This end
writes nodes by `emit`, `emit_children` and `close`, and actions by `start`; they are nodes like those of the peer,
usable as inputs and children at once (rule 30). `take` gives the next message to send.

An action of the peer is `ActionReceived`; its outputs are this end's to write. When it has ended, call `end_action`.
What is unfinished when the peer has half-closed is checked by `feed_end`. Time is an argument: `expire`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from lmtool.protocol.evergreen.config import SessionLimits
from lmtool.protocol.evergreen.graph import Graph
from lmtool.protocol.evergreen.messages import (
    Action,
    Chunk,
    ChunkMetadata,
    NamedParameter,
    NodeFragment,
    SessionMessage,
)
from lmtool.protocol.evergreen.nodes import ActionRecord, Node, Reference
from lmtool.protocol.evergreen.outbox import Outbox
from lmtool.protocol.evergreen.status import Abort, Status, invalid, over_limit, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lmtool.protocol.evergreen.nodes import Side
    from lmtool.protocol.evergreen.outbox import Part

_EXPIRY_SECONDS = 1.0
"""Until a node that an action needs, and whose time is over, is looked at again."""
_SENT_FRAGMENTS = 1024
"""Of one message that is sent."""
SLICE = 256
"""Fragments and updates of other nodes between two yields of `Session.feed_slices`: about 2 ms."""


@dataclass(frozen=True, slots=True)
class NodeGrew:
    """A node has more payload or children in order than before, or became complete: `node.complete`."""

    node: Node


@dataclass(frozen=True, slots=True)
class ActionReceived:
    """The peer asks for an action. Its inputs may be incomplete, or only named as yet."""

    record: ActionRecord


Event: TypeAlias = NodeGrew | ActionReceived


def refuse_reference(uri: str) -> None:
    """The references of a session that allows none (rules 35, 36). Raises `Abort`."""
    scheme = uri.partition(":")[0] if ":" in uri else uri
    raise invalid(f"references to outside data are not accepted here, such as of {quoted(scheme)}", "send it inline")


class Session:
    """One end of a session."""

    def __init__(
        self, limits: SessionLimits | None = None, check_reference: Callable[[str], None] = refuse_reference
    ) -> None:
        """check_reference: raises `Abort` for a URI that is not accepted."""
        self.limits = limits or SessionLimits()
        self.graph = Graph(self.limits)
        self.running: dict[ActionRecord, None] = {}
        """Actions of the peer that have not ended."""
        self.started: dict[ActionRecord, None] = {}
        """Actions of this end whose outputs are not complete."""
        self.peer_ended = False
        """True if the peer has half-closed: it sends nothing more."""
        self._check_reference = check_reference
        self._outbox = Outbox()
        self._expiry: dict[Node, float] = {}
        self._last_traffic = 0.0

    # What the peer sends.

    def feed(self, message: SessionMessage) -> list[Event]:
        """Take one message of the peer; what it changed. Raises `Abort`.

        Its fragments and actions have no order among them (rule 24).
        """
        for _ in self.feed_slices(message):
            pass
        return self.finish_feed(message)

    def feed_slices(self, message: SessionMessage) -> Iterator[None]:
        """The first part of `feed`, yielding now and then, for a caller with other things to do meanwhile."""
        if self.peer_ended and message != SessionMessage():
            raise invalid("a message came after the end of the messages")
        work = 0
        for fragment in message.node_fragments:
            chunk = fragment.chunk_fragment
            if chunk is not None and chunk.ref is not None:
                self._check_reference(chunk.ref)
            before = self.graph.steps
            self.graph.write(fragment, "peer")
            work += 1 + self.graph.steps - before
            if work >= SLICE:
                work = 0
                yield

    def finish_feed(self, message: SessionMessage) -> list[Event]:
        """The second part of `feed`, after all of `feed_slices`."""
        records = [self._open_action(action, "peer") for action in message.actions]
        for record in records:
            self._add_running(record)
        events: list[Event] = [ActionReceived(record) for record in records]
        events += self._grown()
        self._end_started()
        return events

    def feed_end(self) -> None:
        """The peer sends nothing more. Raises `Abort` for what cannot be completed any more (rule 39)."""
        self.peer_ended = True
        for record in self.started:
            name = quoted(record.action.name)
            raise Abort(Status.FAILED_PRECONDITION, f"the messages ended before the outputs of {name} were complete")
        for record in self.running:
            if missing := self._missing_input(record):
                text = f"{missing}, but the messages have ended"
                raise Abort(Status.FAILED_PRECONDITION, text)

    def _grown(self) -> list[Event]:
        grown, self.graph.grown = self.graph.grown, {}
        return [NodeGrew(node) for node in grown]

    def _add_running(self, record: ActionRecord) -> None:
        limit = self.limits.max_running_actions
        if len(self.running) >= limit:
            raise over_limit("max_running_actions", limit, f"{len(self.running)} actions of this session are running")
        self.running[record] = None

    # Actions.

    def _open_action(self, action: Action, caller: Side) -> ActionRecord:
        """Check an action's form, and link its outputs to its inputs (rules 18, 27, 31)."""
        count, limit = len(action.inputs) + len(action.outputs), self.limits.max_parameters
        if count > limit:
            raise over_limit("max_parameters", limit, f"action {quoted(action.name)} has {count:,} parameters")
        self.graph.check_name(action.name, "an action's name")
        inputs = {name: self.graph.node(node_id) for name, node_id in self._parameters(action, action.inputs)}
        outputs = {}
        for name, node_id in self._parameters(action, action.outputs):
            node = self.graph.find(node_id)
            if node is not None and (node.writer is not None or node.dropped):
                text = f"output {quoted(name)} of {quoted(action.name)} has the id of another node, {quoted(node_id)}"
                raise Abort(Status.ALREADY_EXISTS, text, "choose a new one")
            outputs[name] = self.graph.node(node_id)
            outputs[name].writer = "here" if caller == "peer" else "peer"
        record = ActionRecord(action, caller, inputs, outputs)
        self.graph.open_action(record)
        return record

    def _parameters(self, action: Action, parameters: Sequence[NamedParameter]) -> list[tuple[str, str]]:
        names: set[str] = set()
        for each in parameters:
            self.graph.check_name(each.name, f"the name of a parameter of {quoted(action.name)}")
            if each.name in names:
                raise invalid(f"action {quoted(action.name)} has the parameter {quoted(each.name)} twice")
            names.add(each.name)
        return [(each.name, each.id) for each in parameters]

    def start(self, action: Action) -> ActionRecord:
        """Ask the peer for an action; its outputs are the peer's to write. Raises `Abort` for what it would refuse."""
        record = self._open_action(action, "here")
        self.started[record] = None
        self._end_started()  # one without outputs: nothing tells when it ends
        self._outbox.add_action(action)
        return record

    def end_action(self, record: ActionRecord) -> list[Event]:
        """An action of the peer has ended; outputs still open are closed. Returns what that changed."""
        events: list[Event] = []
        for node in record.outputs.values():
            if not node.whole and not node.dropped:
                events += self.close(node.id, record)
        self.graph.end_action(record)
        self.running.pop(record, None)
        return events

    def _end_started(self) -> None:
        """Forget own actions whose outputs are complete."""
        for record in [each for each in self.started if all(node.complete for node in each.outputs.values())]:
            self.graph.end_action(record)
            del self.started[record]

    # What this end writes.

    def emit(
        self,
        node_id: str,
        data: bytes | Reference,
        metadata: ChunkMetadata | None = None,
        *,
        final: bool = False,
        owner: ActionRecord | None = None,
    ) -> list[Event]:
        """Write a piece of a leaf; what that changed here.

        metadata: with the first piece, which needs it. owner: the action of the peer that this is output of.
        """
        chunk = Chunk(metadata, data.uri) if isinstance(data, Reference) else Chunk(metadata, None, data)
        return self._emit(NodeFragment(node_id, chunk_fragment=chunk), data, final=final, owner=owner)

    def emit_children(
        self, node_id: str, child_ids: Sequence[str], *, final: bool = False, owner: ActionRecord | None = None
    ) -> list[Event]:
        """Append children to a parent; what that changed here. The children may be written before or after."""
        return self._emit(NodeFragment(node_id, child_ids=tuple(child_ids)), tuple(child_ids), final=final, owner=owner)

    def close(self, node_id: str, owner: ActionRecord | None = None) -> list[Event]:
        """End a node by a fragment without content; what that changed here."""
        return self._emit(NodeFragment(node_id), None, final=True, owner=owner)

    def _emit(
        self, fragment: NodeFragment, part: Part | None, *, final: bool, owner: ActionRecord | None
    ) -> list[Event]:
        known = self.graph.find(fragment.id)
        seq = known.in_order if known is not None else 0
        self.graph.write(NodeFragment(fragment.id, seq, not final, fragment.child_ids, fragment.chunk_fragment), "here")
        metadata = fragment.chunk_fragment.metadata if fragment.chunk_fragment is not None else None
        self._outbox.add(fragment.id, part, metadata=metadata, final=final, owner=owner)
        return self._grown()

    def take(self) -> SessionMessage | None:
        """The next message to send; None where nothing waits."""
        return self._outbox.take(self.limits.sent_message_bytes, _SENT_FRAGMENTS)

    @property
    def unsent(self) -> bool:
        """True if `take` would give a message."""
        return bool(self._outbox)

    @property
    def unsent_bytes(self) -> int:
        """Written by this end and not taken yet."""
        return self._outbox.size

    # Lives of nodes.

    def drop(self, node_id: str, but: ActionRecord | None = None) -> list[Event]:
        """Free a node of either side; its id stays in use. Raises `Abort`: NOT_FOUND, or FAILED_PRECONDITION.

        but: the action that asks for it, which does not count as one that needs the node.
        """
        self.graph.drop(self._existing(node_id), but)
        return self._grown()

    def set_ttl(self, node_id: str, expires: float) -> None:
        """Drop a node and all below it at a time, or once no running action needs them. Raises `Abort`, NOT_FOUND."""
        for node in self.graph.below(self._existing(node_id)):
            self._expiry[node] = expires

    # Time, in seconds of any clock.

    def note_traffic(self, now: float) -> None:
        """The peer has sent something, or one of its actions has ended."""
        self._last_traffic = now

    @property
    def deadline(self) -> float:
        """When `check_time` is to be called next."""
        limit = self.limits.input_seconds if self.running else self.limits.idle_seconds
        return min([self._last_traffic + limit, *self._expiry.values()])

    def check_time(self, now: float) -> list[Event]:
        """Drop nodes whose time is over; what that changed.

        Raises `Abort`, DEADLINE_EXCEEDED, where nothing has happened for too long: without an action that runs, or with
        one that waits for input of the peer.
        """
        quiet = now - self._last_traffic
        if not self.running and quiet >= self.limits.idle_seconds:
            text = f"nothing was sent for {self.limits.idle_seconds:g} s and no action is running"
            raise Abort(Status.DEADLINE_EXCEEDED, f"{text}: the limit idle_seconds")
        if self.running and quiet >= self.limits.input_seconds:
            for record in self.running:
                if missing := self._missing_input(record):
                    text = f"{missing}, and nothing was sent for {self.limits.input_seconds:g} s"
                    raise Abort(Status.DEADLINE_EXCEEDED, f"{text}: the limit input_seconds")
            self._last_traffic = now
        return self.expire(now)

    def _missing_input(self, record: ActionRecord) -> str:
        """What of an action's inputs only the peer can complete, in words; empty where there is nothing."""
        for name, root in record.inputs.items():
            node = None if root.complete else self.graph.stuck(root)
            if node is not None:
                return f"input {quoted(name)} of {quoted(record.action.name)} waits for node {quoted(node.id)}"
        return ""

    def expire(self, now: float) -> list[Event]:
        """Drop nodes whose time is over; what that changed."""
        for node in [node for node, expires in self._expiry.items() if expires <= now]:
            if not node.dropped and self.graph.in_use(node):
                self._expiry[node] = now + _EXPIRY_SECONDS
                continue
            del self._expiry[node]
            if not node.dropped:
                self.graph.drop(node)
        return self._grown()

    def _existing(self, node_id: str) -> Node:
        node = self.graph.find(node_id)
        if node is None or node.writer is None:
            raise Abort(Status.NOT_FOUND, f"there is no node {quoted(node_id)}")
        return self.graph.node(node_id)
