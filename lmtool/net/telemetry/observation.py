"""One stream as it is observed: when it came, began, brought tokens and ended."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from lmtool.core.interfaces import began_at
from lmtool.core.types import Usage
from lmtool.net.telemetry.spans import usage_attributes

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.core.interfaces import StreamHandle
    from lmtool.core.metrics import Histogram
    from lmtool.net.telemetry.request_metrics import RequestMetrics, Series
    from lmtool.net.telemetry.spans import Span
    from lmtool.net.telemetry.trace_context import TraceContext


class Observation:
    """Call `token` for each of its tokens, or pieces of text, and `end` once. Times are by `time.perf_counter`."""

    __slots__ = (
        *("_gaps", "_last", "_latency", "_metrics", "_name", "_on_end", "_series", "_span", "_started"),
        *("ending", "error_code", "first_token", "handle", "key", "seconds", "tokens", "usage"),
    )

    def __init__(
        self,
        metrics: RequestMetrics,
        name: str | Callable[[], str],
        key: str,
        started: float,
        *,
        latency: bool = True,
        on_end: Callable[[Observation], None] | None = None,
        span: Span | None = None,
    ) -> None:
        """started: when the request came. key: the name of its key, empty where there are no keys.

        name: its model's, as clients are shown it; where that is not known before the model is loaded, what finds it
        once the stream has brought something. latency: whether its tokens come one after the other, as those of SCORE
        and of requests that only prefill do not. on_end: called when the stream has ended. span: ended with it.
        """
        self._metrics = metrics
        self._name = name
        self._series: Series | None = None
        self._started = started
        self._last: float | None = None
        self._on_end = on_end
        self._span = span
        self.key = key
        self._latency = latency
        self._gaps: Histogram | None = None
        """Where gaps count, once a token has come."""
        self.tokens = 0
        """So far."""
        self.handle: StreamHandle | None = None
        """Of the stream, which may tell when its turn came."""
        self.first_token: float | None = None
        """Seconds from its arrival to its first token."""
        self.seconds = 0.0
        """To its end; this and what follows once it has ended."""
        self.usage = Usage(0, 0)
        self.ending: str | None = None
        """Its finish reason, or `error`; None while it runs."""
        self.error_code: str | None = None
        """The kind of the error that ended it, where that is known."""
        streams = current_streams.get()
        if streams is not None:
            streams.append(self)

    @property
    def model(self) -> str:
        """Its model's name, as clients are shown it."""
        return self._name if isinstance(self._name, str) else self._name()

    @property
    def trace(self) -> TraceContext | None:
        """What calls for it are part of; None where there are no spans."""
        return None if self._span is None else self._span.trace

    @property
    def series(self) -> Series:
        """Where it is counted."""
        if self._series is None:
            self._series = self._metrics.series(self.model, self.key)
        return self._series

    def token(self, now: float) -> None:
        """A token has come."""
        self.tokens += 1
        last, self._last = self._last, now
        if last is None:
            self._begin(now)
        elif self._gaps is not None:
            self._gaps.observe(now - last)

    def _begin(self, now: float) -> None:
        self.first_token = now - self._started
        if self._latency:
            self._gaps = self.series.gaps
            self.series.first_tokens.observe(self.first_token)
        began = began_at(self.handle)
        if began is not None:
            self.series.queue.observe(max(0.0, began - self._started))

    def end(self, reason: str | None, usage: Usage | None, now: float, error_code: str | None = None) -> None:
        """It has ended. reason: None for an error; usage: as the model counts, None where it does not."""
        self.usage = usage or Usage(0, self.tokens)
        self.ending, self.error_code, self.seconds = reason or "error", error_code, now - self._started
        self.series.end(self.ending, self.seconds, self.usage)
        if self._span is not None:
            self._end_span(self._span, reason)
        if self._on_end is not None:
            self._on_end(self)

    def _end_span(self, span: Span, reason: str | None) -> None:
        span.set({"gen_ai.response.model": self.model, **usage_attributes(self.usage)})
        if reason is not None:
            span.set({"gen_ai.response.finish_reasons": [reason]})
        if self.first_token is not None:
            span.set({"gen_ai.response.time_to_first_chunk": self.first_token})
        began = began_at(self.handle)
        if began is not None:
            span.set({"lmtool.queue_seconds": max(0.0, began - self._started)})
        span.end(None if reason is not None else self.error_code or "error")


current_streams: ContextVar[list[Observation] | None] = ContextVar("current_streams", default=None)
"""The streams of the HTTP request that is being answered; None: it is a connection, whose requests are logged each."""
