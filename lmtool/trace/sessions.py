"""The Evergreen sessions of a recording: the actions that were asked for, and the leaves of each output."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.errors import LmtoolError
from lmtool.evergreen.codec import decode, unpack_config
from lmtool.evergreen.nodes import LeafCursor
from lmtool.evergreen.session import ActionReceived, Session
from lmtool.trace.events import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lmtool.evergreen.messages import SessionMessage
    from lmtool.evergreen.nodes import ActionRecord, Node
    from lmtool.trace.events import Event

_JSON = "application/json"
"""Counts and times of a run; what stands there need not be the same again."""


@dataclass(frozen=True, slots=True)
class SessionAction:
    """One action and its outputs."""

    connection: int
    number: int
    """Among the actions of its session, from 1."""
    name: str
    sampled: bool
    """Whether tokens were drawn at random, without a seed that could repeat them."""
    outputs: Mapping[str, tuple[tuple[str, bytes], ...] | None]
    """Mime type and bytes of each leaf, by the output's name; None for one that is not complete."""


@dataclass(slots=True)
class _Replay:
    """One session, as its server had it."""

    session: Session = field(default_factory=lambda: Session(check_reference=lambda _: None))
    records: list[ActionRecord] = field(default_factory=list)
    broken: bool = False
    """Whether a message could not be taken; what comes after it is left out."""

    def add(self, event: Message) -> None:
        try:
            message = _message(event)
            if event.direction == "<":
                for fragment in message.node_fragments:
                    self.session.graph.write(fragment, "here")
                return
            for one in self.session.feed(message):
                if isinstance(one, ActionReceived):
                    self.records.append(one.record)
        except LmtoolError:
            self.broken = True


def session_actions(events: Iterable[Event]) -> list[SessionAction]:
    """The actions of all sessions, each session's in their order."""
    replays: dict[int, _Replay] = {}
    for event in events:
        if isinstance(event, Message):
            replay = replays.setdefault(event.connection, _Replay())
            if not replay.broken:
                replay.add(event)
    return [
        SessionAction(
            connection,
            number,
            record.action.name,
            _is_sampled(record),
            {name: _leaves(node) for name, node in record.outputs.items()},
        )
        for connection, replay in replays.items()
        for number, record in enumerate(replay.records, 1)
    ]


def differences(expected: SessionAction, actual: SessionAction, *, values: bool) -> list[str]:
    """What is otherwise in the outputs of the same action, a sentence each.

    values: also compare the bytes of leaves, apart from JSON.
    """
    found = []
    for name, leaves in expected.outputs.items():
        again = actual.outputs.get(name)
        if (leaves is None) != (again is None):
            was, now = ("open" if one is None else "complete" for one in (leaves, again))
            found.append(f"output {name}: expected it {was}, it is {now}")
        elif leaves is not None and again is not None:
            types = [[kind for kind, _ in each] for each in (leaves, again)]
            texts = [[data for kind, data in each if kind != _JSON] for each in (leaves, again)]
            if types[0] != types[1]:
                found.append(f"output {name}: expected leaves of {_shown(types[0])}, got {_shown(types[1])}")
            elif values and texts[0] != texts[1]:
                found.append(f"output {name}: expected {_shown(texts[0])}, got {_shown(texts[1])}")
    return found


def _message(event: Message) -> SessionMessage:
    hexadecimal = event.value.get("hex")
    if isinstance(hexadecimal, str):
        return decode(bytes.fromhex(hexadecimal))
    return decode(json.dumps(event.value))


def _leaves(node: Node) -> tuple[tuple[str, bytes], ...] | None:
    if not node.complete:
        return None
    cursor, found = LeafCursor(node), []
    while (leaf := cursor.advance()) is not None:
        kind = leaf.metadata.mimetype if leaf.metadata is not None else ""
        found.append((kind, b"".join(piece for piece in leaf.pieces if isinstance(piece, bytes))))
    return tuple(found)


def _is_sampled(record: ActionRecord) -> bool:
    options: dict[str, object] = {}
    for config in record.action.configs:
        try:
            options |= unpack_config(config)
        except LmtoolError:
            return False
    temperature = options.get("temperature")
    return isinstance(temperature, int | float) and temperature > 0 and options.get("seed") is None


def _shown(values: object) -> str:
    text = ascii(values)
    return text if len(text) <= 100 else f"{text[:97]}..."
