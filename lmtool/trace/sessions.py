"""Evergreen sessions of a recording: each action with its outputs."""

from __future__ import annotations

import base64
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from lmtool.core.errors import LmtoolError
from lmtool.protocol.evergreen.actions import STATUS_OUTPUT
from lmtool.protocol.evergreen.codec import decode, unpack_config
from lmtool.protocol.evergreen.config import SessionLimits
from lmtool.protocol.evergreen.nodes import LeafCursor, Reference
from lmtool.protocol.evergreen.session import ActionReceived, Session
from lmtool.protocol.evergreen.status import ABORTED, Abort, abort_from
from lmtool.trace.events import Close, Message, decoded
from lmtool.trace.stream_events import INCOMPLETE, INPUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lmtool.protocol.evergreen.messages import NodeFragment, SessionMessage
    from lmtool.protocol.evergreen.nodes import ActionRecord, Node
    from lmtool.trace.events import Event

_JSON = "application/json"
"""Outputs of this type hold counts and times, which need not be equal again."""
_LIMITS = SessionLimits(max_running_actions=1_000_000)


@dataclass(frozen=True, slots=True)
class OutputStep:
    """One fragment of an answer; its node is an output, or a child named by an earlier step."""

    offset: float
    """Seconds after the inputs were complete."""
    fragment: NodeFragment
    """The fragment with its recorded ids."""


@dataclass(frozen=True, slots=True)
class SessionAction:
    """One action and its outputs."""

    protocol: ClassVar[Literal["evergreen"]] = "evergreen"
    time: float
    connection: int
    number: int
    """Number among the actions of its session, from 1."""
    kind: str
    """The action's name."""
    payload: Mapping[str, object]
    """The request: target as `model`, options, the value of each input, the names of the outputs."""
    sampled: bool
    """True if tokens were sampled at random without a seed."""
    outputs: Mapping[str, tuple[tuple[str, bytes], ...] | None]
    """Mime type and bytes of each leaf, by the output's name; None for an incomplete output."""
    roots: Mapping[str, str]
    """Recorded ids of the outputs, by name."""
    steps: tuple[OutputStep, ...]
    """Fragments written to the outputs, except to `status`."""
    abort: Abort | None
    """Reason it failed, from its `status` or from the end of its session."""
    text: str = ""

    @property
    def waited(self) -> bool:
        """True if all its inputs were complete at some time."""
        return all(value != INCOMPLETE for value in self.payload.values())

    @property
    def complete(self) -> bool:
        """True if all its outputs are complete."""
        return all(leaves is not None for leaves in self.outputs.values())


@dataclass(slots=True, eq=False)
class _Run:
    """One action of a session."""

    time: float
    record: ActionRecord
    ready: float | None = None
    """Time at which its inputs were complete."""

    @property
    def finished(self) -> bool:
        return all(node.complete for node in self.record.outputs.values())


@dataclass(slots=True)
class _Replay:
    """One session, rebuilt from its messages."""

    session: Session = field(default_factory=lambda: Session(_LIMITS, check_reference=lambda _: None))
    runs: list[_Run] = field(default_factory=list)
    fragments: dict[str, list[tuple[float, int, NodeFragment]]] = field(default_factory=dict)
    """Fragments of each node, with their times and positions in the session."""
    count: int = 0
    """Fragments so far."""
    end: Abort | None = None
    """Reason the server aborted the session."""
    broken: bool = False
    """True once a message could not be processed; later ones are ignored."""

    def add(self, event: Message) -> None:
        try:
            message = _message(event)
            for fragment in message.node_fragments:
                self.count += 1
                self.fragments.setdefault(fragment.id, []).append((event.time, self.count, fragment))
            if event.direction == "<":
                for fragment in message.node_fragments:
                    self.session.graph.write(fragment, "here")
            else:
                taken = self.session.feed(message)
                self.runs += [_Run(event.time, one.record) for one in taken if isinstance(one, ActionReceived)]
        except LmtoolError:
            self.broken = True
        for run in self.runs:
            if run.ready is None and all(node.complete for node in run.record.inputs.values()):
                run.ready = event.time

    def failure(self, run: _Run) -> Abort | None:
        """Reason an action failed: its `status`, or the end of the session while it ran."""
        node = run.record.outputs.get(STATUS_OUTPUT)
        if node is not None and (leaves := _leaves(node)):
            return _status(leaves[0][1])
        if self.end is None or self.broken:  # a protocol error was refused for its own reason
            return None
        unfinished = [each for each in self.runs if not each.finished]
        return self.end if run in (unfinished or self.runs[-1:]) else None

    def action(self, connection: int, number: int, run: _Run) -> SessionAction:
        """Everything known of an action."""
        record = run.record
        return SessionAction(
            run.time,
            connection,
            number,
            record.action.name,
            action_payload(record),
            _is_sampled(record),
            {name: _leaves(node) for name, node in record.outputs.items()},
            {name: node.id for name, node in record.outputs.items()},
            tuple(self._steps(run)),
            self.failure(run),
        )

    def _steps(self, run: _Run) -> list[OutputStep]:
        """Fragments written to the outputs: each node's by seq, and after the fragment that names the node."""
        known = {node.id for name, node in run.record.outputs.items() if name != STATUS_OUTPUT}
        began = run.time if run.ready is None else run.ready
        next_seq: Counter[str] = Counter()
        waiting: dict[str, dict[int, NodeFragment]] = {}
        steps = []
        for time, _, fragment in sorted(self._below(known), key=lambda each: each[:2]):
            waiting.setdefault(fragment.id, {}).setdefault(fragment.seq, fragment)
            stack = [fragment.id]
            while stack:
                node_id = stack.pop()
                while node_id in known and (each := waiting.get(node_id, {}).pop(next_seq[node_id], None)) is not None:
                    next_seq[node_id] += 1
                    steps.append(OutputStep(max(0.0, time - began), each))
                    known.update(each.child_ids)
                    stack += each.child_ids
        return steps

    def _below(self, roots: Iterable[str]) -> Iterable[tuple[float, int, NodeFragment]]:
        """Fragments of these nodes and of all nodes below them."""
        stack, seen = list(roots), set(roots)
        while stack:
            for each in self.fragments.get(stack.pop(), ()):
                yield each
                fragment = each[2]
                stack += [child for child in dict.fromkeys(fragment.child_ids) if child not in seen]
                seen.update(fragment.child_ids)


