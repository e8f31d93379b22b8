"""Every LMTP message of both directions, as data.

A `stream_id` is kept here, and in the requests inside, as its JSON text (`7`, `"a"`): so any JSON value is echoed
unchanged, and can be a key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.core.errors import OverloadedError, RateLimitError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.core.errors import LmtoolError
    from lmtool.core.types import GenerateRequest, LoadProgress, ScoreRequest, TokenOutput

PROTOCOL_VERSION = 1
"""`lmtp` of MODEL_INFO, and of a request that asks for the extensions (SPEC.md, EXT)."""

SUBPROTOCOL = "lmtp"
"""WebSocket subprotocol, selected where it is offered: a page that sends a key in another needs one (TRA-12)."""

EXTENSIONS = (
    "cancel",
    "stop",
    "sampling",
    "seed",
    "logprobs_mode",
    "text",
    "tools",
    "mixed_prompt",
    "prefill_only",
    "generated",
    "deadline",
    "cache_salt",
    "logprob_token_ids",
    "score_alternatives",
    "constraint",
    "priority",
    "client",
    "logits_processors",
    "usage",
    "error_code",
    "error_details",
    "ignored",
    "progress",
    "system",
    "list",
    "limits",
    "models",
    "fingerprint",
    "key_limits",
    "reasoning",
    "buffers",
    "watch",
)
"""Names of what this implementation knows beyond the LMTP document, as MODEL_INFO lists them (EXT-6)."""


def wire_code(code: str | None) -> str | None:
    """The `error_code` that clients get (EXT-4): a limit of the client's own is a kind of overload to them."""
    return OverloadedError.code if code == RateLimitError.code else code


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """What a server says of a stream beside its tokens: why they do not come, or will end."""

    kind: Literal["queued", "slow", "draining"]
    """It waits for its turn; it is computed, and brings nothing; the server is shutting down."""
    message: str
    """A sentence for people."""
    place: int | None = None
    """`queued`: in the order in which waiting streams begin, from 1."""
    seconds: float | None = None
    """`queued`: until it begins, estimated, None where nothing was measured; `slow`: since it last brought something;
    `draining`: until all that still runs is ended."""


@dataclass(frozen=True, slots=True)
class Generate:
    """GENERATE: begin a stream of new tokens."""

    request: GenerateRequest
    extended: bool = False
    """True if the request has `lmtp`: the client knows the extensions."""
    progress: bool = False
    """True to report a load before the first token."""
    ignored: tuple[str, ...] = ()
    """Unknown fields of the request."""


@dataclass(frozen=True, slots=True)
class Score:
    """SCORE: the log-probability of given tokens."""

    request: ScoreRequest
    extended: bool = False
    progress: bool = False
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelInfoRequest:
    """MODEL_INFO: what is served under a name (None: the only model)."""

    stream_id: str
    model: str | None = None
    extended: bool = False
    progress: bool = False
    ignored: tuple[str, ...] = ()
    listing: bool = False
    """True to list all that is served instead, at once."""


@dataclass(frozen=True, slots=True)
class ModelsRequest:
    """MODELS: list all that is served, after a model was loaded or unloaded where the request names one."""

    stream_id: str
    load: str | None = None
    unload: str | None = None
    extended: bool = False
    progress: bool = False
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BufferRequest:
    """BUFFER: append to a named segment of the connection, limit its life, or drop it."""

    stream_id: str
    name: str
    append: tuple[str | tuple[int, ...], ...] | None = None
    """Texts and token ids in a row; `()` only makes the buffer."""
    drop: bool = False
    ttl: float | None = None
    """Seconds without use after which its ids are given back."""
    model: str | None = None
    """Whose tokenizer reads the texts; None: the only one."""
    extended: bool = False
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """CANCEL: end a stream within one step."""

    stream_id: str
    model: str | None = None
    """Sent because LMQL's server drops a connection whose frame has no `model`; not needed to find the stream."""
    extended: bool = False


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """WATCH: tell what goes over the server's other connections from now on."""

    stream_id: str
    extended: bool = False
    ignored: tuple[str, ...] = ()


ClientMessage: TypeAlias = Generate | Score | ModelInfoRequest | ModelsRequest | BufferRequest | WatchRequest | Cancel


@dataclass(frozen=True, slots=True)
class Tokens:
    """TOKEN: events of any number of streams, in order; each `stream_id` is the id's JSON text."""

    outputs: tuple[TokenOutput, ...]


@dataclass(frozen=True, slots=True)
class ModelInfoAnswer:
    """MSG with `model_info`: an object from most servers, a bare string from some (`"<unavailable>"`)."""

    stream_id: str
    model_info: Mapping[str, object] | str


@dataclass(frozen=True, slots=True)
class ModelsAnswer:
    """MSG with `models`: what is served, as `model_info.entry_to_wire` writes each."""

    stream_id: str
    models: Sequence[object]


@dataclass(frozen=True, slots=True)
class BufferAnswer:
    """MSG with `buffer`: a buffer was changed."""

    stream_id: str
    name: str
    length: int
    """Ids that it has now; 0 after a drop."""


@dataclass(frozen=True, slots=True)
class Watched:
    """MSG with `watch`: what went over other connections."""

    stream_id: str
    time: float
    """The server's clock, in seconds, when this was sent; that of the events too."""
    events: Sequence[object] = ()
    """Each as a line of a trace has it (trace/FORMAT.md), in order."""
    lost: int = 0
    """Events before these that were dropped, because the client was too slow for them."""


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """MSG with `error`: a request, or a frame that belongs to none (`stream_id` None), was refused or failed."""

    stream_id: str | None
    error: str
    error_code: str | None = None
    hints: tuple[str, ...] = field(default=(), compare=False)
    """The sentences with which `error` ends, as far as they are known (EXT-7)."""
    retryable: bool | None = field(default=None, compare=False)
    """None: what the code says (ERR-8)."""
    retry_after: int = field(default=0, compare=False)
    """Seconds; 0: not known."""

    @classmethod
    def of(cls, stream_id: str | None, error: LmtoolError) -> RequestFailed:
        """The failure of a request by this error, with everything that is known of it."""
        return cls(stream_id, error.sentence, wire_code(error.code), error.hints, error.retryable, error.retry_after)


@dataclass(frozen=True, slots=True)
class Progress:
    """MSG with `progress`: how far the model that a request waits for has been loaded."""

    stream_id: str
    progress: LoadProgress


@dataclass(frozen=True, slots=True)
class System:
    """MSG with `system`: what holds a stream up."""

    stream_id: str
    system: SystemMessage


@dataclass(frozen=True, slots=True)
class FieldsIgnored:
    """MSG with `ignored`: fields of a request that had no effect."""

    stream_id: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnknownMessage:
    """A command, or a MSG, that this implementation does not know; harmless."""

    command: str
    stream_id: str | None = None


ServerMessage: TypeAlias = (
    Tokens
    | ModelInfoAnswer
    | ModelsAnswer
    | BufferAnswer
    | Watched
    | RequestFailed
    | Progress
    | System
    | FieldsIgnored
    | UnknownMessage
)


def lists_only(request: ModelInfoRequest | ModelsRequest) -> bool:
    """True if a request only asks what is served."""
    if isinstance(request, ModelsRequest):
        return request.load is None and request.unload is None
    return request.listing


def subject_of(request: ModelInfoRequest | ModelsRequest | BufferRequest | WatchRequest) -> str | None:
    """The model that a request is about."""
    if isinstance(request, WatchRequest):
        return None
    return (request.load or request.unload) if isinstance(request, ModelsRequest) else request.model
