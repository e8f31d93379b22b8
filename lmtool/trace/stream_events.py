"""Protocol-neutral stream events (request started, output), stream state, prompts in parts, and Evergreen nodes."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from lmtool.protocol.lmtp.frames import alternatives
from lmtool.protocol.providers.answer_events import ChunkToken
from lmtool.protocol.providers.json_values import list_of, object_of, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lmtool.core.seam import Seam
    from lmtool.protocol.providers.answer_events import Api, TokenUsage
    from lmtool.protocol.providers.body_parts import Form

Kind: TypeAlias = Literal["GEN", "SCORE", "CHAT", "TEXT", "ACT", ""]
"""LMTP's two commands; HTTP requests that continue a conversation or a text; Evergreen's actions; empty: nothing is
generated."""
Phase: TypeAlias = Literal["waiting", "running", "stop", "length", "cancelled", "error", "unfinished"]
"""`unfinished`: the connection or the answer's body ended before the stream."""
Alternative: TypeAlias = "tuple[int | str | bytes, float]"
"""Token id, or over HTTP the token's text or bytes; and its logprob in nats."""


PROMPT_MEMBERS = (
    *("prompt", "scored", "append", "messages", "input", "system", "instructions", "suffix"),
    *("message", "chat_history", "preamble", "tool_results", "documents", "texts"),
    *("messageHistory", "message_history", "override_params"),
)
"""Members of requests that hold what a model reads: of LMTP, OpenAI, Anthropic and Ollama; Cohere; the unified API."""
INPUT = "input "
"""Prefix of an action's input among its fields."""
INCOMPLETE: Mapping[str, object] = {"$incomplete": True}
"""Value of an action's input that is not complete: it may become anything."""


PREVIEW = 80
"""Characters of a leaf's text that are kept."""
MAX_LINES = 200
"""Lines shown of a tree; a node may appear in it many times."""


@dataclass(slots=True, eq=False)
class TraceNode:
    """A node, as known from the trace."""

    id: str
    mimetype: str = ""
    role: str = ""
    size: int = 0
    """Bytes of its payload."""
    text: str = ""
    """First characters of a text payload."""
    children: dict[int, list[TraceNode]] = field(default_factory=dict)
    """Children by seq of the fragment that names them."""
    final: bool = False

    def summary(self) -> str:
        """Short description."""
        if self.children:
            return f"{sum(map(len, self.children.values()))} children"
        kind = f"{self.mimetype} {self.role}".strip()
        shown = repr(self.text) if self.text else f"{self.size} bytes"
        return " ".join(filter(None, (kind, shown, "" if self.final else "…")))

    def take_chunk(self, chunk: object) -> bytes:
        """Add a chunk of a leaf; returns the chunk's bytes."""
        if not isinstance(chunk, dict):
            return b""
        metadata = chunk.get("metadata")
        if isinstance(metadata, dict) and not self.mimetype:
            self.mimetype, self.role = str(metadata.get("mimetype", "")), str(metadata.get("role", ""))
        encoded = chunk.get("data")
        try:
            data = base64.b64decode(encoded) if isinstance(encoded, str) else b""  # an object where it was redacted
        except ValueError:
            return b""  # written by another program
        self.size += len(data)
        if self.mimetype.startswith("text/") and len(self.text) < PREVIEW:
            self.text = (self.text + data.decode(errors="replace"))[:PREVIEW]
        elif isinstance(chunk.get("ref"), str):
            self.text = str(chunk["ref"])[:PREVIEW]
        return data


@dataclass(frozen=True, slots=True)
class ActionNodes:
    """Nodes of an action: its inputs and outputs by name, and the nodes below them."""

    inputs: Mapping[str, TraceNode]
    outputs: Mapping[str, TraceNode]

    def prompt_end(self) -> str:
        """Start of the last leaf of the inputs: the latest message of a conversation. Empty if it is not text."""
        node = [*self.inputs.values()][-1] if self.inputs else None
        for _ in range(MAX_LINES):
            below = [] if node is None or not node.children else node.children[max(node.children)]
            if not below:
                break
            node = below[-1]
        return "" if node is None else node.text

    def lines(self) -> Iterator[tuple[int, str]]:
        """Depth and text of each line of the tree, at most `MAX_LINES`."""
        waiting = [(0, f"{name} ▸", node) for name, node in reversed([*self.inputs.items()])]
        waiting = [(0, f"▸ {name}", node) for name, node in reversed([*self.outputs.items()])] + waiting
        for _ in range(MAX_LINES):
            if not waiting:
                return
            depth, name, node = waiting.pop()
            yield depth, f"{name} {node.summary()}".strip()
            below = [child for _, children in sorted(node.children.items()) for child in children]
            waiting += [(depth + 1, "", child) for child in reversed(below[:MAX_LINES])]


