"""Redaction: remove prompts, texts and headers from events, and find what looks like a key.

Redacted requests and answers keep only the members listed here; every other member may contain a user's words.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lmtool.core.errors import UsageError
from lmtool.net.access.credentials import LEFT_OUT
from lmtool.protocol.lmtp import frames
from lmtool.protocol.providers.answer_reader import api_of
from lmtool.trace.codec import reference
from lmtool.trace.events import (
    Close,
    Done,
    Drop,
    Frame,
    JsonText,
    Message,
    Open,
    Other,
    Piece,
    Remark,
    Request,
    Response,
    Stat,
    Turn,
    Vocab,
    write_json,
)
from lmtool.trace.stream_events import PROMPT_MEMBERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.protocol.lmtp.frames import Entry, Key
    from lmtool.trace.codec import Header
    from lmtool.trace.events import Content, Event

RedactedPart: TypeAlias = Literal["headers", "prompt", "text"]

HARMLESS_HEADERS = frozenset(
    {
        *("accept", "accept-encoding", "cache-control", "connection", "retry-after", "server", "upgrade", "user-agent"),
        *("content-encoding", "content-length", "content-type", "transfer-encoding"),
        *("sec-websocket-extensions", "sec-websocket-protocol", "sec-websocket-version"),
        *("x-lmtool-attempts", "openai-processing-ms", "openai-version"),
        *("x-ratelimit-limit-requests", "x-ratelimit-limit-tokens"),
    }
)
"""Headers that stay when headers are redacted; all others are removed."""

_SECRETS = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_REST_OF_PRIVATE_KEY = r'(?:(?:[^"\\]|\\.)*?-----END [A-Z ]*PRIVATE KEY-----|(?:[^"\\]|\\.)*)'
"""Rest of a private key, at most to the end of the string if the text is JSON."""
_WHOLE_SECRETS = re.compile(_SECRETS.pattern + _REST_OF_PRIVATE_KEY, re.DOTALL)


def parse(words: str) -> tuple[RedactedPart, ...]:
    """Parts named in `prompt,headers`. Raises `UsageError` for an unknown one."""
    known: tuple[RedactedPart, ...] = get_args(RedactedPart)
    names = [word.strip() for word in words.split(",") if word.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"cannot redact {name!r}", f"one or more of {', '.join(known)}, with commas between")
    return tuple(what for what in known if what in names)


_PHRASES = frozenset(status.phrase for status in HTTPStatus)
_ASSISTANT = re.compile(r'"role": ?"(?:assistant|model|chatbot)"|"(?:function_call|tool_use)"', re.IGNORECASE)
"""Marks a request that repeats a model's output."""
_OF_SERVERS = ("model_info", "models", "progress")
"""Members of a MSG that describe only the server."""
_ANSWERED = {"data": base64.b64encode(LEFT_OUT.encode()).decode(), "ref": LEFT_OUT}
"""Replacement for a payload from the server of a session."""


