"""One running stream of LMTP, counted until it is logged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.core.types import GenerateRequest
from lmtool.net.telemetry.request_log import RequestLog

if TYPE_CHECKING:
    from lmtool.core.types import TokenOutput, Usage
    from lmtool.protocol.lmtp.messages import Generate, Score


class StreamRecord:
    """Counts one running stream until it is logged."""

    __slots__ = ("_blank", "_first", "_message", "_output_tokens", "_started", "_usage")

    def __init__(self, connection: int, message: Generate | Score, now: float) -> None:
        request = message.request
        command = "GENERATE" if isinstance(request, GenerateRequest) else "SCORE"
        self._blank = RequestLog(connection, str(request.stream_id), command, request.model, ignored=message.ignored)
        """With what the request's context says: outputs come in another one."""
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
        return replace(
            self._blank,
            prompt_tokens=prompt_tokens,
            output_tokens=self._output_tokens or (self._usage.completion_tokens if self._usage else 0),
            ttft=None if self._first is None else self._first - self._started,
            seconds=now - self._started,
            end=end,
            error=error,
            cached_tokens=self._usage.cached_tokens if self._usage else 0,
            error_code=error_code,
        )
