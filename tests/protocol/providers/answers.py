"""Answers of every HTTP API, made up: what was generated, and the bytes that a server writes for it."""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lmtool.protocol.providers.answer_events import Api
    from lmtool.protocol.providers.body_parts import Form

PIECES = [
    b" the",
    b"H",
    "é".encode(),
    b"\xf0\x9f",
    b"\x99\x82",
    " \u2028".encode(),
    b"\n",
    b"data: ",
    b'"}',
    b"\r\n\r\n",
]
"""Tokens: among them halves of one character, a line separator that is text, and what looks like a protocol."""
PATHS: dict[Api, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama": "/api/chat",
    "cohere_v1": "/v1/chat",
    "cohere_v2": "/v2/chat",
    "unified": "/v1/language/default/chat",
}
LINES = ("ollama", "cohere_v1")
"""APIs that stream JSON lines."""
NO_LOGPROBS = ("messages", "cohere_v1", "cohere_v2", "unified")
CONTENT_TYPES: dict[Form, str] = {
    "events": "text/event-stream",
    "lines": "application/x-ndjson",
    "whole": "application/json",
}
LOGPROB = -0.5
OTHER = (" other", -1.5)
"""An alternative of every token."""


@dataclass
class Choice:
    """What was generated for one choice."""

    groups: list[list[bytes]]
    """Tokens, by the chunk that brings them."""
    reason: str
    deltas: list[str] = field(default_factory=list)
    """Text of each chunk; characters come whole."""

    def __post_init__(self) -> None:
        """Decode as a server does."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.deltas = ["".join(decoder.decode(piece) for piece in group) for group in self.groups]
        self.deltas[-1] += decoder.decode(b"", final=True)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.deltas)

    @property
    def tokens(self) -> list[tuple[str | bytes, float]]:
        """Text (or bytes) and logprob of each token."""
        return [(_piece(token), LOGPROB) for group in self.groups for token in group]


@dataclass
class Written:
    """An answer as a server writes it."""

    api: Api
    form: Form
    logprobs: bool
    choices: list[Choice]
    body: bytes = b""

    @property
    def path(self) -> str:
        """Where it is asked for."""
        return PATHS[self.api]

    @property
    def streamed(self) -> bool:
        """Whether it came in chunks."""
        return self.form != "whole"

    def shown(self, number: int) -> list[tuple[str | bytes, float | None]]:
        """What a reader shows of a choice: its tokens where they were named, else each chunk's text."""
        choice = self.choices[number]
        if self.logprobs:
            return list(choice.tokens)
        texts = choice.deltas if self.streamed else [choice.text]
        return [(text, None) for text in texts if text]


def _piece(token: bytes) -> str | bytes:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return token


def _entries(group: Sequence[bytes]) -> list[dict[str, Any]]:
    return [
        {
            "token": token.decode("utf-8", "replace"),
            "bytes": list(token),
            "logprob": LOGPROB,
            "top_logprobs": [
                {"token": OTHER[0], "bytes": None, "logprob": OTHER[1]},
                {"token": token.decode("utf-8", "replace"), "bytes": list(token), "logprob": LOGPROB},
            ],
        }
        for token in group
    ]


def _spelled(token: bytes) -> str:
    piece = _piece(token)
    return piece if isinstance(piece, str) else "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _columns(group: Sequence[bytes]) -> dict[str, Any]:
    return {
        "tokens": [_spelled(token) for token in group],
        "token_logprobs": [LOGPROB for _ in group],
        "top_logprobs": [{_spelled(token): LOGPROB, OTHER[0]: OTHER[1]} for token in group],
        "text_offset": [0 for _ in group],
    }


def _choice(written: Written, number: int, text: str, group: Sequence[bytes], reason: str | None) -> dict[str, Any]:
    """A choice of chat completions or completions, of a chunk or of the whole."""
    if written.api == "completions":
        columns = _columns(group) if written.logprobs else None
        return {"index": number, "text": text, "logprobs": columns, "finish_reason": reason}
    said = {"role": "assistant", "content": text}
    logprobs = {"content": _entries(group), "refusal": None} if written.logprobs else None
    part = {"delta": said} if written.streamed else {"message": said}
    return {"index": number, **part, "logprobs": logprobs, "finish_reason": reason}


def _whole(written: Written) -> dict[str, Any]:
    first = written.choices[0]
    group = [token for tokens in first.groups for token in tokens]
    if written.api == "responses":
        part = {"type": "output_text", "text": first.text, "logprobs": _entries(group) if written.logprobs else []}
        status = "completed" if first.reason == "stop" else "incomplete"
        return {"object": "response", "status": status, "output": [{"type": "message", "content": [part]}]}
    if written.api == "messages":
        reason = "end_turn" if first.reason == "stop" else "max_tokens"
        return {"type": "message", "content": [{"type": "text", "text": first.text}], "stop_reason": reason}
    if written.api == "ollama":
        logprobs = {"logprobs": _entries(group)} if written.logprobs else {}
        return {"message": {"content": first.text}, **logprobs, "done": True, "done_reason": first.reason}
    if written.api in ("cohere_v1", "cohere_v2"):
        return _cohere(written)
    if written.api == "unified":
        return {"model_id": "main", "provider_response": _unified(first.text) | {"finish_reason": first.reason}}
    choices = [
        _choice(written, number, choice.text, [token for group in choice.groups for token in group], choice.reason)
        for number, choice in enumerate(written.choices)
    ]
    return {"choices": choices}