@dataclass(slots=True)
class Redaction:
    """Removes parts of events; pass all events in order. Equal prompts have equal hashes within one salt.

    `prompt`: everything that clients said, in requests and in answers that repeat it. `text`: everything that models
    said, in answers and in later requests, which may repeat it.
    """

    what: tuple[RedactedPart, ...]
    salt: bytes
    """Random bytes of this recording; never stored."""
    _has_answer: bool = False
    """True once a model has said anything."""
    _streams: defaultdict[int, dict[Key, bool]] = field(default_factory=lambda: defaultdict(dict))
    """By connection and LMTP stream id: True if the tokens are a model's; those of SCORE are the client's."""
    _http: defaultdict[int, deque[bool]] = field(default_factory=lambda: defaultdict(deque))
    """By connection, for each request without a complete answer: True if the answer's text is a model's."""
    _outputs: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By connection: ids of Evergreen nodes that a model writes."""

    @property
    def _words(self) -> bool:
        """True if words of clients or of models are removed."""
        return "prompt" in self.what or "text" in self.what

    @property
    def explains(self) -> bool:
        """True if the vocabulary may explain the ids of redacted events."""
        return "text" not in self.what

    def header(self, header: Header) -> Header:
        """Header that lists the removed parts, without its title and unknown members, which may contain such text."""
        redacted = tuple(dict.fromkeys((*header.redacted, *self.what)))
        plain = replace(header, transport=self._facts(header.transport), redacted=redacted)
        return replace(plain, title=None, extra={}) if self._words else plain

    def apply(self, event: Event) -> Event | None:
        """The redacted event; None if nothing remains."""
        waiting = self._http.get(event.connection)
        match event:
            case Request():
                return self._request(event)
            case Response():
                reason = event.reason if not self._words or event.reason in _PHRASES else ""
                if waiting and event.status >= 400:
                    waiting[0] = False
                return replace(event, headers=self._headers(event.headers), reason=reason)
            case Open():
                return Open(event.time, event.connection, self._facts(event.facts))
            case Done() if waiting:
                waiting.popleft()
            case Close() | Drop():
                for kept in (self._streams, self._http, self._outputs):
                    kept.pop(event.connection, None)
        return self._without_words(event) if self._words else event

    def _without_words(self, event: Event) -> Event | None:
        match event:
            case Frame():
                return replace(event, content=self._frame(event))
            case Piece():
                return replace(event, content=self._piece(event))
            case Message():
                return self._message(event)
            case Remark():
                return replace(event, text=LEFT_OUT)
            case Close():
                return replace(event, reason=LEFT_OUT if event.reason else "")
            case Drop() | Stat():
                facts = {name: one for name, one in event.facts.items() if name == "by" or not isinstance(one, str)}
                return type(event)(event.time, event.connection, facts)
            case Vocab() | Turn() | Other():
                return None
        return event

    def _facts(self, facts: Mapping[str, object]) -> Mapping[str, object]:
        return {
            name: self._path(one) if name == "path" and isinstance(one, str) else one for name, one in facts.items()
        }

    def _path(self, path: str) -> str:
        return path.partition("?")[0] if "headers" in self.what or "prompt" in self.what else path

    def _headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        if "headers" not in self.what:
            return headers
        return {name: value for name, value in headers.items() if name in HARMLESS_HEADERS}

    def _hides(self, request: str | bytes) -> bool:
        """True if a request's words are removed: as a client's, or because it may repeat a model's output."""
        if "text" not in self.what or "prompt" in self.what or self._has_answer:
            return self._words
        text = request if isinstance(request, str) else request.decode("utf-8", "replace")
        return _ASSISTANT.search(text) is not None

    def _mark(self, value: object) -> object:
        if isinstance(value, dict) and "$redacted" in value:
            return value
        text = json.dumps(value)
        size = len(value) if isinstance(value, list | str) and reference(value) is None else 1
        return {"$redacted": "prompt", "n": size, "sha256": hashlib.sha256(self.salt + text.encode()).hexdigest()}

    def _asked(self, value: object) -> object:
        return redact_request(value, self._mark) if isinstance(value, dict) else self._mark(value)

    def _answered(self, value: object, *, by_model: bool) -> object:
        self._has_answer = self._has_answer or by_model
        return redact_answer(value, texts=by_model and "text" not in self.what)

    def _request(self, event: Request) -> Request:
        by_model = api_of(event.method, event.path) is not None and b'"echo"' not in event.wire_body()
        self._http[event.connection].append(by_model)
        headers, body = self._headers(event.headers), event.body
        if body is not None and self._hides(event.wire_body()):
            body = redact_content(body, self._asked)
        return replace(event, path=self._path(event.path), headers=headers, body=body)

    def _piece(self, event: Piece) -> Content:
        waiting = self._http.get(event.connection)
        redact = partial(self._answered, by_model=bool(waiting and waiting[0]))
        return redact_content(event.content, redact) if event.kind == "body" else redact_sse(event.content, redact)

    def _frame(self, event: Frame) -> Content:
        command, value, _ = event.parse()
        if event.direction == ">":
            if command in ("GENERATE", "SCORE") and isinstance(value, dict):
                key, streams = frames.stream_key(value.get("stream_id")), self._streams[event.connection]
                streams[key] = command == "GENERATE" and streams.get(key, True)
            return redact_frame(event, command, self._asked) if self._hides(event.wire()) else event.content
        if command not in ("TOKEN", "MSG"):  # a message of the unified API
            return redact_frame(event, command, partial(self._answered, by_model=True))
        return redact_frame(event, command, partial(self._entries, event.connection, command))

    def _entries(self, connection: int, command: str, value: object) -> object:
        entries = [self._entry(connection, command, each) for each in frames.entries_of(value)]
        return entries if isinstance(value, list) else entries[0] if entries else None

    def _entry(self, connection: int, command: str, entry: Entry) -> Entry:
        key = frames.stream_key(entry.get("stream_id"))
        by_model = command == "TOKEN" and self._streams[connection].get(key, False)
        redacted = self._answered(entry, by_model=by_model)
        assert isinstance(redacted, dict)
        if command == "MSG":
            return {name: entry[name] for name in _OF_SERVERS if name in entry} | redacted
        is_unnamed = "token" in entry and redacted["token"] is None and "reasoning" not in entry
        return {**redacted, "text": LEFT_OUT} if is_unnamed else redacted

    def _message(self, event: Message) -> Message:
        actions = event.value.get("actions") if event.direction == ">" else None
        for action in frames.entries_of(
            actions
        ):  # a model writes all outputs except `status`, and the nodes below them
            ports = frames.entries_of(action.get("outputs")) if action.get("name") == "GENERATE" else []
            self._outputs[event.connection] |= {str(port.get("id")) for port in ports if port.get("name") != "status"}
        if event.direction == ">" and not self._hides(write_json(event.value, "py")):
            return event
        value = redact_session(event.value)
        if "nodeFragments" in event.value:
            value["nodeFragments"] = [self._fragment(event, each) for each in event.fragments()]
        return replace(event, value=value)

    def _fragment(self, event: Message, fragment: Mapping[str, object]) -> Mapping[str, object]:
        outputs = self._outputs[event.connection]
        if event.direction == "<" and str(fragment.get("id")) in outputs:
            self._has_answer, below = True, fragment.get("childIds")
            outputs.update(map(str, below) if isinstance(below, list) else ())
            if "text" not in self.what:
                return fragment
        redacted, chunk = redact_session(fragment), fragment.get("chunkFragment")
        if isinstance(chunk, dict):
            said = {name: chunk[name] for name in ("data", "ref") if name in chunk}
            asked = event.direction == ">"
            payload = {name: self._mark(one) if asked else _ANSWERED[name] for name, one in said.items()}
            redacted["chunkFragment"] = redact_session(chunk) | payload
        return redacted


