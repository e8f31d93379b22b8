"""What a real model answers under a constraint, loaded as `lmtool serve` loads it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

import jsonschema
import pytest

from lmtool.core import constraint
from lmtool.core.interfaces import LoadedModel
from lmtool.core.streams import stream
from lmtool.core.types import ChatMessage, ChatPrompt, Constraint, GenerateRequest, SamplingParams
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.serving.composition import Loader

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
ASKED = ChatPrompt((ChatMessage("user", "Hello there"),))


@pytest.fixture(scope="module")
def loader() -> Loader:
    """A loader of its own."""
    return Loader(EngineConfig(device="cpu", threads=1))


@pytest.fixture(scope="module")
def loaded(loader: Loader) -> AsyncIterator[LoadedModel]:
    """The embedded model with its tokenizer."""
    model = loader.load(str(MODEL_DIR), lambda _: None)
    yield model
    model.close()


async def answer(loaded: LoadedModel, wanted: Constraint, **sampling: object) -> tuple[str, object]:
    """The text of a constrained answer, and the last output."""
    params = SamplingParams(**{"max_tokens": 120, **sampling})  # type: ignore[arg-type]
    request = GenerateRequest(0, ASKED, params, text=True, constraint=wanted)
    outputs = [output async for output in stream(loaded, request)]
    return "".join(output.text or "" for output in outputs), outputs[-1]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
async def test_schema(loaded: LoadedModel, temperature: float) -> None:
    """An answer held to a schema is valid JSON of it, at any temperature and against logit_bias and ignore_eos."""
    for seed in range(3):
        text, last = await answer(
            loaded,
            constraint.json_schema(PERSON),
            temperature=temperature,
            seed=seed,
            logit_bias={40: 5.0},
            ignore_eos=bool(seed),
            min_tokens=40 * seed,
        )
        assert last.finish_reason == "stop", last
        jsonschema.validate(json.loads(text), PERSON)


@pytest.mark.parametrize("pattern", [r"\d{3}-\d{4}", r"(yes|no)\.", "[a-z]{1,12}( [a-z]{1,12}){2}"])
async def test_regex(loaded: LoadedModel, pattern: str) -> None:
    """An answer held to a regular expression matches as a whole, also with high temperature."""
    text, last = await answer(loaded, constraint.regex(pattern), temperature=2.0, seed=1)
    assert (last.finish_reason, last.warnings) == ("stop", ())
    assert re.fullmatch(pattern, text)


async def test_stop_string(loaded: LoadedModel) -> None:
    """A stop string cuts the text, in the middle of what must match too, and that is said."""
    text, last = await answer(loaded, constraint.regex("ab{3}c{3}"), stop=("cc",))
    assert (text, last.finish_reason, last.stopped_by) == ("abbb", "stop", "cc")
    assert last.warnings == ("the answer was cut at the stop string 'cc', before its constraint had ended it",)


async def test_stop_id(loaded: LoadedModel) -> None:
    """So does a stop id, once sent; also one that nothing else could come in place of, and before `min_tokens`."""
    held = constraint.regex("xyzzy")
    ids = [output.token async for output in stream(loaded, GenerateRequest(0, ASKED, constraint=held))]
    for at, token in enumerate(ids[:-1]):
        params = SamplingParams(stop_token_ids=(token,), min_tokens=at % 2 * 9)
        request = GenerateRequest(0, ASKED, params, constraint=held)
        outputs = [output async for output in stream(loaded, request)]
        assert [output.token for output in outputs] == ids[: ids.index(token) + 1]
        assert (outputs[-1].finish_reason, outputs[-1].stopped_by) == ("stop", token)


async def test_choice(loaded: LoadedModel) -> None:
    """An answer held to a choice is one of them."""
    assert (await answer(loaded, constraint.choice(["perhaps", "never"])))[0] in {"perhaps", "never"}


async def test_cut_short(loaded: LoadedModel) -> None:
    """An answer that max_tokens cuts says `length`, and goes on from its beginning as the constraint says."""
    text, last = await answer(loaded, constraint.regex("a{50}"), max_tokens=3)
    assert last.finish_reason == "length"
    assert set(text) == {"a"}


async def test_refused(loaded: LoadedModel) -> None:
    """A constraint that cannot be compiled ends its own stream with an error before its first token."""
    text, last = await answer(loaded, constraint.regex("("))
    assert (text, last.error_code) == ("", "invalid_constraint")
    assert "unclosed group" in last.error


def test_counts(loader: Loader, loaded: LoadedModel) -> None:
    """What was compiled can be counted for metrics."""
    [guides] = loader.guides
    assert guides.counts.cached_bytes >= 0
