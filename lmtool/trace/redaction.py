"""Redaction: prompts, texts and headers taken out of events, and what still looks like a key."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lmtool.errors import UsageError
from lmtool.trace.content import JsonText, write_json
from lmtool.trace.events import Frame, Message, Open, Piece, Request, Response, Turn, Vocab, token_entries
from lmtool.trace.large_values import reference
from lmtool.trace.stream_events import PROMPT_MEMBERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.trace.content import Content
    from lmtool.trace.events import Event

RedactedPart: TypeAlias = Literal["headers", "prompt", "text"]

HARMLESS_HEADERS = frozenset(
    {
        *("accept", "accept-encoding", "cache-control", "connection", "retry-after", "server", "upgrade", "user-agent"),
        *("content-encoding", "content-length", "content-type", "transfer-encoding"),
        *("sec-websocket-extensions", "sec-websocket-protocol", "sec-websocket-version"),
        *(
            "x-lmtool-attempts",
            "openai-processing-ms",
            "openai-version",
            "x-ratelimit-limit-requests",
            "x-ratelimit-limit-tokens",
        ),
    }
)
"""Headers that are kept when headers are redacted; all others are left out."""

_SECRETS = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_REST_OF_PRIVATE_KEY = r"(?:.*?-----END [A-Z ]*PRIVATE KEY-----|.*)"
_WHOLE_SECRETS = re.compile(_SECRETS.pattern + _REST_OF_PRIVATE_KEY, re.DOTALL)
KEY_LEFT_OUT = "***"
"""Stands for what looks like a key."""


def parse(words: str) -> tuple[RedactedPart, ...]:
    """The kinds named in `prompt,headers`. Raises `UsageError` for an unknown one."""
    known: tuple[RedactedPart, ...] = get_args(RedactedPart)
    names = [word.strip() for word in words.split(",") if word.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"cannot redact {name!r}", f"one or more of {', '.join(known)}, with commas between")
    return tuple(what for what in known if what in names)


@dataclass(frozen=True, slots=True)
class Redaction:
    """Takes parts out of events. The same prompt is seen to be the same within one salt."""

    what: tuple[RedactedPart, ...]
    salt: bytes
    """Random bytes of this recording, thrown away with it."""
    output_ids: set[int] = field(default_factory=set)
    """Ids that outputs carried: only these stay in the vocabulary when prompts go."""

    def apply(self, event: Event) -> Event | None:
        """The event without what must not be shown; None where nothing is left of it."""
        for entry in token_entries(event):
            self.output_ids.update(entry_token_ids(entry))
        match event:
            case Frame() if event.direction == ">":
                return Frame(event.time, ">", event.connection, self._prompt(event.content))
            case Message():
                return self._message(event)
            case Request():
                body = None if event.body is None else self._prompt(event.body)
                headers = self._headers(event.headers)
                return Request(event.time, event.connection, event.method, self._path(event.path), headers, body)
            case Response():
                headers = self._headers(event.headers)
                return Response(event.time, event.connection, event.status, event.reason, headers)
            case Vocab():
                return self._vocab(event)
            case Turn() if "prompt" in self.what or "text" in self.what:
                return None
            case Open() if "headers" in self.what:
                path = event.facts.get("path")
                shown = {"path": self._path(path)} if isinstance(path, str) else {}
                return Open(event.time, event.connection, {**event.facts, **shown})
        return event

    def keeps(self, token: int) -> bool:
        """Whether the vocabulary may tell what this id means."""
        return "text" not in self.what and ("prompt" not in self.what or token in self.output_ids)

    def _headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        if "headers" not in self.what:
            return headers
        return {name: value for name, value in headers.items() if name in HARMLESS_HEADERS}

    def _path(self, path: str) -> str:
        return path.partition("?")[0] if "headers" in self.what else path

    def _prompt(self, content: Content) -> Content:
        if "prompt" not in self.what:
            return content
        if not isinstance(content, JsonText):
            # Text that could not be taken apart may hold anything: a prompt beside an infinity, for one.
            return JsonText("", self._mark(content if isinstance(content, str) else content.hex()), "py")
        if not isinstance(content.value, dict):
            return JsonText(content.lead, self._mark(content.value), content.style)
        members = {n: self._mark(v) if _is_prompt(n, v) else v for n, v in content.value.items()}
        return JsonText(content.lead, members, content.style)

    def _message(self, event: Message) -> Message:
        """A message without its payloads: what a client sends goes with prompts, what a server sends with texts."""
        part: RedactedPart = "prompt" if event.direction == ">" else "text"
        if part not in self.what:
            return event
        value = {name: member for name, member in event.value.items() if name == "actions"}
        if "nodeFragments" in event.value:
            value["nodeFragments"] = [self._fragment(each, part) for each in event.fragments()]
        if "hex" in event.value:
            value["hex"] = self._mark(event.value["hex"], part)
        return Message(event.time, event.direction, event.connection, value)

    def _fragment(self, fragment: dict[str, object], part: RedactedPart) -> dict[str, object]:
        chunk = fragment.get("chunkFragment")
        if not isinstance(chunk, dict):
            return fragment
        payload = {name: self._mark(chunk[name], part) for name in ("data", "ref") if name in chunk}
        return {**fragment, "chunkFragment": {**chunk, **payload}}

    def _mark(self, value: object, part: RedactedPart = "prompt") -> object:
        if isinstance(value, dict) and "$redacted" in value:
            return value
        text = write_json(value, "py")
        size = len(value) if isinstance(value, list | str) and reference(value) is None else 1
        return {"$redacted": part, "n": size, "sha256": hashlib.sha256(self.salt + text.encode()).hexdigest()}

    def _vocab(self, event: Vocab) -> Vocab | None:
        tokens = {token: text for token, text in event.tokens.items() if self.keeps(token)}
        names = {token: name for token, name in event.names.items() if token in tokens}
        return Vocab(event.time, event.connection, tokens, names) if tokens or not event.tokens else None


def _is_prompt(name: str, value: object) -> bool:
    """Whether a member of a request holds what a model reads; in a `model` that is no name the unified API has it."""
    return name in PROMPT_MEMBERS or (name == "model" and isinstance(value, dict | list))


def entry_token_ids(entry: Mapping[str, object]) -> list[int]:
    """The ids that an entry of a TOKEN names: the token and its alternatives."""
    token, alternatives = entry.get("token"), entry.get("top_logprobs")
    names = alternatives if isinstance(alternatives, dict) else {}
    ids = [int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 20]
    return [token, *ids] if type(token) is int and token >= 0 else ids


def likely_keys(event: Event) -> list[str]:
    """What looks like a key in an event's content, each with its middle left out."""
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
    return [f"{found[:6]}…{found[-2:]}" for found in _SECRETS.findall(text)]


def without_keys(text: str) -> str:
    """The text with `***` in the place of each thing that looks like a key; the same object where there is none."""
    return _WHOLE_SECRETS.sub(KEY_LEFT_OUT, text) if _SECRETS.search(text) else text


def _decoded(data: str) -> str:
    """The text of base64; empty where it is none."""
    try:
        return base64.b64decode(data).decode("utf-8", "replace")
    except ValueError:
        return ""