def is_left_out(event: Event, parts: Sequence[str]) -> bool:
    """True if redaction of these parts left a client's event that cannot be sent again.

    A session's message keeps only its structure, without marks for the rest.
    """
    if not {"prompt", "text"} & set(parts):
        return False
    if isinstance(event, Message):
        return event.direction == ">"
    return (isinstance(event, Frame) and event.direction == ">" and event.content == LEFT_OUT) or (
        isinstance(event, Request) and event.body == LEFT_OUT
    )


def entry_token_ids(entry: Mapping[str, object]) -> list[int]:
    """Ids in an entry of a TOKEN: the token and its alternatives."""
    token, alternatives = entry.get("token"), entry.get("top_logprobs")
    names = alternatives if isinstance(alternatives, dict) else {}
    ids = [int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 20]
    return [token, *ids] if type(token) is int and token >= 0 else ids


def likely_keys(event: Event) -> list[str]:
    """Strings of an event that look like keys, each shortened to its first and last characters."""
    if isinstance(event, Request):
        text = " ".join([event.path, *event.headers.values(), event.wire_body().decode("utf-8", "replace")])
    elif isinstance(event, Message):
        data = (chunk.get("data") for each in event.fragments() if isinstance(chunk := each.get("chunkFragment"), dict))
        text = " ".join(_decoded(each) for each in data if isinstance(each, str))
    elif isinstance(event, Frame | Piece):
        wire = event.wire()
        text = wire if isinstance(wire, str) else wire.decode("utf-8", "replace")
    else:
        return []
    return [f"{key[:6]}…{key[-2:]}" for key in _SECRETS.findall(text)]


