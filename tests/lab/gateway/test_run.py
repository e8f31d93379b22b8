"""`lab gateway`: real processes under a small load, its figures and card; what ends it."""

from __future__ import annotations

import io
import json
import sys

import pytest
from rich.console import Console

from lmtool.core.errors import ConnectError, ResourceError, ServerError
from lmtool.measure.bench.result import FORMAT
from lmtool.net.http_client import open_client
from lmtool.protocol.providers.answer_events import ChoiceFinished, TextDelta
from lmtool.protocol.providers.answer_reader import AnswerReader
from lmtool.protocol.providers.body_parts import Form
from tests.fake_upstream import Behaviour, FakeUpstream
from tests.lab.gateway.peers import WORDS, streamed_answer, whole_answer
from tests.lab.gateway.processes import FORWARDER, OPENAI, UNIFIED, Route
from tests.lab.gateway.run import GatewayBench, Phase, _load, _standing, as_outcome, gateway_card, run


def ignore(_line: str) -> None:
    """No progress is shown."""


@pytest.mark.parametrize("form", ["whole", "events"])
def test_the_provider_answers_as_openai_does(form: Form) -> None:
    """Our own reader finds all words and an ending in both forms, so each gateway has a true answer to read."""
    reader = AnswerReader("chat", form)
    events = [*reader.feed(whole_answer() if form == "whole" else streamed_answer()), *reader.end()]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "".join(WORDS)
    assert any(isinstance(event, ChoiceFinished) for event in events)


@pytest.mark.parametrize("stream", [False, True])
async def test_real_gateways(stream: bool) -> None:
    """Each has CPU time, memory and a start of its own; the card and the outcome have them all."""
    report = await run(GatewayBench(requests=20, concurrency=4, rounds=2, stream=stream), ignore)
    assert list(report.standings) == [FORWARDER, UNIFIED, OPENAI]
    for standing in report.standings.values():
        assert standing.rate.median > 0
        assert 20 < standing.memory_mb < 200
        assert standing.start_s > 0
    assert report.standings[FORWARDER].over_forwarder.median == pytest.approx(1.0)
    result = as_outcome(report)
    assert (result[FORMAT], result["bench"]) == (1, "gateway")
    assert {f"{name}: cpu_ms" for name in report.standings} < set(result["metrics"])
    json.dumps(result)
    console = Console(file=io.StringIO(), width=120)
    console.print(gateway_card(report))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(name in shown for name in report.standings)
    assert ("streamed" in shown) is stream


def test_figures_of_a_gateway() -> None:
    """CPU time over the forwarder's, and latency beyond the provider's, both within a round; memory since the first."""
    route = Route("lmtool", "http://x", b"", process=1, start_s=0.5)
    phases = {
        "direct": [Phase(0, 1, 1.0, 2.0), Phase(0, 1, 2.0, 3.0), Phase(0, 1, 1.0, 2.0)],
        "forwarder": [Phase(0.5, 1, 2.0, 4.0)] * 3,
        "lmtool": [Phase(1.0, 1, 3.0, 6.0), Phase(2.0, 1, 3.0, 6.0), Phase(1.5, 1, 3.0, 6.0)],
    }
    standing = _standing(route, phases, [50.0, 52.0, 51.0])
    assert (standing.over_forwarder.median, standing.over_forwarder.high) == (3.0, 4.0)
    assert (standing.added_p50_ms.low, standing.added_p50_ms.median) == (1.0, 2.0)
    assert standing.added_p99_ms.median == 4.0
    assert (standing.memory_mb, standing.growth_mb) == (51.0, 1.0)


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (Behaviour(status=500), "slow answered 500"),
        (Behaviour(), "slow answered 200: "),
        (Behaviour(fault="reset"), "slow gave no answer"),
    ],
)
async def test_a_gateway_that_fails(behaviour: Behaviour, said: str) -> None:
    """An answer that is none, or not the provider's, is not measured as a fast one."""
    async with FakeUpstream(behaviour) as upstream, open_client() as client:
        route = Route("slow", f"{upstream.url}/v1/chat/completions", b'{"model": "m", "messages": []}', None)
        with pytest.raises(ServerError, match=said):
            await _load(client, route, 8, 4)


@pytest.mark.parametrize(
    ("python", "error", "said"),
    [
        ("/no/such/python", ResourceError, "cannot start '/no/such/python'"),
        (sys.executable, ConnectError, "LiteLLM's proxy ended with status 1"),
    ],
)
async def test_an_environment_without_litellm(python: str, error: type[Exception], said: str) -> None:
    """One sentence says so; the other processes end."""
    with pytest.raises(error, match=said):
        await run(GatewayBench(requests=10, rounds=1, litellm=python), ignore)
