"""Spans that the SDK keeps in memory."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lmtool.net.telemetry.otel import OtelTracer


def in_memory() -> tuple[OtelTracer, InMemorySpanExporter]:
    """A tracer, and where its finished spans are found."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OtelTracer(provider), exporter
