"""A model whose streams are observed: what is counted, under which names, and that everything else passes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from lmtool.core.interfaces import client_of
from lmtool.core.metrics import as_text
from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest, TokenOutput
from lmtool.net.access.caller import Callers, current_caller
from lmtool.net.access.key_file import parse_keys
from lmtool.net.telemetry.observed_model import ObservedModel
from lmtool.net.telemetry.request_metrics import RequestMetrics
from lmtool.net.telemetry.telemetry import Telemetry
from tests.inference.engine.shelf import turn
from tests.scripted_model import ScriptedModel, ScriptedStream, tokens_of

SHORT = SamplingParams(max_tokens=3)


class Clock:
    """Seconds that only pass where a test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Late(ScriptedModel):
    """A model whose streams begin two seconds after they were submitted."""

    def submit(self, request: object, sink: object) -> object:  # type: ignore[override]
        """See `TokenModel`."""
        made = super().submit(request, sink)  # type: ignore[arg-type]
        if isinstance(made, ScriptedStream):
            made.began_at = lambda: 102.0  # type: ignore[attr-defined]
        return made


class Rig:
    """An observed model of manual steps, and what reaches the one who asks."""

    def __init__(self) -> None:
        self.clock, self.metrics, self.model = Clock(), RequestMetrics(), Late(manual=True)
        self.observed = ObservedModel(self.model, self.model, Telemetry(self.metrics, clock=self.clock))
        self.outputs: list[TokenOutput] = []

    def take(self, outputs: Sequence[TokenOutput]) -> None:
        """The sink."""
        self.outputs += outputs

    def step(self, seconds: float) -> None:
        """Let time pass, then the model step."""
        self.clock.now += seconds
        self.model.step()

    def values(self, part: str) -> dict[str, float]:
        """Samples whose name and labels have this part."""
        found = re.findall(r"^lmtool_(\S+) (\S+)$", as_text(self.metrics.families()), re.MULTILINE)
        return {name: float(value) for name, value in found if part in name and "_bucket" not in name}


async def test_first_token_gaps_queue_and_total() -> None:
    """Each from where it says: the request's arrival, or the token before."""
    rig = Rig()
    rig.observed.submit(GenerateRequest("a", (1, 2), SHORT), rig.take)
    for seconds in (2.5, 0.25, 0.75):
        rig.step(seconds)
    assert [output.token for output in rig.outputs] == tokens_of((1, 2), 3)
    assert rig.values("seconds") == {
        'time_to_first_token_seconds_sum{model_name="scripted"}': 2.5,
        'time_to_first_token_seconds_count{model_name="scripted"}': 1,
        'inter_token_latency_seconds_sum{model_name="scripted"}': 1.0,
        'inter_token_latency_seconds_count{model_name="scripted"}': 2,
        'request_queue_time_seconds_sum{model_name="scripted"}': 2.0,
        'request_queue_time_seconds_count{model_name="scripted"}': 1,
        'e2e_request_latency_seconds_sum{model_name="scripted"}': 3.5,
        'e2e_request_latency_seconds_count{model_name="scripted"}': 1,
    }
    assert rig.values("generation_tokens") == {'generation_tokens_total{model_name="scripted"}': 3}
    assert rig.values("finished") == {'requests_finished_total{model_name="scripted",finished_reason="length"}': 1}


async def test_what_has_no_rhythm_of_its_own() -> None:
    """A SCORE and a request that only prefills wait and end like others, and say nothing of first tokens or gaps."""
    rig = Rig()
    rig.observed.submit(ScoreRequest("a", (1, 2), (3, 4)), rig.take)
    rig.step(1)
    rig.step(1)
    assert rig.outputs[-1].last
    counts = {name.partition("{")[0]: value for name, value in rig.values("_count").items()}
    assert counts == {
        "time_to_first_token_seconds_count": 0,
        "inter_token_latency_seconds_count": 0,
        "request_queue_time_seconds_count": 1,
        "e2e_request_latency_seconds_count": 1,
    }


async def test_names_are_those_of_the_catalogue() -> None:
    """A stranger cannot make a label: what is not served is `unknown`, whatever it is called."""
    rig = Rig()
    for number in range(5):
        rig.observed.submit(GenerateRequest(number, (1,), SHORT, model=f"secret-{number}"), rig.take)
    await turn()
    assert [output.error_code for output in rig.outputs] == ["unknown_model"] * 5
    assert rig.values("finished") == {'requests_finished_total{model_name="unknown",finished_reason="error"}': 5}
    assert "secret" not in as_text(rig.metrics.families())


async def test_streams_of_a_key_bear_its_name() -> None:
    """The name and never the key."""
    rig = Rig()
    callers = Callers(parse_keys('[[keys]]\nname = "alice"\nkey = "canary-key"\n', "keys.toml"))
    token = current_caller.set(callers.caller(callers.ring.keys[0], None))
    rig.observed.submit(GenerateRequest("a", (1,), SHORT), rig.take)
    current_caller.reset(token)
    rig.observed.submit(GenerateRequest("b", (1,), SHORT), rig.take)
    for _ in range(3):
        rig.step(1)
    assert rig.values("generation_tokens") == {
        'generation_tokens_total{model_name="scripted",key="alice"}': 3,
        'generation_tokens_total{model_name="scripted"}': 3,
    }
    assert "canary" not in as_text(rig.metrics.families())


async def test_everything_else_passes() -> None:
    """One sink stays one client and gets its outputs a step together; nothing is remembered of what has ended."""
    rig = Rig()
    batches: list[list[TokenOutput]] = []

    def sink(outputs: Sequence[TokenOutput]) -> None:
        batches.append(list(outputs))

    handles = [rig.observed.submit(GenerateRequest(name, (1,), SHORT), sink) for name in "ab"]
    rig.step(1)
    assert [[output.stream_id for output in batch] for batch in batches] == [["a", "b"]]
    [inner] = {stream.sink for stream in rig.model.running.values()}
    assert client_of(inner) is sink
    for handle in handles:
        handle.cancel()
    rig.step(1)
    assert [output.finish_reason for output in batches[-1]] == ["cancelled"] * 2
    assert rig.values("cancelled") == {'requests_finished_total{model_name="scripted",finished_reason="cancelled"}': 2}
    assert rig.observed._sinks == {}
    assert (await rig.observed.info()).model == "scripted"
    assert (rig.observed.limits, rig.observed.tokenizer()) == ({}, None)


@pytest.mark.parametrize("name", ["scripted", None])
async def test_an_id_may_be_used_again_at_once(name: str | None) -> None:
    """By a reader that submits in the moment in which its stream ends."""
    rig = Rig()

    def again(outputs: Sequence[TokenOutput]) -> None:
        rig.take(outputs)
        if outputs[-1].last and len(rig.outputs) < 6:
            rig.observed.submit(GenerateRequest("a", (1,), SHORT, model=name), again)

    rig.observed.submit(GenerateRequest("a", (1,), SHORT, model=name), again)
    for _ in range(6):
        rig.step(1)
    assert rig.values("finished") == {'requests_finished_total{model_name="scripted",finished_reason="length"}': 2}
    assert rig.observed._sinks == {}