@dataclass(slots=True, eq=False)
class RequestStarted:
    """A request was sent."""

    time: float
    connection: int
    label: str
    """Connection and stream id, such as `1/3`; for HTTP the number of the request on its connection."""
    kind: str
    """`GENERATE`, `SCORE`, `MODEL_INFO`, `BUFFER`, an HTTP method and path, `chatStream`, or an action's name."""
    payload: Mapping[str, object]
    """Fields of the request; empty if they cannot be read."""
    api: Api | None = None
    """HTTP API that answers; None for LMTP, and if nothing is generated."""
    has_request: bool = True
    """False for a placeholder where answers were recorded without a request."""
    nodes: ActionNodes | None = None
    """Inputs and outputs of an Evergreen action."""
    stream: Stream = field(init=False)
    """Its stream; for HTTP that of choice 0."""

    @property
    def stream_kind(self) -> Kind:
        """Kind of the stream that it starts."""
        if self.nodes is not None:
            return "ACT"
        if self.api is not None:
            return "TEXT" if self.api == "completions" or self.kind.endswith("/generate") else "CHAT"
        return "GEN" if self.kind == "GENERATE" else "SCORE" if self.kind == "SCORE" else ""

    @property
    def model(self) -> str | None:
        """Requested model."""
        model = self.payload.get("model")
        return model if isinstance(model, str) else None

    @property
    def prompt(self) -> object:
        """Ids, text or messages, under the API's own name; the text of a single message."""
        names = ("prompt", "messages", "input", "message")
        prompt = next((self.payload[name] for name in names if self.payload.get(name) is not None), None)
        return prompt["content"] if isinstance(prompt, dict) and isinstance(prompt.get("content"), str) else prompt

    @property
    def is_unconditional(self) -> bool:
        """True if it scores without a prompt."""
        return self.kind == "SCORE" and self.payload.get("prompt") in ([], "")

    @property
    def prompt_tokens(self) -> int | None:
        """Length of a prompt of ids; None if only the server can count its tokens."""
        prompt = self.prompt
        return len(prompt) if isinstance(prompt, list) and all(type(one) is int for one in prompt) else None

    @property
    def prompt_length(self) -> int | None:
        """Number of ids or messages of the prompt; None for a text or a missing prompt."""
        prompt = self.prompt
        if isinstance(prompt, dict):
            n = prompt.get("n")
            return n if isinstance(n, int) else None
        return len(prompt) if isinstance(prompt, list) else None


@dataclass(slots=True, eq=False)
class Stream:
    """State of a GENERATE, a SCORE, or one choice of an HTTP answer."""

    index: int
    """Number among the streams of the trace, by their start, from 0; -1 for a request that generates nothing."""
    label: str
    """Connection and id, such as `1/3`; with the number of a further choice, `1/3.1`."""
    connection: int
    kind: Kind
    model: str | None
    started_at: float
    choice: int = 0
    has_request: bool = True
    """True if its request is in the trace."""
    api: Api | None = None
    form: Form = "whole"
    """Framing of an HTTP answer."""
    attempts: str = ""
    """Attempts of a gateway for this answer, such as `main timeout 1200ms, backup ok 86ms`."""
    member: str = ""
    """Pool member that gave the answer, or its first part (unified API)."""
    seams: tuple[Seam, ...] = ()
    """Failover points: places where other pool members continued the answer."""
    ended: float | None = None
    finish_reason: str | None = None
    """Finish reason as the server sent it."""
    error: str | None = None
    cut: bool = False
    """True if the connection or the answer's body ended before the stream."""
    status: str = ""
    """Status of an HTTP error response: `HTTP 429 Too Many Requests, retry after 30 s`."""
    usage: TokenUsage | None = None
    """Usage reported by the server for all choices; kept with the first."""
    is_unconditional: bool = False
    """True if nothing precedes its next token."""

    def logprob_of_next(self, logprob: float | None) -> float | None:
        """Logprob of its next token; None for the 0 that a server sends if nothing precedes the token (LMTP, SCO-2)."""
        first, self.is_unconditional = self.is_unconditional, False
        return None if first and logprob == 0 else logprob

    def end(self, time: float, reason: str | None, error: str | None, *, cut: bool = False) -> None:
        """End the stream; later calls are ignored."""
        if self.ended is None:
            self.ended, self.finish_reason, self.error, self.cut = time, reason, error, cut

    @property
    def failure(self) -> str | None:
        """Reason it failed or was cut, with the HTTP status; None if it did not."""
        if self.error is None or not self.status:
            return self.error
        return self.status if self.status.startswith(self.error) else f"{self.status}: {self.error}"

    def phase_at(self, moment: float, *, produced: bool) -> Phase:
        """State at a time, or its ending. produced: True if it has produced a token by then."""
        if self.ended is None or self.ended > moment:
            return "running" if produced else "waiting"
        if self.cut:
            return "unfinished"
        if self.error is not None or self.finish_reason in ("error", "failed"):
            return "error"
        reason = self.finish_reason
        return reason if reason in ("length", "cancelled") else "stop"  # type: ignore[return-value] # one of the two