def session_actions(events: Iterable[Event]) -> list[SessionAction]:
    """Actions of all sessions, in order within each session."""
    replays: dict[int, _Replay] = {}
    for event in events:
        if isinstance(event, Message):
            replay = replays.setdefault(event.connection, _Replay())
            if not replay.broken:
                replay.add(event)
        elif isinstance(event, Close) and event.code == ABORTED and event.by == "server":
            replays.setdefault(event.connection, _Replay()).end = abort_from(event.reason)
    return [
        replay.action(connection, number, run)
        for connection, replay in replays.items()
        for number, run in enumerate(replay.runs, 1)
    ]


def action_payload(record: ActionRecord) -> dict[str, object]:
    """Request of an action as plain values, for comparison: without ids and fragment boundaries."""
    payload: dict[str, object] = {}
    for at, config in enumerate(record.action.configs):
        try:
            payload |= unpack_config(config)
        except LmtoolError:
            payload[f"config {at}"] = {config.type_url: base64.b64encode(config.value).decode()}
    if record.action.target:
        payload["model"] = record.action.target
    payload |= {INPUT + name: _value(node) for name, node in record.inputs.items()}
    return payload | {"outputs": sorted(record.outputs)}


def _value(node: Node) -> object:
    """Each leaf of a node, with its mime type and role."""
    if not node.complete:
        return INCOMPLETE
    cursor, leaves = LeafCursor(node), []
    while (leaf := cursor.advance()) is not None:
        kind, role = ("", "") if leaf.metadata is None else (leaf.metadata.mimetype, leaf.metadata.role)
        uris = [{"ref": piece.uri} for piece in leaf.pieces if isinstance(piece, Reference)]
        data = decoded(b"".join(piece for piece in leaf.pieces if isinstance(piece, bytes)))
        joined = data if isinstance(data, str) else {"base64": base64.b64encode(data).decode()}
        leaves.append([kind, role, joined, *uris])
    return leaves


def _status(data: bytes) -> Abort | None:
    """Failure that an output `status` reports; None for success."""
    try:
        value = json.loads(data)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get("code") == "OK":
        return None
    return abort_from(f"{value.get('code')}: {value.get('message', '')}")


def differences(expected: SessionAction, actual: SessionAction, *, values: bool) -> list[str]:
    """Differences between the outputs of two runs of an action, one sentence each.

    values: also compare the bytes of leaves, except JSON.
    """
    sentences = []
    for name, leaves in expected.outputs.items():
        again = actual.outputs.get(name)
        if (leaves is None) != (again is None):
            was, now = ("open" if one is None else "complete" for one in (leaves, again))
            sentences.append(f"output {name}: expected it {was}, it is {now}")
        elif leaves is not None and again is not None:
            types = [[kind for kind, _ in each] for each in (leaves, again)]
            texts = [[data for kind, data in each if kind != _JSON] for each in (leaves, again)]
            if types[0] != types[1]:
                sentences.append(f"output {name}: expected leaves of {_quoted(types[0])}, got {_quoted(types[1])}")
            elif values and texts[0] != texts[1]:
                sentences.append(f"output {name}: expected {_quoted(texts[0])}, got {_quoted(texts[1])}")
    return sentences


def _message(event: Message) -> SessionMessage:
    hexadecimal = event.value.get("hex")
    if isinstance(hexadecimal, str):
        return decode(bytes.fromhex(hexadecimal))
    return decode(json.dumps(event.value))


def _leaves(node: Node) -> tuple[tuple[str, bytes], ...] | None:
    if not node.complete:
        return None
    cursor, leaves = LeafCursor(node), []
    while (leaf := cursor.advance()) is not None:
        kind = leaf.metadata.mimetype if leaf.metadata is not None else ""
        leaves.append((kind, b"".join(piece for piece in leaf.pieces if isinstance(piece, bytes))))
    return tuple(leaves)


def _is_sampled(record: ActionRecord) -> bool:
    options: dict[str, object] = {}
    for config in record.action.configs:
        try:
            options |= unpack_config(config)
        except LmtoolError:
            return False
    temperature = options.get("temperature")
    return isinstance(temperature, int | float) and temperature > 0 and options.get("seed") is None


def _quoted(values: object) -> str:
    text = ascii(values)
    return text if len(text) <= 100 else f"{text[:97]}..."
