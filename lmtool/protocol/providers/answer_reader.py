"""Incremental reader of one HTTP answer: bytes of the body in, answer events out; and the API served at a path."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lmtool.core.seam import Seam
from lmtool.protocol.providers import (
    anthropic_messages,
    cohere,
    ollama,
    openai_completions,
    openai_responses,
    unified,
)
from lmtool.protocol.providers.answer_events import AnswerFailed
from lmtool.protocol.providers.body_parts import BodyParts, EventStream, JsonLines
from lmtool.protocol.providers.json_values import load, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lmtool.protocol.providers.answer_events import AnswerEvent, Api
    from lmtool.protocol.providers.body_parts import Form

LARGEST_PART = 2**26
"""Most bytes of one event, one line or one complete answer."""

_PATHS: Mapping[str, Api] = {
    "/chat/completions": "chat",
    "/completions": "completions",
    "/responses": "responses",
    "/messages": "messages",
    "/api/chat": "ollama",
    "/api/generate": "ollama",
    "/v1/chat": "cohere_v1",
    "/v2/chat": "cohere_v2",
}
_POOL_PATH = re.compile(r"/v1/(?:language/)?[^/]+/chat$")
"""End of the unified API's paths, which contain the pool's name."""
_CHAT_SOCKET_PATH = re.compile(r"/v1/language/[^/]+/chatStream$")
_READERS: Mapping[Api, Callable[[Mapping[str, object]], Iterable[AnswerEvent]]] = {
    "chat": openai_completions.read,
    "completions": openai_completions.read,
    "responses": openai_responses.read,
    "messages": anthropic_messages.read,
    "ollama": ollama.read,
    "cohere_v1": cohere.read_v1,
    "cohere_v2": cohere.read_v2,
    "unified": unified.read,
}
_ID_NAMES: Mapping[Api, Mapping[str, str]] = {
    "ollama": {"created_at": "created_at"},  # Ollama sends no id; the time distinguishes two answers
    "cohere_v1": {"response_id": "response_id", "generation_id": "generation_id"},
    "cohere_v2": {"id": "response_id"},
    "unified": {"model_id": unified.MEMBER},
}
"""Members that identify an answer, and their names in the unified API."""
_USUAL_ID_NAMES: Mapping[str, str] = {"id": "id", "system_fingerprint": "system_fingerprint"}
_END_MARK = b"[DONE]"


def api_of(method: str, path: str) -> Api | None:
    """The generating API at a path, under any prefix of a server or proxy; None for other requests."""
    plain = path.partition("?")[0].rstrip("/")
    if method != "POST":
        return None
    named = next((api for end, api in _PATHS.items() if plain.endswith(end)), None)
    return "unified" if named is None and _POOL_PATH.search(plain) else named


def is_chat_socket(path: str) -> bool:
    """True if this is the path of the unified API's WebSocket."""
    return _CHAT_SOCKET_PATH.search(path.partition("?")[0].rstrip("/")) is not None


class AnswerReader:
    """Reads the events of an answer as soon as their bytes are complete. Never raises.

    Parts are independent of each other: a reader that is given only a later part returns that part's events.
    """

    def __init__(self, api: Api, form: Form) -> None:
        self._read = _READERS[api]
        self._parts = parts_of(form)
        self._form = form
        self._try_at = 0
        self._overrun = False
        self._id_names = _ID_NAMES.get(api, _USUAL_ID_NAMES)
        self.ids: dict[str, str] = {}
        """Ids that the provider has sent for this answer so far, by their names in the unified API."""
        self.model: str | None = None
        """Name of the model, as the provider sends it; None if it does not."""
        self.attempts = ""
        """Attempts at pool members that the answer lists, in the form of the header `unified.ATTEMPTS`."""
        self.seams: tuple[Seam, ...] = ()
        """Points where another pool member took over."""
        self.malformed = False
        """True if a part was not a JSON object, or exceeded `LARGEST_PART`."""

    def feed(self, data: bytes) -> list[AnswerEvent]:
        """Events that these bytes complete."""
        if self._overrun:
            return []
        events = [event for value in self._values(data) for event in self.read(value)]
        if self._parts.pending_bytes > LARGEST_PART:
            self._overrun = self.malformed = True
            self._parts.take_rest()
            events.append(AnswerFailed(f"a part of the answer has more than {LARGEST_PART} bytes"))
        return events

    def end(self) -> list[AnswerEvent]:
        """Events that the end of the body completes: a last line without line feed, or a complete answer."""
        rest = self._parts.take_rest()
        return self.read(self._load(rest)) if rest and self._form != "events" else []

    @property
    def between_parts(self) -> bool:
        """True if no incomplete part is pending."""
        return not self._parts.pending_bytes

    def read(self, value: object) -> list[AnswerEvent]:
        """Events of one complete part, already decoded from JSON. Call this between parts only."""
        if not isinstance(value, dict):
            return []
        if not self.ids or "response" in value:
            self._identify(value)
        if (seam := Seam.read(value.get("seam"))) is not None:
            self.seams += (seam,)
        if "attempts" in value:
            self.attempts = unified.attempts_line(value["attempts"])
        failure = AnswerFailed.of(value)
        return [*([] if failure is None else [failure]), *self._read(value)]

    def _identify(self, value: Mapping[str, object]) -> None:
        """Store the ids and the model from the part, or from the message or response nested in it."""
        for members in (value, value.get("message"), value.get("response")):
            if isinstance(members, dict):
                for member, name in self._id_names.items():
                    if value_of_id := text_of(members.get(member)):
                        self.ids.setdefault(name, value_of_id)
                self.model = self.model or text_of(members.get("model")) or None

    def _values(self, data: bytes) -> list[object]:
        if isinstance(self._parts, EventStream):
            return [self._load(event.data) for event in self._parts.events(data)]
        lines = self._parts.split(data)
        if self._form == "lines":
            return [self._load(line) for line in lines]
        # Try to parse when the answer looks complete, but not after every piece; `end` reads what this misses.
        size = self._parts.pending_bytes
        if size < self._try_at or not data.rstrip().endswith(b"}"):
            return []
        self._try_at = size * 5 // 4
        value = load(self._parts.pending)
        if value is not None:
            self._parts.take_rest()
        return [value]

    def _load(self, data: bytes) -> object:
        """Decoded JSON of a part; blank lines and the end mark of OpenAI's streams have none."""
        value = load(data)
        if not isinstance(value, dict) and data.strip() not in (b"", _END_MARK):
            self.malformed = True
        return value


def parts_of(form: Form) -> BodyParts:
    """A splitter for bodies of this form."""
    return EventStream() if form == "events" else JsonLines() if form == "lines" else BodyParts()
