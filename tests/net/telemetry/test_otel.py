"""Spans by OpenTelemetry's GenAI conventions, over its SDK; and nothing of it where nobody asks for spans."""

from __future__ import annotations

import gzip
import logging
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import SpanKind, StatusCode

from lmtool.core.errors import ResourceError
from lmtool.core.types import ChatMessage, ChatPrompt, GenerateRequest, SamplingParams, ScoreRequest
from lmtool.net.telemetry import otel
from lmtool.net.telemetry.observed_model import ObservedModel
from lmtool.net.telemetry.otel import tracer_from_environment
from lmtool.net.telemetry.telemetry import Telemetry
from lmtool.net.telemetry.trace_context import TraceContext, current_trace, within_trace
from tests.inference.engine.shelf import turn
from tests.net.telemetry.in_memory_spans import in_memory
from tests.net.telemetry.test_trace_context import GOOD, PARENT, TRACE
from tests.scripted_model import ScriptedModel

CANARY = "canary-content"


class Rig:
    """An observed model of manual steps, and its spans."""

    def __init__(self) -> None:
        self.tracer, self.spans = in_memory()
        self.model = Traced(manual=True)
        self.observed = ObservedModel(self.model, self.model, Telemetry(tracer=self.tracer))

    async def ask(self, request: GenerateRequest | ScoreRequest, steps: int) -> Any:
        """Its span, once it has ended."""
        self.spans.clear()
        self.observed.submit(request, lambda _: None)
        for _ in range(steps):
            self.model.step()
        await turn()
        [span] = self.spans.get_finished_spans()
        return span


class Traced(ScriptedModel):
    """A model that notes the trace in which streams are submitted."""

    trace: TraceContext | None = None

    def submit(self, *given: Any) -> Any:
        """See `TokenModel`."""
        self.trace = current_trace.get()
        return super().submit(*given)


async def test_a_stream_is_a_span_with_the_names_of_the_conventions() -> None:
    """Operation, model, parameters, tokens, ending, first token; part of its client's trace, and a part for others."""
    rig = Rig()
    sampling = SamplingParams(max_tokens=3, temperature=0.5, top_p=0.9, top_k=7, seed=11, stop=(CANARY,))
    with within_trace(TraceContext(GOOD, "vendor=1")):
        span = await rig.ask(GenerateRequest("a", (1, 2), sampling), 3)
    assert (span.name, span.kind, span.status.status_code) == (
        *("text_completion scripted", SpanKind.SERVER),
        StatusCode.UNSET,
    )
    assert dict(span.attributes) | {"gen_ai.response.time_to_first_chunk": 0.0} == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "lmtool",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.seed": 11,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.response.model": "scripted",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.response.time_to_first_chunk": 0.0,
        "gen_ai.usage.input_tokens": 2,
        "gen_ai.usage.output_tokens": 3,
    }
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    own = f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert rig.model.trace == TraceContext(own, "vendor=1")
    assert CANARY not in span.to_json()


async def test_chats_scores_and_errors() -> None:
    """A conversation is `chat`; an error has its kind and no sentence, which may quote the request."""
    rig = Rig()
    talk = ChatPrompt((ChatMessage("user", CANARY),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.model, "check", lambda _request: None)
        span = await rig.ask(GenerateRequest("a", talk, SamplingParams(max_tokens=1)), 1)
    assert (span.name, span.parent, CANARY in span.to_json()) == ("chat scripted", None, False)
    assert (await rig.ask(ScoreRequest("a", (1,), (2,)), 1)).name == "score scripted"
    refused = await rig.ask(GenerateRequest("a", (1,), model=CANARY), 0)
    assert (refused.status.status_code, refused.status.description) == (StatusCode.ERROR, None)
    assert (refused.name, refused.attributes["error.type"]) == ("text_completion", "unknown_model")
    assert CANARY not in refused.to_json()
    left = GenerateRequest("a", (1,))
    rig.spans.clear()
    rig.observed.submit(left, lambda _: None).cancel()
    rig.model.step()
    [span] = rig.spans.get_finished_spans()
    assert (span.attributes["gen_ai.response.finish_reasons"], span.status.status_code) == (
        ("cancelled",),
        StatusCode.UNSET,
    )


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_SERVICE_NAME": "mine"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "True", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
    ],
)
def test_nothing_is_sent_unless_the_environment_asks_for_it(environment: dict[str, str]) -> None:
    """Being installed is not enough."""
    assert tracer_from_environment(environment) is None


def test_nothing_is_imported_unless_the_environment_asks_for_it() -> None:
    """A server without spans pays for none of it."""
    code = (
        "import sys, lmtool.serving.run, lmtool.serving.service, lmtool.gateway.pools.attempt_span\n"
        "from lmtool.serving.config import ServiceConfig\n"
        "from lmtool.net.telemetry.otel import tracer_from_environment\n"
        "lmtool.serving.service.Service(ServiceConfig(), tracer=tracer_from_environment({}))\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_without_the_packages_a_warning_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The variables may be meant for other programs: the server goes on."""
    monkeypatch.setattr(otel, "find_spec", lambda _name: None)
    with caplog.at_level(logging.WARNING):
        assert tracer_from_environment({"OTEL_TRACES_EXPORTER": "otlp"}) is None
    assert "OTEL_TRACES_EXPORTER is set" in caplog.text
    assert "pip install 'lmtool[otel]'" in caplog.text


def test_an_exporter_that_is_not_there_is_named() -> None:
    """With what to install."""
    with pytest.raises(ResourceError, match="no exporter otlp_proto_grpc") as caught:
        tracer_from_environment({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert "opentelemetry-exporter-otlp-proto-grpc" in caught.value.hints[0]


def test_spans_reach_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over OTLP, where the standard variables say, under the service's name."""
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the library's name
            data = self.rfile.read(int(self.headers["content-length"]))
            bodies.append(gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_given: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        answering = threading.Thread(target=server.serve_forever)
        answering.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        tracer = tracer_from_environment()
        assert tracer is not None
        tracer.begin("chat gpt2", "server", {"gen_ai.operation.name": "chat"}, TraceContext(GOOD)).end()
        tracer.close()
        server.shutdown()
        answering.join()
    [resource] = ExportTraceServiceRequest.FromString(bodies[0]).resource_spans
    names = {one.key: one.value.string_value for one in resource.resource.attributes}
    [span] = resource.scope_spans[0].spans
    assert (names["service.name"], span.name, span.trace_id.hex()) == ("lmtool", "chat gpt2", TRACE)