def without_keys(text: str) -> str:
    """Text with `***` in place of strings that look like keys; the same object if there are none."""
    return _WHOLE_SECRETS.sub(LEFT_OUT, text) if _SECRETS.search(text) else text


def _decoded(data: str) -> str:
    """Text of a base64 string; empty if it is not base64."""
    try:
        return base64.b64decode(data).decode("utf-8", "replace")
    except ValueError:
        return ""


_COMMANDS = ("GENERATE", "SCORE", "MODEL_INFO", "MODELS", "BUFFER", "WATCH", "CANCEL", "TOKEN", "MSG")
_EVENT_NAME = re.compile(r"^event: [\w.-]{1,64}\n", re.MULTILINE)
_SESSION_WORDS = frozenset({"id", "name", "@type", "mimetype", "role", "childIds"})
_SESSION = _SESSION_WORDS.union(
    ("actions", "inputs", "outputs", "targetSpec", "configs", "value", "nodeFragments", "metadata")
)
"""Members of Evergreen's messages; payloads are not among them."""
_DEEPEST = 32
"""Nesting levels of an answer that are examined; deeper ones are removed."""
_KEPT_OF_REQUESTS = frozenset({"model", "stream_id", "id", "logprobs_mode", "stream_options"})
"""Members of a request that stay, in addition to numbers and booleans."""
_WORDS = frozenset(
    {
        *("id", "object", "type", "event_type", "role", "model", "status", "code", "error_code", "finish_reason"),
        *("done_reason", "finishReason", "created_at", "stream_id", "item_id", "call_id", "tool_call_id", "model_id"),
        *("response_id", "generation_id", "responseId", "modelVersion", "system_fingerprint", "service_tier", "cached"),
        *("member", "stop_reason", "reason", "is_finished", "done", "created", "index", "choice", "sequence_number"),
        *("output_index", "content_index", "summary_index", "retryable", "length", "at", "ms", "outcome", "attempts"),
        *("before", "after"),
    }
)
"""Members of an answer that hold a word of the protocol or a number."""
_NUMBERS = re.compile(r"(?:tokens?|_count|_duration|_ms|_units|_bytes|Count)$")
_WORD = re.compile(r"[\w.:/@+-]{1,128}")
_STOP_REASONS = frozenset({"end_turn", "max_tokens", "tool_use", "stop_sequence", "refusal", "pause_turn"})
"""Stop reasons of Anthropic; other servers put the client's stop string there."""
_TEXTS = frozenset(
    {
        *("content", "text", "delta", "reasoning", "reasoning_content", "thinking", "refusal", "partial_json", "name"),
        *("response", "signature", "tool_plan", "transcript", "summary", "tool_name"),
    }
)
"""Members of an answer that hold a text of the model, or an object with one."""
_CONTAINERS = frozenset(
    {
        *("choices", "message", "output", "item", "part", "content_block", "tool_calls", "function_call", "function"),
        *("candidates", "parts", "functionCall", "usage", "usageMetadata", "meta", "billed_units", "tokens_details"),
        *("prompt_tokens_details", "completion_tokens_details", "input_tokens_details", "output_tokens_details"),
        *("error", "incomplete_details", "provider_response", "token_count", "chunk", "seam", "data", "buffer"),
    }
)
"""Members of an answer that hold objects whose members are filtered too; a text in their place is removed."""
_WHOLE = frozenset(
    {
        *("arguments", "args", "parameters", "parsed", "token", "tokens", "token_ids", "bytes", "b64_json", "logprob"),
        *("top_logprobs", "logprobs", "token_logprobs", "text_offset"),
    }
)
"""Members of an answer that are the model's words in any form. Logprobs are included: they reveal the tokens."""
_KNOWN = _WORDS | _TEXTS | _CONTAINERS | _WHOLE


def redact_request(members: Mapping[str, object], mark: Callable[[object], object]) -> dict[str, object]:
    """Members of a request, with marks in place of those that may hold the client's words."""
    return {name: value if _is_setting(name, value) else mark(value) for name, value in members.items()}


