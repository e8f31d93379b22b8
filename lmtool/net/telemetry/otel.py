"""Spans over OpenTelemetry's SDK, sent as its own environment variables say; needs the extra `otel`."""

from __future__ import annotations

import logging
import os
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING

from lmtool import __version__
from lmtool.core.errors import ResourceError
from lmtool.net.telemetry.trace_context import TraceContext

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from lmtool.net.telemetry.spans import Kind, Value

INSTALL = "pip install 'lmtool[otel]'"
_SWITCHES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")
"""One of these in the environment asks for spans: without it nothing is sent, wherever a collector would be."""
_log = logging.getLogger(__name__)


class OtelSpan:
    """See `spans.Span`."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def trace(self) -> TraceContext:
        """See `spans.Span.trace`."""
        own = self._span.get_span_context()
        parent = f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"
        return TraceContext(parent, own.trace_state.to_header())

    def set(self, attributes: Mapping[str, Value]) -> None:
        """See `spans.Span.set`."""
        self._span.set_attributes(attributes)

    def end(self, error_type: str | None = None) -> None:
        """See `spans.Span.end`. Its status has no sentence: an error's may quote what a client has sent."""
        if error_type is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_attribute("error.type", error_type)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


class OtelTracer:
    """See `spans.Tracer`."""

    def __init__(self, provider: TracerProvider) -> None:
        """provider: of the SDK, closed with this."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("lmtool", __version__)
        self._kinds = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT}
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, name: str, kind: Kind, attributes: Mapping[str, Value], parent: TraceContext | None) -> OtelSpan:
        """See `spans.Tracer.begin`."""
        from opentelemetry.context import Context

        context = Context() if parent is None else self._propagator.extract(parent.headers, Context())
        return OtelSpan(self._tracer.start_span(name, context, self._kinds[kind], attributes))

    def close(self) -> None:
        """See `spans.Tracer.close`."""
        self._provider.shutdown()


def tracer_from_environment(environment: Mapping[str, str] = os.environ) -> OtelTracer | None:
    """What the environment asks for; None where it asks for nothing, or the packages are missing, which is logged.

    Imports OpenTelemetry only where it is asked for. Raises `ResourceError` for an exporter that is not installed.
    """
    exporters = [name.strip() for name in environment.get("OTEL_TRACES_EXPORTER", "otlp").split(",")]
    wanted = any(environment.get(name) for name in _SWITCHES) and "none" not in exporters
    if not wanted or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        asked = next(name for name in _SWITCHES if environment.get(name))
        _log.warning("%s is set, and no spans are sent: install  %s", asked, INSTALL)
        return None
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = "OTEL_SERVICE_NAME" in environment or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {"service.name": "lmtool"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in _exporters(exporters, environment):
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return OtelTracer(provider)


def _exporters(names: Sequence[str], environment: Mapping[str, str]) -> list[SpanExporter]:
    """The exporters of these names, as packages register them. Raises `ResourceError` for one that is not there."""
    installed = {entry.name: entry for entry in entry_points(group="opentelemetry_traces_exporter")}
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    found = []
    for name in filter(None, names):
        full = name if name != "otlp" else f"otlp_proto_{'grpc' if protocol == 'grpc' else 'http'}"
        if full not in installed:
            package = full.replace("_", "-")
            raise ResourceError(
                f"there is no exporter {full} for OpenTelemetry's spans here",
                f"install it:  pip install opentelemetry-exporter-{package}",
                f"or choose one of OTEL_TRACES_EXPORTER={','.join(sorted(installed))}",
            )
        found.append(installed[full].load()())
    return found
