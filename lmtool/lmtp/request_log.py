"""One line of a server's log for each request: connection, command, tokens, times, how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.types import GenerateRequest

if TYPE_CHECKING:
    from lmtool.lmtp.messages import Generate, Score
    from lmtool.types import TokenOutput, Usage


@dataclass(frozen=True, slots=True)
class RequestLog:
    """One finished request, or one refused frame. Holds counts and ids, never a prompt or a text."""

    connection: int
    """Connections are counted from 1; the one of stdin and stdout is 0."""
    stream_id: str
    """The id's JSON text; `null` where the frame has none."""
    command: str
    """`GENERATE`, `SCORE`, `MODEL_INFO`, `MODELS`, `BUFFER`, `CANCEL`, or what the client sent in its place."""
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
    """Whose connections are counted, where it is not LMTP: `evergreen` for its sessions."""

    @property
    def tokens_per_second(self) -> float | None:
        """Rate after the first token; None for fewer than two tokens."""
        if self.ttft is None or self.output_tokens < 2 or self.seconds <= self.ttft:
            return None
        return (self.output_tokens - 1) / (self.seconds - self.ttft)


class StreamRecord:
    """Counts one running stream until it is logged."""

    __slots__ = ("_connection", "_first", "_message", "_output_tokens", "_started", "_usage")

    def __init__(self, connection: int, message: Generate | Score, now: float) -> None:
        self._connection = connection
        self._message = message
        self._started = now
        self._first: float | None = None
        self._output_tokens = 0
        self._usage: Usage | None = None

    def add(self, output: TokenOutput, now: float) -> None:
        """Count one output."""
        self._usage = output.usage or self._usage
        if output.token is not None:
            self._output_tokens += 1
        if output.token is not None or output.text:  # a pool gives text without ids
            self._first = self._first or now

    def log(
        self, now: float, *, end: str | None = None, error: str | None = None, error_code: str | None = None
    ) -> RequestLog:
        """The finished record."""
        request = self._message.request
        prompt_tokens = self._usage.prompt_tokens if self._usage else None
        if prompt_tokens is None and isinstance(request.prompt, tuple):
            prompt_tokens = len(request.prompt)
        return RequestLog(
            self._connection,
            str(request.stream_id),
            "GENERATE" if isinstance(request, GenerateRequest) else "SCORE",
            request.model,
            prompt_tokens,
            self._output_tokens or (self._usage.completion_tokens if self._usage else 0),
            None if self._first is None else self._first - self._started,
            now - self._started,
            end,
            error,
            self._message.ignored,
            self._usage.cached_tokens if self._usage else 0,
            error_code,
        )
