"""Evergreen actions as streams: each action of a client starts one, texts in its outputs are its pieces."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from lmtool.protocol.lmtp import frames
from lmtool.trace.stream_events import ActionNodes, OutputEvent, RequestStarted, Stream, TraceNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lmtool.trace.events import Message
    from lmtool.trace.stream_events import StreamEvent

S = TypeVar("S", bound=Stream)

THOUGHT = "reasoning"
"""Output of GENERATE that receives the model's reasoning."""


@dataclass(slots=True, eq=False)
class _Running(Generic[S]):
    """An action with incomplete outputs."""

    stream: S
    open: set[str]
    """Ids of incomplete outputs, and of incomplete nodes below them."""
    thoughts: set[str] = field(default_factory=set)
    """Ids of the reasoning output, and of the nodes below it."""
    decoder: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-8"))

    def __post_init__(self) -> None:
        self.decoder.errors = "replace"


class SessionActions(Generic[S]):
    """Follows the messages of one session, in order."""

    def __init__(self, start: Callable[[RequestStarted], S]) -> None:
        """start: makes the stream of a request."""
        self._start = start
        self._nodes: dict[str, TraceNode] = {}
        self._owners: dict[str, _Running[S]] = {}
        """Running action by id of its outputs and of all nodes below them."""
        self._running: dict[_Running[S], None] = {}
        self._count = 0

    def open_streams(self) -> list[S]:
        """Streams of running actions."""
        return [running.stream for running in self._running]

    def follow(self, event: Message) -> list[StreamEvent]:
        """Stream events of a message: a client's actions start streams, texts of the server are their output."""
        steps: list[StreamEvent] = []
        actions = frames.entries_of(event.value.get("actions")) if event.direction == ">" else []
        for action in actions:
            steps += self._action(event, action)
        for fragment in event.fragments():
            steps += self._fragment(event, fragment)
        return steps

    def _action(self, event: Message, action: Mapping[str, object]) -> list[StreamEvent]:
        self._count += 1
        label, name = f"{event.connection}/{self._count}", str(action.get("name", ""))
        nodes = ActionNodes(self._parameters(action, "inputs"), self._parameters(action, "outputs"))
        started = RequestStarted(event.time, event.connection, label, name, _payload(action), nodes=nodes)
        thoughts = {node.id for name, node in nodes.outputs.items() if name == THOUGHT}
        running = _Running(self._start(started), {node.id for node in nodes.outputs.values()}, thoughts)
        self._owners |= dict.fromkeys(running.open, running)
        self._running[running] = None
        return [started, *self._end(event.time, running)]

    def _parameters(self, action: Mapping[str, object], name: str) -> dict[str, TraceNode]:
        pairs = frames.entries_of(action.get(name))
        return {str(pair.get("name", "")): self._node(str(pair.get("id", ""))) for pair in pairs}

    def _node(self, node_id: str) -> TraceNode:
        return self._nodes.setdefault(node_id, TraceNode(node_id))

    def _fragment(self, event: Message, fragment: Mapping[str, object]) -> Iterator[StreamEvent]:
        node = self._node(str(fragment.get("id", "")))
        seq, ids = fragment.get("seq", 0), fragment.get("childIds")
        children = [self._node(str(each)) for each in ids] if isinstance(ids, list) else []
        if children and isinstance(seq, int):
            node.children[seq] = children
        data = node.take_chunk(fragment.get("chunkFragment"))
        node.final = node.final or not fragment.get("continued")
        running = self._owners.get(node.id) if event.direction == "<" else None
        if running is None:
            return
        for child in children:
            if not child.final:
                self._owners[child.id] = running
                running.open.add(child.id)
                if node.id in running.thoughts:
                    running.thoughts.add(child.id)
        if data and node.mimetype.startswith("text/"):
            text = running.decoder.decode(data)
            is_thought = node.id in running.thoughts
            yield OutputEvent(event.time, running.stream, text=text, is_piece=True, is_thought=is_thought)
        if node.final:
            running.open.discard(node.id)
            yield from self._end(event.time, running)

    def _end(self, time: float, running: _Running[S]) -> Sequence[StreamEvent]:
        if running.open:
            return ()
        del self._running[running]
        running.stream.end(time, "stop", None)
        return [OutputEvent(time, running.stream, finish_reason="stop")]


def _payload(action: Mapping[str, object]) -> dict[str, object]:
    """Options of an action, with its target as the model."""
    payload: dict[str, object] = {}
    for config in frames.entries_of(action.get("configs")):
        inner = config.get("value")
        payload |= inner if isinstance(inner, dict) else {name: one for name, one in config.items() if name != "@type"}
    target = action.get("targetSpec")
    return payload | ({"model": target["id"]} if isinstance(target, dict) and target.get("id") else {})
