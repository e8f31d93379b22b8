"""Streams over vLLM itself: ids, logprobs, bias, scoring, abort; constraints; logits processors of third parties."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest

from lmtool.core import constraint
from lmtool.core.errors import ConstraintError
from lmtool.core.interfaces import TokenModel
from lmtool.core.streams import stream
from lmtool.core.types import Constraint, GenerateRequest, NamedProcessor, SamplingParams, ScoreRequest, TokenOutput
from lmtool.protocol.lmtp.client import LmtpClient
from tests.inference.backends.vllm.conftest import over_vllm_with
from tests.plugin import install

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

pytestmark = pytest.mark.peer
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


async def collect(model: TokenModel, request: GenerateRequest | ScoreRequest) -> list[TokenOutput]:
    async with asyncio.timeout(60):
        return [output async for output in stream(model, request)]


async def test_ids_and_scores_are_those_of_our_engine(over_vllm: ServerProcess, tiny: Path) -> None:
    """Greedy ids and logprobs of the same checkpoint in float32; the generated ids scored are the same numbers."""
    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.engine_loader import load_engine

    prompt, sampling = (5, 6, 7, 8), SamplingParams(max_tokens=8, ignore_eos=True, top_logprobs=3)
    engine = load_engine(str(tiny), EngineConfig(dtype="float32", threads=1))
    async with LmtpClient(over_vllm.url) as client:
        ours, theirs = [await collect(model, GenerateRequest("a", prompt, sampling)) for model in (engine, client)]
        scored = await collect(client, ScoreRequest("b", prompt, tuple(o.token for o in ours if o.token is not None)))
    engine.close()
    assert [output.token for output in theirs] == [output.token for output in ours]
    assert [output.logprob for output in theirs] == pytest.approx([output.logprob for output in ours], abs=1e-3)
    assert [output.logprob for output in scored] == pytest.approx([output.logprob for output in ours], abs=1e-3)
    assert theirs[-1].finish_reason == "length"
    for mine, other in zip(ours, theirs, strict=True):
        assert [token for token, _ in other.top_logprobs or ()] == [token for token, _ in mine.top_logprobs or ()]


async def test_a_bias_forces(over_vllm: ServerProcess) -> None:
    """With logprob 0; a stop id ends the stream and is sent."""
    async with LmtpClient(over_vllm.url) as client:
        sampling = SamplingParams(max_tokens=4, logit_bias={9: 100.0}, stop_token_ids=(9,))
        (only,) = await collect(client, GenerateRequest("a", (5, 6), sampling))
    assert (only.token, only.finish_reason) == (9, "stop")
    assert only.logprob == pytest.approx(0.0, abs=1e-6)


async def test_eos_ends_a_stream(over_vllm: ServerProcess) -> None:
    """The model's own eos id, 2, which vLLM has no tokenizer to know."""
    async with LmtpClient(over_vllm.url) as client:
        info = await client.info()
        outputs = await collect(
            client, GenerateRequest("a", (5, 6), SamplingParams(max_tokens=4, logit_bias={2: 100.0}))
        )
    assert info.eos_token_ids == (2,)
    assert [output.token for output in outputs] == [2]
    assert outputs[-1].finish_reason == "stop"


async def test_seeds_and_errors(over_vllm: ServerProcess) -> None:
    """A seeded stream is the same again; what cannot be served ends its own stream only."""
    async with LmtpClient(over_vllm.url) as client:
        request = GenerateRequest("a", (5, 6), SamplingParams(max_tokens=6, temperature=1.0, seed=7, ignore_eos=True))
        first, again = await collect(client, request), await collect(client, request)
        assert [output.token for output in first] == [output.token for output in again]
        assert "not in the vocabulary" in str((await collect(client, GenerateRequest("a", (99999,))))[-1].error)
        assert "context" in str((await collect(client, GenerateRequest("a", (5,) * 1200)))[-1].error)


async def test_cancel_aborts(over_vllm: ServerProcess) -> None:
    """The stream ends with `cancelled`, and the engine goes on with others."""
    async with LmtpClient(over_vllm.url) as client:
        outputs: list[TokenOutput] = []
        arrived = asyncio.Event()

        def sink(new: object) -> None:
            outputs.extend(new)  # type: ignore[call-overload]  # outputs
            arrived.set()

        handle = client.submit(GenerateRequest("a", (5,), SamplingParams(max_tokens=950, ignore_eos=True)), sink)
        async with asyncio.timeout(60):
            await arrived.wait()
            handle.cancel()
            while not outputs[-1].last:
                arrived.clear()
                await arrived.wait()
        assert outputs[-1].finish_reason == "cancelled"
        assert (
            len(await collect(client, GenerateRequest("b", (5,), SamplingParams(max_tokens=2, ignore_eos=True)))) == 2
        )