S = TypeVar("S", bound=Stream)


def new_stream(kind: type[S], started: RequestStarted, index: int, choice: int, **more: Any) -> S:  # noqa: ANN401 - fields
    """Stream of a request, or of a further choice of its answer. more: additional fields of this kind."""
    label = f"{started.label}.{choice}" if choice else started.label
    facts = (started.connection, started.stream_kind, started.model, started.time)
    more["is_unconditional"] = started.is_unconditional
    return kind(index, label, *facts, choice, started.has_request, started.api, **more)


def stream_of(started: RequestStarted, index: int, choice: int) -> Stream:
    """The plain stream of a request."""
    return new_stream(Stream, started, index, choice)


class OutputEvent(msgspec.Struct, frozen=True, gc=False):
    """One output of a stream: a token, a piece of text, an ending, a failure."""

    time: float
    stream: Stream
    token: int | None = None
    """Token id; None over HTTP."""
    text: str | bytes | None = None
    """Text as the server sent it; bytes for a token that holds part of a character."""
    logprob: float | None = None
    """Nats; finite."""
    finish_reason: str | None = None
    error: str | None = None
    is_piece: bool = False
    """True for a piece of text without known tokens: servers name tokens only if logprobs are requested."""
    is_thought: bool = False
    """True if it belongs to the model's reasoning."""
    top: Mapping[str, object] | ChunkToken | None = None
    """Source of `alternatives`: the entry of an LMTP frame, or the token of an HTTP answer."""
    call: int | None = None
    """Number of the tool call that it belongs to; None if none."""
    tool: str = ""
    """Name of the called tool; empty outside of calls."""
    is_tool_name: bool = False
    """True if the text is the tool's name; all other text of a call is its arguments."""

    @property
    def counts(self) -> bool:
        """True if it counts as a token: a token, or text without one."""
        return self.token is not None or bool(self.text) or self.logprob is not None

    @property
    def last(self) -> bool:
        """True if it ends the stream."""
        return self.finish_reason is not None or self.error is not None

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Alternatives, best first; empty if the server sent none."""
        if self.top is None:
            return ()
        return self.top.alternatives if isinstance(self.top, ChunkToken) else alternatives(self.top)


StreamEvent: TypeAlias = RequestStarted | OutputEvent


CHUNK = 64
"""Ids per part of a prompt of ids."""
_SYSTEM = ("system", "developer")
_SETTINGS = (
    *("chat_template", "chat_template_kwargs", "enable_thinking", "thinking", "reasoning", "reasoning_effort"),
    *("tool_choice", "response_format", "text", "output_config", "documents", "continue_final_message"),
    "add_generation_prompt",
)
"""Members of a request that change what templates, or servers, write around its messages."""
_VOLATILE = frozenset({"id", "call_id", "tool_call_id", "tool_use_id", "cache_control", "status", "signature"})
"""Members of messages that templates do not use."""

Text: TypeAlias = "str | tuple[int, ...]"


class PromptPart(NamedTuple):
    """A part of a prompt."""

    name: str
    """Name for people: `tool get_weather`, `system`, `message 3 (user)`; `tokens` for ids."""
    text: Text
    """Its content for comparison: characters, or ids."""


class PromptContent(NamedTuple):
    """Prompt of a request, if the trace has it."""

    parts: tuple[PromptPart, ...]
    scope: tuple[str, str]
    """Model and cache salt: prompts with another scope share nothing."""
    settings: Mapping[str, object]
    """Other settings that change the text that the model reads."""
    missing: str = ""
    """Reason it is incomplete; empty if it is complete."""

    @property
    def unit(self) -> str:
        """`tokens` or `characters`."""
        return "tokens" if self.parts and self.parts[0].name == "tokens" else "characters"

    @property
    def length(self) -> int:
        """Length in that unit."""
        return sum(len(part.text) for part in self.parts)


def prompt_content(started: RequestStarted) -> PromptContent:
    """Prompt of a request. Its payload must hold no references to large values."""
    payload = started.payload
    scope = (started.model or "", text_of(payload.get("cache_salt")))
    settings = {name: payload[name] for name in _SETTINGS if payload.get(name) is not None}
    if not isinstance(settings.get("text"), dict):  # in LMTP it is a boolean: texts in addition to ids
        settings.pop("text", None)
    if any(isinstance(value, dict) and "$redacted" in value for value in payload.values()):
        return PromptContent((), scope, settings, "it was left out of the trace")
    kept = payload.get("previous_response_id") or payload.get("conversation")
    missing = "the server keeps its beginning (previous_response_id)" if kept else ""
    return PromptContent(tuple(_parts(payload)), scope, settings, missing)


def prompt_text(started: RequestStarted, text_of_id: Callable[[int], str | None]) -> str:
    """Prompt for people, with the text that a SCORE scores; empty if the trace has none."""
    if started.nodes is not None:
        return started.nodes.prompt_end()
    content, scored = prompt_content(started), started.payload.get("scored")
    texts = [part.text if isinstance(part.text, str) else _spelled(part.text, text_of_id) for part in content.parts]
    if scored is not None and not content.missing:
        texts.append(_spelled(scored, text_of_id) if isinstance(scored, list) else str(scored))
    text = ("" if content.unit == "tokens" else "\n").join(texts)
    return f"({content.missing}) {text}".rstrip() if content.missing else text


def _spelled(ids: Iterable[int], text_of_id: Callable[[int], str | None]) -> str:
    return "".join(text if (text := text_of_id(one)) is not None else f"⟨#{one}⟩" for one in ids)


def _parts(payload: Mapping[str, object]) -> Iterator[PromptPart]:
    prompt = payload.get("prompt")
    if isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt):
        for start in range(0, len(prompt), CHUNK):
            yield PromptPart("tokens", tuple(prompt[start : start + CHUNK]))
        return
    if prompt is not None:
        yield PromptPart("prompt", prompt if isinstance(prompt, str) else _json(prompt))
        return
    for tool in (*list_of(payload.get("tools")), *list_of(payload.get("functions"))):
        yield _tool(object_of(tool))
    for name in ("system", "instructions", "preamble"):
        if payload.get(name):
            yield PromptPart("system", _content(payload[name]))
    yield from _messages(payload)


def _tool(tool: Mapping[str, object]) -> PromptPart:
    """A tool as templates write it, for the formats of all APIs; a server's built-in tool unchanged."""
    members = object_of(tool.get("function", tool))
    name, parameters = text_of(members.get("name")), members.get("parameters", members.get("input_schema"))
    if parameters is None:
        return PromptPart(f"tool {name or text_of(tool.get('type'))}".rstrip(), _json(_stable(tool)))
    written = {"name": name, "description": members.get("description"), "parameters": parameters}
    return PromptPart(f"tool {name}", _json(written))


