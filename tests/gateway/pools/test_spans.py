"""A request to a pool as a trace: its span, and below it one for each member that was called."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from lmtool.core.errors import ConnectError
from lmtool.gateway.pools.attempt_span import in_span
from lmtool.gateway.pools.backend import Reply
from lmtool.gateway.pools.config import LOCAL_POOL
from tests.fake_answers import Words
from tests.fake_upstream import BAD, Behaviour, FakeUpstream
from tests.gateway.pools.running import CHAT, KEY, MESSAGE, gateway, member, pool
from tests.net.telemetry.in_memory_spans import in_memory
from tests.net.telemetry.test_trace_context import GOOD, PARENT, TRACE


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/default/chat", MESSAGE), ("/v1/chat/completions", CHAT), ("/v1/chat/completions", CHAT | {"stream": True})],
)
async def test_attempts_are_child_spans(path: str, body: Any) -> None:
    """Failed ones too, with the kind of failure; each member is told of its own span, so that its spans come below."""
    tracer, exporter = in_memory()
    async with FakeUpstream(BAD["500"]) as one, FakeUpstream() as two:
        async with (
            gateway(pool(member("a", one), member("b", two)), tracer=tracer) as served,
            served.session.post(served.url + path, json=body, headers={"traceparent": GOOD}) as response,
        ):
            assert response.status == 200
            await response.read()
        failed, good, request = exporter.get_finished_spans()
        assert (request.kind, f"{request.context.trace_id:032x}", f"{request.parent.span_id:016x}") == (
            *(SpanKind.SERVER, TRACE),
            PARENT,
        )
        assert (request.attributes["gen_ai.request.model"], request.status.status_code) == ("default", StatusCode.UNSET)
        for span, upstream, name in ((failed, one, "a"), (good, two, "b")):
            assert (span.kind, span.name, span.parent.span_id) == (
                *(SpanKind.CLIENT, f"chat model-{name}"),
                request.context.span_id,
            )
            assert (span.attributes["gen_ai.provider.name"], span.attributes["lmtool.member"]) == ("openai", name)
            assert span.attributes["server.port"] == int(upstream.url.rpartition(":")[2])
            assert upstream.received[0].headers["traceparent"] == f"00-{TRACE}-{span.context.span_id:016x}-01"
        assert (failed.status.status_code, "error.type" in good.attributes) == (StatusCode.ERROR, False)
        assert failed.attributes["error.type"] == "fault"
        assert good.attributes["gen_ai.usage.output_tokens"] == request.attributes["gen_ai.usage.output_tokens"]
        for span in (failed, good, request):
            assert KEY not in span.to_json()
            assert MESSAGE["message"]["content"] not in span.to_json()


@pytest.mark.parametrize(
    ("reason", "counted"), [("length", "length"), ("content_filter", "content_filter"), ("x", "stop")]
)
@pytest.mark.parametrize(("path", "body"), [("/v1/default/chat", MESSAGE), ("/v1/chat/completions", CHAT)])
async def test_the_finish_reason(path: str, body: Any, reason: str, counted: str) -> None:
    """Of the member's answer, in the span and on `/metrics`, where it is one that is known."""
    words = Words(reason=reason)
    tracer, exporter = in_memory()
    async with (
        FakeUpstream(Behaviour(words=words)) as one,
        gateway(pool(member("a", one)), tracer=tracer) as served,
        served.session.post(served.url + path, json=body) as response,
    ):
        await response.read()
        async with served.session.get(served.url + "/metrics") as metrics:
            page = await metrics.text()
    request = exporter.get_finished_spans()[-1]
    assert request.attributes["gen_ai.response.finish_reasons"] == (counted,)
    assert f'"{counted}"' in page


async def test_a_request_that_all_members_fail() -> None:
    """Its span ends with an error, its attempts with theirs."""
    tracer, exporter = in_memory()
    async with FakeUpstream(BAD["500"]) as one:
        async with gateway(pool(member("a", one)), tracer=tracer) as served:
            await served.post("/v1/default/chat")
        attempt, request = exporter.get_finished_spans()
        assert [span.status.status_code for span in (attempt, request)] == [StatusCode.ERROR] * 2
        assert one.received[0].headers["traceparent"][3:35] == f"{request.context.trace_id:032x}"


@pytest.mark.parametrize(
    ("problem", "kind"), [(ZeroDivisionError(), "ZeroDivisionError"), (ConnectError(""), "connection")]
)
async def test_no_failure_looks_like_success(problem: Exception, kind: str) -> None:
    """A bug ends the span of a call with an error as well, and so does an error of a kind that none expects there."""
    tracer, exporter = in_memory()
    member: Any = SimpleNamespace(config=LOCAL_POOL.members[0], id="local")

    async def events() -> AsyncGenerator[list[Any], None]:
        raise problem
        yield []

    with pytest.raises(type(problem)):
        await anext(in_span(events(), tracer, member, Reply()))
    [span] = exporter.get_finished_spans()
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, kind)
