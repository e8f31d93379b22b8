"""One HTTP answer, read from the bytes of its body as they arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.providers import anthropic_messages, ollama, openai_completions, openai_responses
from lmtool.providers.answer_events import AnswerFailed
from lmtool.providers.body_parts import BodyParts, JsonLines
from lmtool.providers.json_values import load
from lmtool.providers.server_sent_events import EventStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lmtool.providers.answer_events import AnswerEvent
    from lmtool.providers.body_parts import Form

Api: TypeAlias = Literal["chat", "completions", "responses", "messages", "ollama"]

LARGEST_PART = 2**26
"""Bytes of one event, one line or a whole answer; what is longer is not read."""

_PATHS: Mapping[str, Api] = {
    "/chat/completions": "chat",
    "/completions": "completions",
    "/responses": "responses",
    "/messages": "messages",
    "/api/chat": "ollama",
    "/api/generate": "ollama",
}
_READERS: Mapping[Api, Callable[[Mapping[str, object]], Iterable[AnswerEvent]]] = {
    "chat": openai_completions.read,
    "completions": openai_completions.read,
    "responses": openai_responses.read,
    "messages": anthropic_messages.read,
    "ollama": ollama.read,
}


def api_of(method: str, path: str) -> Api | None:
    """The API that generates at a path, wherever a server or proxy puts it; None where nothing is generated."""
    plain = path.partition("?")[0].rstrip("/")
    return next((api for end, api in _PATHS.items() if plain.endswith(end)), None) if method == "POST" else None


class AnswerReader:
    """Gives an answer's events as soon as the bytes are there that tell them; nothing here raises.

    It reads each part for itself: given the bytes of a later part alone, it tells what that part brings.
    """

    def __init__(self, api: Api, form: Form) -> None:
        self._read = _READERS[api]
        self._parts = parts_of(form)
        self._form = form
        self._try_at = 0
        self._overrun = False

    def feed(self, data: bytes) -> list[AnswerEvent]:
        """What these bytes complete."""
        if self._overrun:
            return []
        events = [event for value in self._values(data) for event in self.read(value)]
        if self._parts.pending_bytes > LARGEST_PART:
            self._overrun = True
            self._parts.take_rest()
            events.append(AnswerFailed(f"a part of the answer has more than {LARGEST_PART} bytes"))
        return events

    def end(self) -> list[AnswerEvent]:
        """What the end of the body completes: a last line without its line feed, a whole answer not read before."""
        rest = self._parts.take_rest()
        return [] if self._form == "events" else self.read(load(rest))

    @property
    def between_parts(self) -> bool:
        """Whether no part has begun that is not complete."""
        return not self._parts.pending_bytes

    def read(self, value: object) -> list[AnswerEvent]:
        """What a whole part tells whose JSON has been read; between parts only."""
        if not isinstance(value, dict):
            return []
        failed = AnswerFailed.of(value)
        return [*([] if failed is None else [failed]), *self._read(value)]

    def _values(self, data: bytes) -> list[object]:
        if isinstance(self._parts, EventStream):
            return [load(event.data) for event in self._parts.events(data)]
        lines = self._parts.split(data)
        if self._form == "lines":
            return [load(line) for line in lines]
        # A whole answer is read when it looks complete, but not again for every piece: `end` reads what that misses.
        size = self._parts.pending_bytes
        if size < self._try_at or not data.rstrip().endswith(b"}"):
            return []
        self._try_at = size * 5 // 4
        value = load(self._parts.pending)
        if value is not None:
            self._parts.take_rest()
        return [value]


def parts_of(form: Form) -> BodyParts:
    """What splits a body of this form."""
    return EventStream() if form == "events" else JsonLines() if form == "lines" else BodyParts()
