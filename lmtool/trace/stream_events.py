"""Streams, and what happens to them: a request starts one, outputs come, it ends. The same for every protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec

from lmtool.protocol.lmtp.frames import alternatives
from lmtool.protocol.providers.answer_events import ChunkToken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.core.seam import Seam
    from lmtool.protocol.providers.answer_events import Api, TokenUsage
    from lmtool.protocol.providers.body_parts import Form
    from lmtool.trace.node_tree import ActionNodes

Kind: TypeAlias = Literal["GEN", "SCORE", "CHAT", "TEXT", "ACT", ""]
"""LMTP's two commands; HTTP requests that continue a conversation or a text; Evergreen's actions; empty: nothing is
generated."""
Phase: TypeAlias = Literal["waiting", "running", "stop", "length", "cancelled", "error", "unfinished"]
"""`unfinished`: the connection, or the answer's body, ended before the stream did."""
Alternative: TypeAlias = "tuple[int | str | bytes, float]"
"""Token id (over HTTP, where there are none, its text or bytes), and its logprob in nats."""


PROMPT_MEMBERS = (
    *("prompt", "scored", "append", "messages", "input", "system", "instructions", "suffix"),
    *("message", "chat_history", "preamble", "tool_results", "documents", "texts"),
    *("messageHistory", "message_history", "override_params"),
)
"""Members of requests that hold what a model reads: of LMTP, OpenAI, Anthropic and Ollama; Cohere; the unified API."""
INPUT = "input "
"""Before the name of an action's input among its fields."""
INCOMPLETE: Mapping[str, object] = {"$incomplete": True}
"""An action's input that is not complete: it may become anything."""


@dataclass(slots=True, eq=False)
class RequestStarted:
    """A request."""

    time: float
    connection: int
    label: str
    """Connection and stream id, such as `1/3`; for HTTP the number of the request on its connection."""
    kind: str
    """`GENERATE`, `SCORE`, `MODEL_INFO`, `BUFFER`, an HTTP method and path, `chatStream`, or an action's name."""
    payload: Mapping[str, object]
    """Fields of the request; empty where they cannot be read."""
    api: Api | None = None
    """The HTTP API that answers; None for LMTP, and where nothing is generated."""
    has_request: bool = True
    """Whether the trace holds it; False for what stands in where answers came and no request."""
    nodes: ActionNodes | None = None
    """Of an Evergreen action."""
    stream: Stream = field(init=False)
    """Its stream; of an HTTP request the one of choice 0."""

    @property
    def stream_kind(self) -> Kind:
        """What kind of stream it starts."""
        if self.nodes is not None:
            return "ACT"
        if self.api is not None:
            return "TEXT" if self.api == "completions" or self.kind.endswith("/generate") else "CHAT"
        return "GEN" if self.kind == "GENERATE" else "SCORE" if self.kind == "SCORE" else ""

    @property
    def model(self) -> str | None:
        """The model asked for."""
        model = self.payload.get("model")
        return model if isinstance(model, str) else None

    @property
    def prompt(self) -> object:
        """Ids, text or messages, under whichever name the API has for them; the last text where it stands alone."""
        names = ("prompt", "messages", "input", "message")
        prompt = next((self.payload[name] for name in names if self.payload.get(name) is not None), None)
        return prompt["content"] if isinstance(prompt, dict) and isinstance(prompt.get("content"), str) else prompt

    @property
    def is_unconditional(self) -> bool:
        """Whether it scores without a prompt: nothing stands before its first token."""
        return self.kind == "SCORE" and self.payload.get("prompt") in ([], "")

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of a prompt of ids; None where only the server can count them."""
        prompt = self.prompt
        return len(prompt) if isinstance(prompt, list) and all(type(one) is int for one in prompt) else None

    @property
    def prompt_length(self) -> int | None:
        """Ids or messages of the prompt; None for a text, and where it is not in the trace."""
        prompt = self.prompt
        if isinstance(prompt, dict):
            n = prompt.get("n")
            return n if isinstance(n, int) else None
        return len(prompt) if isinstance(prompt, list) else None


@dataclass(slots=True, eq=False)
class Stream:
    """A GENERATE or SCORE, or one choice of an HTTP answer, as far as it has come."""

    index: int
    """Number among the streams of the trace, in order of their beginning, from 0; -1 for a request without a stream."""
    label: str
    """Connection and id, such as `1/3`; of further choices with their number, such as `1/3.1`."""
    connection: int
    kind: Kind
    model: str | None
    started_at: float
    choice: int = 0
    has_request: bool = True
    """Whether its request is in the trace."""
    api: Api | None = None
    form: Form = "whole"
    """How an HTTP answer is carried."""
    attempts: str = ""
    """Of an answer of a gateway: what it called for it, as `main timeout 1200ms, backup ok 86ms`."""
    member: str = ""
    """Of an answer of the unified API: the member of the pool that gave it, or its beginning."""
    seams: tuple[Seam, ...] = ()
    """Where other members of the pool went on with it."""
    ended: float | None = None
    finish_reason: str | None = None
    """The server's own word."""
    error: str | None = None
    cut: bool = False
    """Whether the connection, or the answer's body, ended before the stream did."""
    status: str = ""
    """Of an HTTP response that is an error: `HTTP 429 Too Many Requests, retry after 30 s`."""
    usage: TokenUsage | None = None
    """What the server counted, of all choices together; it stands with the first."""
    is_unconditional: bool = False
    """Whether its next token is scored with nothing before it."""

    def logprob_of_next(self, logprob: float | None) -> float | None:
        """Logprob of its next token; None for the 0 that a server sends where nothing stands before (LMTP, SCO-2)."""
        first, self.is_unconditional = self.is_unconditional, False
        return None if first and logprob == 0 else logprob

    def end(self, time: float, reason: str | None, error: str | None, *, cut: bool = False) -> None:
        """The stream is over; anything after the first ending is ignored."""
        if self.ended is None:
            self.ended, self.finish_reason, self.error, self.cut = time, reason, error, cut

    @property
    def failure(self) -> str | None:
        """Why it failed or was cut off, with the HTTP status; None where it did not."""
        if self.error is None or not self.status:
            return self.error
        return self.status if self.status.startswith(self.error) else f"{self.status}: {self.error}"

    def phase_at(self, moment: float, *, produced: bool) -> Phase:
        """What it does at a moment, or how it ended. produced: whether it has brought a token by then."""
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
    """The stream of a request, or of one further choice of its answer. more: the fields that this kind adds."""
    label = f"{started.label}.{choice}" if choice else started.label
    facts = (started.connection, started.stream_kind, started.model, started.time)
    more["is_unconditional"] = started.is_unconditional
    return kind(index, label, *facts, choice, started.has_request, started.api, **more)