def _unified(text: str) -> dict[str, Any]:
    return {"response_id": {"id": "r"}, "message": {"role": "assistant", "content": text}}


def _cohere(written: Written) -> dict[str, Any]:
    first = written.choices[0]
    reason = "COMPLETE" if first.reason == "stop" else "MAX_TOKENS"
    if written.api == "cohere_v1":
        return {"response_id": "r", "generation_id": "g", "text": first.text, "finish_reason": reason}
    content = [{"type": "text", "text": first.text}]
    return {"id": "r", "finish_reason": reason, "message": {"role": "assistant", "content": content}}


def _chunks(written: Written, order: Sequence[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and payload of each event. order: which choice goes on, once for each group of it."""
    left = [list(zip(choice.groups, choice.deltas, strict=True)) for choice in written.choices]
    if written.api == "messages":
        yield "message_start", {"type": "message_start", "message": {"usage": {"input_tokens": 3}}}
        yield "content_block_start", {"type": "content_block_start", "content_block": {"type": "text", "text": ""}}
    for number in order:
        group, text = left[number].pop(0)
        if written.api in ("chat", "completions"):
            reason = None if left[number] else written.choices[number].reason
            yield "", {"choices": [_choice(written, number, text, group, reason)]}
        else:
            yield _delta(written, text, _entries(group) if written.logprobs else [])
    if written.api not in ("chat", "completions"):
        yield _end(written)


def _delta(written: Written, text: str, logprobs: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The event that brings a text."""
    if written.api == "responses":
        kind = "response.output_text.delta"
        return kind, {"type": kind, "delta": text, "logprobs": logprobs}
    if written.api == "messages":
        kind = "content_block_delta"
        return kind, {"type": kind, "delta": {"type": "text_delta", "text": text}}
    if written.api == "ollama":
        return "", {"message": {"content": text}, **({"logprobs": logprobs} if logprobs else {}), "done": False}
    if written.api == "cohere_v1":
        return "", {"event_type": "text-generation", "text": text}
    if written.api == "unified":
        return "", {"model_id": "main", "provider_response": _unified(text), "finish_reason": None}
    kind = "content-delta"
    return kind, {"type": kind, "index": 0, "delta": {"message": {"content": {"text": text}}}}


def _end(written: Written) -> tuple[str, dict[str, Any]]:
    """The event that ends the answer."""
    reason = written.choices[0].reason
    if written.api == "responses":
        status = "completed" if reason == "stop" else "incomplete"
        kind = f"response.{status}"
        return kind, {"type": kind, "response": {**_whole(written), "status": status}}
    if written.api == "messages":
        stop = "end_turn" if reason == "stop" else "max_tokens"
        return "message_delta", {"type": "message_delta", "delta": {"stop_reason": stop}}
    if written.api == "ollama":
        return "", {"message": {"content": ""}, "done": True, "done_reason": reason, "eval_count": 1}
    if written.api == "unified":
        return "", {"model_id": "main", "provider_response": _unified(""), "finish_reason": reason}
    whole = _cohere(written)
    if written.api == "cohere_v1":
        return "", {"event_type": "stream-end", "finish_reason": whole["finish_reason"], "response": whole}
    return "message-end", {"type": "message-end", "id": "r", "delta": {"finish_reason": whole["finish_reason"]}}


def _bytes(written: Written, order: Sequence[int], end: str) -> bytes:
    def dump(value: object) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    if written.form == "whole":
        return dump(_whole(written)).encode()
    if written.form == "lines":
        return "".join(f"{dump(chunk)}\n" for _, chunk in _chunks(written, order)).encode()
    blocks = [
        (f"event: {name}{end}" if name else "") + f"data: {dump(chunk)}{end}{end}"
        for name, chunk in _chunks(written, order)
    ]
    done = f"data: [DONE]{end}{end}" if written.api in ("chat", "completions") else ""
    return "".join([f": ping{end}{end}", *blocks, done]).encode()


@st.composite
def written(draw: st.DrawFn, *, apis: Sequence[Api] = tuple(PATHS)) -> Written:
    """Any answer of any API: whole or streamed, of one to three choices, with logprobs or without."""
    api = draw(st.sampled_from(apis))
    streamed = draw(st.booleans())
    form: Form = "whole" if not streamed else "lines" if api in LINES else "events"
    count = draw(st.integers(1, 3)) if api in ("chat", "completions") else 1
    groups = st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3), min_size=1, max_size=4)
    choices = [Choice(draw(groups), draw(st.sampled_from(["stop", "length"]))) for _ in range(count)]
    made = Written(api, form, draw(st.booleans()) and api not in NO_LOGPROBS, choices)
    order = draw(st.permutations([number for number, choice in enumerate(choices) for _ in choice.groups]))
    made.body = _bytes(made, order, draw(st.sampled_from(["\n", "\r\n", "\r"])))
    return made
