"""Constraints held inside vLLM by our own guides."""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import TYPE_CHECKING

import jsonschema
import pytest

from lmtool import constraint
from lmtool.errors import ConstraintError
from lmtool.interfaces import TokenModel, stream
from lmtool.lmtp.client import LmtpClient
from lmtool.types import Constraint, GenerateRequest, SamplingParams, TokenOutput

if TYPE_CHECKING:
    from tests.conftest import ServerProcess

pytestmark = pytest.mark.peer
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


async def collect(model: TokenModel, request: GenerateRequest) -> list[TokenOutput]:
    async with asyncio.timeout(60):
        return [output async for output in stream(model, request)]


def asked(name: str, held: Constraint | None, **params: object) -> GenerateRequest:
    sampling = SamplingParams(**{"max_tokens": 200, "temperature": 1.0, "seed": 5, **params})  # type: ignore[arg-type]
    return GenerateRequest(name, (5, 6), sampling, text=True, constraint=held)


def text(outputs: list[TokenOutput]) -> str:
    return "".join(output.text or "" for output in outputs)


async def test_a_crowd_of_all_kinds(over_vllm_text: ServerProcess) -> None:
    """Each stream's text matches its own constraint; those without one say what they say alone."""
    async with LmtpClient(over_vllm_text.url) as client:
        free = asked("free", None, max_tokens=30, ignore_eos=True, temperature=0.0)
        alone = await collect(client, free)
        every = {
            "json": constraint.json_schema(SCHEMA),
            "regex": constraint.regex("([a-c]{3}-){2}[0-9]+"),
            "choice": constraint.choice(["red", "green", "a deep blue"]),
            "grammar": constraint.grammar('start: "(" start ")" | "x"'),
        }
        requests = [asked(f"{name} {n}", held, seed=n) for name, held in every.items() for n in range(4)]
        free_again, *outputs = await asyncio.gather(*(collect(client, one) for one in [free, *requests]))
    assert [one.token for one in free_again] == [one.token for one in alone]
    for request, given in zip(requests, outputs, strict=True):
        assert given[-1].error is None
        said, whole = text(given), given[-1].finish_reason == "stop"
        match str(request.stream_id).split()[0]:
            case "json" if whole:
                jsonschema.validate(json.loads(said), SCHEMA)
            case "regex" if whole:
                assert re.fullmatch("([a-c]{3}-){2}[0-9]+", said)
            case "choice":
                assert said in {"red", "green", "a deep blue"}
            case "grammar" if whole:
                assert re.fullmatch(r"\(*x\)*", said)
                assert said.count("(") == said.count(")")
    assert sum(given[-1].finish_reason == "stop" for given in outputs) >= 10


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
        requests = [asked(name, held) for name, held in bad.items()]
        requests.append(asked("explodes later", constraint.regex("(a|a)*{1000}"), min_tokens=100))
        good, *outputs = await asyncio.gather(
            *(collect(client, one) for one in [asked("good", constraint.regex("[0-9]{4}")), *requests])
        )
        assert re.fullmatch("[0-9]{4}", text(good))
        for given in (outputs[0], outputs[-1]):
            assert given[-1].error_code == "constraint_too_complex" or re.fullmatch("a*", text(given))
        for request, given in zip(requests[1:-1], outputs[1:-1], strict=True):
            assert given[-1].error_code in {ConstraintError.code, "constraint_too_complex"}, request.stream_id
        again = await collect(client, asked("again", constraint.regex("[0-9]{4}")))
        assert re.fullmatch("[0-9]{4}", text(again))


async def test_other_parameters_cannot_break_it(over_vllm_text: ServerProcess) -> None:
    """Bias, stop ids, `min_tokens`, `ignore_eos` and penalties; a short `max_tokens` cuts and says so."""
    held = constraint.regex("[0-9]{3,6}")
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
        outputs = await asyncio.gather(*(collect(client, asked(str(n), held, **one)) for n, one in enumerate(params)))
        for given in outputs:
            assert given[-1].finish_reason == "stop"
            assert re.fullmatch("[0-9]{3,6}", text(given))
        cut = await collect(client, asked("cut", constraint.regex("[0-9]{30}"), max_tokens=5))
        assert cut[-1].finish_reason == "length"
        assert re.fullmatch("[0-9]{1,29}", text(cut))


async def test_biased_logprobs_are_those_of_what_is_allowed(over_vllm_text: ServerProcess) -> None:
    """A forced id has logprob 0; the alternatives are allowed ones, and sum to 1 where all are told."""
    async with LmtpClient(over_vllm_text.url) as client:
        forced = await collect(client, asked("a", constraint.choice(["red"]), temperature=0.0))
        two = await collect(client, asked("b", constraint.regex("[01]"), temperature=0.0, top_logprobs=20))
        raw = await collect(client, asked("c", constraint.regex("[01]"), temperature=0.0, logprobs_mode="raw"))
    assert [output.logprob for output in forced] == pytest.approx([0.0] * len(forced), abs=1e-4)
    assert two[0].top_logprobs is not None
    assert sum(math.exp(value) for _, value in two[0].top_logprobs) == pytest.approx(1.0, abs=1e-3)
    assert two[0].logprob == pytest.approx(max(value for _, value in two[0].top_logprobs), abs=1e-3)
    assert raw[0].logprob is not None
    assert raw[0].logprob < -1


async def test_warnings_come_back(over_vllm_text: ServerProcess) -> None:
    """What a lenient schema leaves out is told with the last token."""
    unique = {"type": "array", "items": {"type": "integer", "maximum": 9}, "maxItems": 2, "uniqueItems": True}
    held = constraint.json_schema(unique, strict=False)
    async with LmtpClient(over_vllm_text.url) as client:
        outputs = await collect(client, asked("a", held))
    assert outputs[-1].error is None
    assert outputs[-1].warnings