def request_for(name: str, rule: Constraint | None, **params: object) -> GenerateRequest:
    sampling = SamplingParams(**{"max_tokens": 200, "temperature": 1.0, "seed": 5, **params})  # type: ignore[arg-type]
    return GenerateRequest(name, (5, 6), sampling, text=True, constraint=rule)


def text(outputs: list[TokenOutput]) -> str:
    return "".join(output.text or "" for output in outputs)


async def test_a_crowd_of_all_kinds(over_vllm_text: ServerProcess) -> None:
    """Each stream's text matches its own constraint; those without one are as they are alone."""
    async with LmtpClient(over_vllm_text.url) as client:
        free = request_for("free", None, max_tokens=30, ignore_eos=True, temperature=0.0)
        alone = await collect(client, free)
        every = {
            "json": constraint.json_schema(SCHEMA),
            "regex": constraint.regex("([a-c]{3}-){2}[0-9]+"),
            "choice": constraint.choice(["red", "green", "a deep blue"]),
            "grammar": constraint.grammar('start: "(" start ")" | "x"'),
        }
        requests = [request_for(f"{name} {n}", rule, seed=n) for name, rule in every.items() for n in range(4)]
        free_again, *outputs = await asyncio.gather(*(collect(client, one) for one in [free, *requests]))
    assert [one.token for one in free_again] == [one.token for one in alone]
    for request, stream_outputs in zip(requests, outputs, strict=True):
        assert stream_outputs[-1].error is None
        answer, whole = text(stream_outputs), stream_outputs[-1].finish_reason == "stop"
        match str(request.stream_id).split()[0]:
            case "json" if whole:
                jsonschema.validate(json.loads(answer), SCHEMA)
            case "regex" if whole:
                assert re.fullmatch("([a-c]{3}-){2}[0-9]+", answer)
            case "choice":
                assert answer in {"red", "green", "a deep blue"}
            case "grammar" if whole:
                assert re.fullmatch(r"\(*x\)*", answer)
                assert answer.count("(") == answer.count(")")
    assert sum(stream_outputs[-1].finish_reason == "stop" for stream_outputs in outputs) >= 10