def _messages(payload: Mapping[str, object]) -> Iterator[PromptPart]:
    value = next((payload[name] for name in ("messages", "input", "message") if payload.get(name) is not None), None)
    messages = value if isinstance(value, list) else [] if value is None else [{"role": "user", "content": value}]
    number = 0
    for place, message in enumerate(messages):
        members = object_of(message)
        role = text_of(members.get("role")) or text_of(members.get("type")).replace("_", " ")
        if not place and role in _SYSTEM:
            yield PromptPart("system", _message(members))
            continue
        number += 1  # same numbers in APIs with a separate system text
        yield PromptPart(f"message {number} ({role or '?'})", f"{role}: {_message(members)}")


def _message(message: Mapping[str, object]) -> str:
    """A message as text, with its content first, so that a difference can be quoted from it."""
    rest = {name: value for name, value in message.items() if name not in {"role", "content", "type"} and value}
    more = _json(_stable(rest)) if _stable(rest) else ""
    return "\n".join(filter(None, (_content(message.get("content")), more)))


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for part in list_of(content):
        members = object_of(part)
        text = members.get("text")
        texts.append(text if isinstance(text, str) else _json(_stable(part)))
    return "\n".join(texts) if texts or not content else _json(_stable(content))


def _stable(value: object) -> object:
    """A value without the members that templates do not use; images and sounds as hashes."""
    if isinstance(value, dict):
        return {name: _stable(one) for name, one in value.items() if name not in _VOLATILE}
    if isinstance(value, list):
        return [_stable(one) for one in value]
    if isinstance(value, str) and len(value) > 2000 and " " not in value[:2000]:
        return hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()
    return value


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
