"""The unified API's WebSocket, `chatStream`: many conversations on one connection, told apart by their ids."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from lmtool.protocol.providers.unified import attempts_line
from lmtool.trace.stream_events import RequestStarted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.trace.events import Frame

R = TypeVar("R")


def message_of(event: Frame) -> Mapping[str, object]:
    """The JSON object with an id that a frame is: no frame of LMTP is one. Otherwise empty."""
    text = event.content
    if not isinstance(text, str | bytes) or text[:1] not in ("{", b"{"):
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and isinstance(value.get("id"), str) else {}


def error_of(message: Mapping[str, object]) -> str | None:
    """Why a stream failed; None for any other message."""
    error = message.get("error")
    return str(error.get("message") or "the stream failed") if isinstance(error, dict) else None


def attempts_of(message: Mapping[str, object]) -> str:
    """What was called for a stream, as the last message says it, in the form of `x-lmtool-attempts`; else nothing."""
    content = message.get("error" if "error" in message else "chunk")
    return attempts_line(content.get("attempts")) if isinstance(content, dict) else ""


@dataclass(slots=True)
class ChatSocket(Generic[R]):
    """The requests of one connection that have no whole answer yet."""

    _requests: dict[str, list[R]] = field(default_factory=dict)
    """By id. A second one of an id whose stream runs is refused, and waits for that."""

    def started(self, event: Frame, message: Mapping[str, object]) -> RequestStarted:
        """The request that a client's frame is. Or, of a server's, the one that it answers and the trace lacks."""
        asked = event.direction == ">"
        label, payload = f"{event.connection}/{_id(message)}", message if asked else {}
        return RequestStarted(event.time, event.connection, label, "chatStream", payload, "unified", has_request=asked)

    def add(self, message: Mapping[str, object], request: R) -> None:
        """Remember a request until its answer is whole."""
        self._requests.setdefault(_id(message), []).append(request)

    def owner(self, message: Mapping[str, object]) -> R | None:
        """The request that a server's message belongs to."""
        waiting = self._requests.get(_id(message))
        return None if not waiting else waiting[-1 if "error" in message else 0]

    def remove(self, message: Mapping[str, object], request: R) -> None:
        """Forget a request: this message was its last."""
        waiting = self._requests[_id(message)]
        waiting.remove(request)
        if not waiting:
            del self._requests[_id(message)]

    def requests(self) -> Iterator[R]:
        """All that are open."""
        for waiting in self._requests.values():
            yield from waiting


def _id(message: Mapping[str, object]) -> str:
    return str(message["id"])
