"""What observes the streams of a server, whatever their wire: metrics, spans, and a log where the wire has none."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from lmtool.core.types import GenerateRequest
from lmtool.net.access.caller import caller_name
from lmtool.net.telemetry.observation import Observation, current_streams
from lmtool.net.telemetry.request_log import RequestLog
from lmtool.net.telemetry.request_metrics import RequestMetrics
from lmtool.net.telemetry.spans import OWN, operation_of, request_attributes
from lmtool.net.telemetry.trace_context import current_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.core.types import ScoreRequest
    from lmtool.net.telemetry.spans import Span, Tracer, Value


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The one place where streams are observed. Belongs to one event loop."""

    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    log: Callable[[RequestLog], None] = lambda _entry: None
    """Called with each stream that ended and that nobody else logs."""
    clock: Callable[[], float] = time.perf_counter
    """That of `interfaces.Timed`."""

    tracer: Tracer | None = None
    """Begins spans; None: there are none."""

    def observe(self, name: str | Callable[[], str], request: GenerateRequest | ScoreRequest) -> Observation:
        """The observation of a stream that is about to be submitted; call it in its context.

        name: see `Observation`.
        """
        latency = isinstance(request, GenerateRequest) and not request.prefill_only
        span = None
        if self.tracer is not None:
            span = self._begin(self.tracer, operation_of(request), name, request_attributes(request))
        return Observation(self.metrics, name, caller_name(), self.clock(), latency=latency, span=span)

    def observe_pool(self, name: str) -> Observation:
        """As `observe`, of a pool's request that is no stream of a `TokenModel`; logged where it is no HTTP request."""
        on_end = None
        if current_streams.get() is None:
            on_end = partial(self._log_end, RequestLog(0, "null", "GENERATE", name, protocol="gateway"))
        span = None if self.tracer is None else self._begin(self.tracer, "chat", name, {})
        return Observation(self.metrics, name, caller_name(), self.clock(), on_end=on_end, span=span)

    @staticmethod
    def _begin(tracer: Tracer, operation: str, name: str | Callable[[], str], attributes: Mapping[str, Value]) -> Span:
        """The span of a request that has just come, part of the trace that its client names."""
        model = name if isinstance(name, str) else None  # else it is loaded on demand, and known at the end
        about: dict[str, Value] = {"gen_ai.operation.name": operation, "gen_ai.provider.name": OWN, **attributes}
        if model is not None:
            about["gen_ai.request.model"] = model
        if key := caller_name():
            about["lmtool.key"] = key
        return tracer.begin(f"{operation} {model}" if model else operation, "server", about, current_trace.get())

    def _log_end(self, blank: RequestLog, stream: Observation) -> None:
        failed = stream.ending == "error"
        self.log(
            replace(
                blank,
                prompt_tokens=stream.usage.prompt_tokens,
                output_tokens=stream.usage.completion_tokens,
                cached_tokens=stream.usage.cached_tokens,
                ttft=stream.first_token,
                seconds=stream.seconds,
                end=None if failed else stream.ending,
                error="the stream failed" if failed else None,
                error_code=stream.error_code,
            )
        )