def _is_setting(name: str, value: object) -> bool:
    if name in _KEPT_OF_REQUESTS:  # in the unified API an object `model` holds the prompt
        return name in ("stream_id", "stream_options") or not isinstance(value, dict | list)
    return name not in PROMPT_MEMBERS and (value is None or isinstance(value, bool | int | float))


def redact_answer(value: object, name: str = "", *, texts: bool, depth: int = 0) -> object:
    """Value of an answer without the client's words, which answers repeat; texts: keep the model's words."""
    if isinstance(value, dict) and depth < _DEEPEST:
        tool = "tool" in str(value.get("type"))  # `input` is the model's in a call, else the client's
        return {
            each: redact_member(each, one, texts=texts, depth=depth + 1)
            for each, one in value.items()
            if each in _KNOWN or _NUMBERS.search(each) or (tool and each == "input")
        }
    if isinstance(value, list) and depth < _DEEPEST:
        return [redact_answer(one, name, texts=texts, depth=depth + 1) for one in value]
    if isinstance(value, str):
        return value if not value or (texts and name in _TEXTS) else LEFT_OUT
    return None


def redact_member(name: str, value: object, *, texts: bool, depth: int = 0) -> object:
    """Member of an answer without the client's words; texts: keep the model's words."""
    if name == "stream_id" or (texts and (name in _WHOLE or name == "input")):
        return value
    if name in _WHOLE or name == "input":
        return _emptied(value)
    if name in _TEXTS or name in _CONTAINERS or not isinstance(value, str | int | float):
        return redact_answer(value, name, texts=texts, depth=depth)
    if isinstance(value, str):
        is_word = _WORD.fullmatch(value) and (name != "stop_reason" or value in _STOP_REASONS)
        return value if is_word and name in _WORDS else LEFT_OUT
    return None if name == "stop_reason" else value


def _emptied(value: object) -> object:
    if isinstance(value, str):
        return value and LEFT_OUT
    return type(value)() if isinstance(value, list | dict) else None


def redact_content(content: Content, redact: Callable[[object], object]) -> JsonText | str:
    """Body, or part of one, with its JSON value redacted; `***` if it is not JSON."""
    if isinstance(content, JsonText):
        return JsonText("", redact(content.value), content.style)
    try:
        value = redact(json.loads(content))
    except (ValueError, RecursionError):
        return LEFT_OUT
    return json.dumps(value) + "\n" * (content[-1:] in ("\n", b"\n"))


def redact_sse(content: Content, redact: Callable[[object], object]) -> Content:
    """Server-sent event with its JSON value redacted; a comment if it has none."""
    if isinstance(content, bytes) or (isinstance(content, str) and "data: " not in content):
        return f": {LEFT_OUT}\n\n"
    lead, _, rest = (content.lead, "", "") if isinstance(content, JsonText) else content.rpartition("data: ")
    name = _EVENT_NAME.search(lead)
    head = f"{name[0] if name else ''}data: "
    if isinstance(content, JsonText):
        return JsonText(head, redact(content.value), content.style)
    shown = rest if rest.strip() == "[DONE]" else redact_content(rest.rstrip(), redact)
    return f"{head}{str(shown).rstrip()}\n\n"


def redact_frame(frame: Frame, command: str | None, redact: Callable[[object], object]) -> Content:
    """Content of a frame with its JSON value redacted; `***` if it is neither an LMTP command nor an object."""
    content = frame.content
    if command not in _COMMANDS:
        is_object = isinstance(content, str) and content.startswith("{")
        return redact_content(content, redact) if is_object else LEFT_OUT
    value = redact(frame.parse().value)
    return replace(content, value=value) if isinstance(content, JsonText) else f"{command} {json.dumps(value)}"


def redact_session(value: Mapping[str, object]) -> dict[str, object]:
    """Structure of an Evergreen message, or of a part of one: ids, names, types, numbers."""
    return {name: one for name, each in value.items() if (one := _session(each, name)) is not None}


def _session(value: object, name: str) -> object:
    if isinstance(value, dict):
        return redact_session(value) if name in _SESSION else None
    if isinstance(value, list):
        return [one for each in value if (one := _session(each, name)) is not None] if name in _SESSION else None
    return value if isinstance(value, bool | int | float) or name in _SESSION_WORDS else None
