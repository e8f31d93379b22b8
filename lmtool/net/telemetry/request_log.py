"""What a server logs of a request: counts, times, names and how it ended, never a prompt, a text or a key."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import (
    ConnectError,
    ModelLoadError,
    OutOfMemoryError,
    RequestError,
    ResourceError,
    TimeLimitError,
)
from lmtool.net.access.caller import caller_name
from lmtool.net.telemetry.trace_context import current_trace

if TYPE_CHECKING:
    from lmtool.net.telemetry.observation import Observation

COMMANDS = frozenset({"GENERATE", "SCORE", "MODEL_INFO", "MODELS", "BUFFER", "WATCH", "CANCEL"})
LONGEST = 200
"""Characters of what a client has chosen: an id, a name, a path."""
_OWN_FAULTS = frozenset(
    kind.code for kind in (ConnectError, OutOfMemoryError, ModelLoadError, ResourceError, TimeLimitError)
)
"""Kinds of errors whose sentences are the server's own from the first to the last word."""
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")


def _key() -> str | None:
    return caller_name() or None


def _traceparent() -> str | None:
    trace = current_trace.get()
    return None if trace is None else trace.traceparent


@dataclass(frozen=True, slots=True)
class RequestLog:
    """One finished request, or one refused frame. Holds counts and ids, never a prompt or a text."""

    connection: int
    """Connections are counted from 1; the one of stdin and stdout is 0."""
    stream_id: str
    """The id's JSON text; `null` where the frame has none."""
    command: str
    """One of `COMMANDS`, an action's name, or what the client sent in its place."""
    model: str | None = None
    """As the client named it."""
    prompt_tokens: int | None = None
    """None for a text whose ids were not counted."""
    output_tokens: int = 0
    ttft: float | None = None
    """Seconds from the request to its first token."""
    seconds: float = 0.0
    """From the request to its end."""
    end: str | None = None
    """`stop`, `length`, `cancelled`, of MODELS `load` or `unload`, `left` by a client that is gone; None on error."""
    error: str | None = None
    ignored: tuple[str, ...] = ()
    """Fields of the request that had no effect."""
    cached_tokens: int = 0
    """Of the prompt's, those that were not computed again."""
    error_code: str | None = None
    """The kind of `error` where a stream ended with it: `LmtoolError.code`."""
    protocol: str | None = None
    """Whose connections are counted, where it is not LMTP: `evergreen` for its sessions, `gateway` for its streams."""
    key: str | None = field(default_factory=_key)
    """The name of the client's key; None where there are no keys of a file."""
    traceparent: str | None = field(default_factory=_traceparent)
    """Of the request's trace, as its client sent it; None where it sent none."""

    @property
    def tokens_per_second(self) -> float | None:
        """Rate after the first token; None for fewer than two tokens."""
        if self.ttft is None or self.output_tokens < 2 or self.seconds <= self.ttft:
            return None
        return (self.output_tokens - 1) / (self.seconds - self.ttft)


@dataclass(frozen=True, slots=True)
class HttpLog:
    """One HTTP request that was answered."""

    method: str
    path: str
    """Without the query."""
    status: int | None
    """None where the client left before the answer began."""
    seconds: float
    """To the answer's end."""
    streams: int = 0
    """Streams of models or pools that it took."""
    model: str | None = None
    """Of the first of them, as clients are shown it."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """These three of all streams together."""
    ttft: float | None = None
    """Seconds to the first token."""
    end: str | None = None
    """How the last stream ended, `error` where it failed; None without streams."""
    key: str | None = field(default_factory=_key)
    traceparent: str | None = field(default_factory=_traceparent)
    """This and `key` as in `RequestLog`."""


def http_log(method: str, path: str, status: int | None, seconds: float, streams: list[Observation]) -> HttpLog:
    """The log of a request with these streams. Call it in the context of the request."""
    first_tokens = [stream.first_token for stream in streams if stream.first_token is not None]
    return HttpLog(
        method,
        path,
        status,
        seconds,
        len(streams),
        streams[0].model if streams else None,
        sum(stream.usage.prompt_tokens for stream in streams),
        sum(stream.usage.completion_tokens for stream in streams),
        sum(stream.usage.cached_tokens for stream in streams),
        min(first_tokens, default=None),
        streams[-1].ending if streams else None,
    )


def without_content(entry: RequestLog | HttpLog) -> dict[str, Any]:
    """The fields for a machine's log, where nothing may be that a client has written beside ids and names.

    The sentence of an error that the request itself has caused quotes what is wrong, and the name of its model may be
    none; its code says the kind.
    """
    fields = {name: value for name, value in asdict(entry).items() if value is not None}
    for name in ("stream_id", "model", "path", "method"):
        if name in fields:
            fields[name] = fields[name][:LONGEST]
    if isinstance(entry, RequestLog):
        fields["command"] = entry.command if entry.command in COMMANDS else "other"
        fields["ignored"] = [name for name in entry.ignored if _FIELD.fullmatch(name)]
        if entry.error is not None:
            fields["error_code"] = entry.error_code or RequestError.code
            if fields["error_code"] not in _OWN_FAULTS:
                del fields["error"]
                fields.pop("model", None)  # anything may have been asked for
    return fields