async def test_bad_ones_fail_alone(over_vllm_text: ServerProcess) -> None:
    """With the error that our own engine gives, or a right answer, while others go on; all is well afterwards."""
    bad = {
        "small here": constraint.regex("((a{0,100}){0,100}){0,100}"),
        "unsupported": constraint.json_schema({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        "impossible": constraint.json_schema({"type": "integer", "minimum": 3, "maximum": 2}),
        "looks around": constraint.regex("(?=a)b"),
        "loops": constraint.grammar("start: start"),
        "unwritten": constraint.grammar("start: %%"),
    }
    async with LmtpClient(over_vllm_text.url) as client:
        requests = [request_for(name, rule) for name, rule in bad.items()]
        requests.append(request_for("explodes later", constraint.regex("(a|a)*{1000}"), min_tokens=100))
        good, *outputs = await asyncio.gather(
            *(collect(client, one) for one in [request_for("good", constraint.regex("[0-9]{4}")), *requests])
        )
        assert re.fullmatch("[0-9]{4}", text(good))
        for stream_outputs in (outputs[0], outputs[-1]):
            assert stream_outputs[-1].error_code == "constraint_too_complex" or re.fullmatch("a*", text(stream_outputs))
        for request, stream_outputs in zip(requests[1:-1], outputs[1:-1], strict=True):
            assert stream_outputs[-1].error_code in {ConstraintError.code, "constraint_too_complex"}, request.stream_id
        again = await collect(client, request_for("again", constraint.regex("[0-9]{4}")))
        assert re.fullmatch("[0-9]{4}", text(again))


async def test_other_parameters_cannot_break_it(over_vllm_text: ServerProcess) -> None:
    """Bias, stop ids, `min_tokens`, `ignore_eos` and penalties; a short `max_tokens` cuts and says so."""
    rule = constraint.regex("[0-9]{3,6}")
    async with LmtpClient(over_vllm_text.url) as client:
        digits = [token for token in range(512) if token % 3]
        params: list[dict[str, object]] = [
            {"logit_bias": dict.fromkeys(digits[:50], -100.0)},
            {"logit_bias": {2: 100.0}},
            {"min_tokens": 30},
            {"ignore_eos": True},
            {"stop_token_ids": tuple(range(3, 60))},
            {"repetition_penalty": 5.0, "presence_penalty": 2.0},
            {"top_k": 1},
        ]
        requests = [request_for(str(n), rule, **one) for n, one in enumerate(params)]
        outputs = await asyncio.gather(*(collect(client, one) for one in requests))
        for stream_outputs in outputs:
            assert stream_outputs[-1].finish_reason == "stop"
            assert re.fullmatch("[0-9]{3,6}", text(stream_outputs))
        cut = await collect(client, request_for("cut", constraint.regex("[0-9]{30}"), max_tokens=5))
        assert cut[-1].finish_reason == "length"
        assert re.fullmatch("[0-9]{1,29}", text(cut))


async def test_biased_logprobs_are_those_of_what_is_allowed(over_vllm_text: ServerProcess) -> None:
    """A forced id has logprob 0; the alternatives are allowed ones, and sum to 1 where all are told."""
    async with LmtpClient(over_vllm_text.url) as client:
        forced = await collect(client, request_for("a", constraint.choice(["red"]), temperature=0.0))
        two = await collect(client, request_for("b", constraint.regex("[01]"), temperature=0.0, top_logprobs=20))
        raw = await collect(client, request_for("c", constraint.regex("[01]"), temperature=0.0, logprobs_mode="raw"))
    assert [output.logprob for output in forced] == pytest.approx([0.0] * len(forced), abs=1e-4)
    assert two[0].top_logprobs is not None
    assert sum(math.exp(value) for _, value in two[0].top_logprobs) == pytest.approx(1.0, abs=1e-3)
    assert two[0].logprob == pytest.approx(max(value for _, value in two[0].top_logprobs), abs=1e-3)
    assert raw[0].logprob is not None
    assert raw[0].logprob < -1


async def test_warnings_come_back(over_vllm_text: ServerProcess) -> None:
    """What a lenient schema leaves out is told with the last token."""
    unique = {"type": "array", "items": {"type": "integer", "maximum": 9}, "maxItems": 2, "uniqueItems": True}
    rule = constraint.json_schema(unique, strict=False)
    async with LmtpClient(over_vllm_text.url) as client:
        outputs = await collect(client, request_for("a", rule))
    assert outputs[-1].error is None
    assert outputs[-1].warnings


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, tiny_text: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """With a package on the path that brings some."""
    folder = install(tmp_path_factory.mktemp("plugin"))
    yield from over_vllm_with(start_server, tiny_text, PYTHONPATH=str(folder))


async def test_they_change_what_is_drawn(server: ServerProcess) -> None:
    """Alone, one after the other, under a constraint, which they cannot break; an error ends its own stream only."""

    def request_with(name: str, *named: NamedProcessor, regex: str | None = None) -> GenerateRequest:
        rule = None if regex is None else constraint.regex(regex)
        sampling = SamplingParams(max_tokens=12)
        return GenerateRequest(name, (5, 6), sampling, text=True, constraint=rule, logits_processors=named)

    louder = NamedProcessor("louder", {"ids": [40, 41, 42, 2]})
    requests = [
        request_with("alone"),
        request_with("louder", louder),
        request_with("two", louder, NamedProcessor("louder", {"ids": [50]})),
        request_with("constrained", louder, regex="[0-9]{4}"),
        request_with("broken", NamedProcessor("broken")),
        request_with("stuck", NamedProcessor("only", {"token": 40}), regex="[0-9]{4}"),
        request_with("unknown", NamedProcessor("loud")),
        request_with("refused", NamedProcessor("only", {"token": "x"})),
    ]
    async with LmtpClient(server.url) as client:
        alone = await collect(client, requests[0])
        answers = await asyncio.gather(*(collect(client, one) for one in requests))
    by_name = {str(one.stream_id): given for one, given in zip(requests, answers, strict=True)}
    assert [output.token for output in by_name["alone"]] == [output.token for output in alone]
    assert [output.token for output in by_name["louder"]] == [40, 41, 42, 2]
    assert [output.token for output in by_name["two"]][1:] == [41, 42, 2]
    assert re.fullmatch("[0-9]{4}", "".join(output.text or "" for output in by_name["constrained"]))
    assert "broken failed: ValueError" in str(by_name["broken"][-1].error)
    assert len(by_name["broken"]) == 3
    assert "left no token" in str(by_name["stuck"][-1].error)
    assert "there is no logits processor 'loud'; installed:" in str(by_name["unknown"][-1].error)
    assert "refuses its arguments" in str(by_name["refused"][-1].error)