def stream_of(started: RequestStarted, index: int, choice: int) -> Stream:
    """The same, of the plain kind."""
    return new_stream(Stream, started, index, choice)


class OutputEvent(msgspec.Struct, frozen=True, gc=False):
    """One output of a stream: a token, a piece of text without one, an ending, a failure."""

    time: float
    stream: Stream
    token: int | None = None
    """Its id; None over HTTP."""
    text: str | bytes | None = None
    """As the server sent it; bytes of a token that holds part of a character."""
    logprob: float | None = None
    """Nats; finite."""
    finish_reason: str | None = None
    error: str | None = None
    is_piece: bool = False
    """Whether it is a piece of text of unknown tokens: the server names tokens only where logprobs are asked for."""
    is_thought: bool = False
    """Whether it is of what the model thinks before its answer."""
    top: Mapping[str, object] | ChunkToken | None = None
    """Where `alternatives` are read from: the entry of an LMTP frame, or the token of an HTTP answer."""
    call: int | None = None
    """The tool call of its choice that it is a part of, by the API's number; None: of none."""
    tool: str = ""
    """The name of the tool that is called; empty outside of calls."""
    is_tool_name: bool = False
    """Whether the text is that name; all else of a call is its arguments."""

    @property
    def counts(self) -> bool:
        """Whether it counts as a token: it is one, or text without one."""
        return self.token is not None or bool(self.text) or self.logprob is not None

    @property
    def last(self) -> bool:
        """Whether the stream ends with it."""
        return self.finish_reason is not None or self.error is not None

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """What might have been chosen, best first; empty where the server told nothing."""
        if self.top is None:
            return ()
        return self.top.alternatives if isinstance(self.top, ChunkToken) else alternatives(self.top)


StreamEvent: TypeAlias = RequestStarted | OutputEvent
