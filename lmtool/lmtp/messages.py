"""Every LMTP message of both directions, as data.

A `stream_id` is held here, and in the requests inside, as its JSON text (`7`, `"a"`): so any JSON value is echoed as it
was given, and can be a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.types import GenerateRequest, LoadProgress, ScoreRequest, TokenOutput

PROTOCOL_VERSION = 1
"""What MODEL_INFO tells as `lmtp`, and what a client sends as `lmtp` to ask for the extensions (SPEC.md, EXT)."""

MAX_FRAME_BYTES = 4 * 1024 * 1024
"""Of a client's frame: as many as every server reads (SPEC.md, TRA-4)."""

SUBPROTOCOL = "lmtp"
"""Selected of a WebSocket's subprotocols where it is offered: a page that shows a key in another needs one (TRA-12)."""

EXTENSIONS = (
    "cancel",
    "stop",
    "sampling",
    "seed",
    "logprobs_mode",
    "text",
    "score_alternatives",
    "usage",
    "error_code",
    "ignored",
    "progress",
)
"""Names of what this implementation knows beyond the LMTP document, as told by MODEL_INFO."""


@dataclass(frozen=True, slots=True)
class Generate:
    """GENERATE: begin a stream of new tokens."""

    request: GenerateRequest
    extended: bool = False
    """Whether the request has `lmtp`: the client knows the extensions."""
    progress: bool = False
    """Whether to tell how a load proceeds before the first token."""
    ignored: tuple[str, ...] = ()
    """Fields of the request that nobody here knows."""


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


@dataclass(frozen=True, slots=True)
class Cancel:
    """CANCEL: end a stream within one step."""

    stream_id: str
    model: str | None = None
    """Sent because LMQL's server drops a connection whose frame has no `model`; not needed to find the stream."""
    extended: bool = False


ClientMessage: TypeAlias = Generate | Score | ModelInfoRequest | Cancel


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
class RequestFailed:
    """MSG with `error`: a request, or a frame that belongs to none (`stream_id` None), could not be obeyed."""

    stream_id: str | None
    error: str
    error_code: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """MSG with `progress`: how far the model that a request waits for has been loaded."""

    stream_id: str
    progress: LoadProgress


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


ServerMessage: TypeAlias = Tokens | ModelInfoAnswer | RequestFailed | Progress | FieldsIgnored | UnknownMessage
