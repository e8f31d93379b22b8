"""Strict answers on every wire: valid or not finished; and where a stop string cuts one, that is said."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest

import lmtool
from lmtool.core.errors import LmtoolError
from lmtool.inference.guide.unique_names import UniqueNames
from lmtool.serving.config import ServiceConfig
from tests.serving.faulty_server import break_names
from tests.serving.running import running

if TYPE_CHECKING:
    from tests.conftest import StartServer

ONE_NAME = {
    "type": "object",
    "allOf": [
        {"patternProperties": {"^a$": {"const": 1}}, "additionalProperties": False},
        {"minProperties": 2, "maxProperties": 2},
    ],
}
"""Nothing is valid under it; what repeats a name would match its grammar."""
WORDS = {
    "type": "object",
    "properties": {"said": {"const": "one two three"}},
    "required": ["said"],
    "additionalProperties": False,
}
FAULTY = str(Path(__file__).with_name("faulty_server.py"))
NAMED = {"type": "function", "function": {"name": "f"}}
HELLO = [{"role": "user", "content": "Hello"}]


def tools(schema: object) -> list[object]:
    return [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}]


def chat_form(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def requests(schema: object) -> dict[str, tuple[str, dict[str, object]]]:
    """Path and body by what is asked for, each held to the schema."""
    chat = {"model": "lmtool-tiny", "messages": HELLO, "max_tokens": 60}
    return {
        "completions": (
            "v1/completions",
            {"model": "lmtool-tiny", "prompt": "Hi", "max_tokens": 60, "structured_outputs": {"json": schema}},
        ),
        "without a version": ("completions", {"prompt": "Hi", "max_tokens": 60, "guided_json": schema}),
        "chat": ("v1/chat/completions", {**chat, "response_format": chat_form(schema)}),
        "a tool": ("v1/chat/completions", {**chat, "tools": tools(schema), "tool_choice": NAMED}),
        "responses": (
            "v1/responses",
            {
                "model": "lmtool-tiny", "input": "Hi", "max_output_tokens": 60,
                "text": {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}},
            },
        ),
        "messages": (
            "v1/messages",
            {
                **chat,
                "tools": [{"name": "f", "input_schema": schema, "strict": True}],
                "tool_choice": {"type": "tool", "name": "f"},
            },
        ),
    }  # fmt: skip


KINDS = list(requests(True))


@pytest.fixture(scope="module")
def faulty(start_server: StartServer) -> Iterator[str]:
    """The address of a server with the fault."""
    with start_server("--threads", "1", program=(FAULTY,)) as running:
        running.expect("ready")
        yield running.url


@pytest.fixture(scope="module")
def sound(start_server: StartServer) -> Iterator[str]:
    """The address of a server without."""
    with start_server("--threads", "1") as running:
        running.expect("ready")
        yield running.url


async def said(model: lmtool.Model, prompt: object, **how: object) -> tuple[str, BaseException | None, list[str]]:
    """The text of an answer, the error that ended it, and its warnings."""
    text, warnings = "", list[str]()
    try:
        async for output in model.generate(prompt, text=True, max_tokens=60, **how):  # type: ignore[arg-type]
            text += output.text or ""
            warnings += output.warnings
    except LmtoolError as problem:
        return text, problem, warnings
    return text, None, warnings


async def counted(address: str) -> int:
    """The alarms so far."""
    async with httpx2.AsyncClient() as http:
        told = (await http.get(address.replace("ws", "http", 1) + "metrics")).text
    [line] = [line for line in told.splitlines() if line.startswith("lmtool_invalid_answers_total ")]
    return int(line.rpartition(" ")[2])


@pytest.mark.parametrize("prompt", ["Hi", [5, 6]])
async def test_lmtp(faulty: str, prompt: object) -> None:
    """Over LMTP a finished answer that is not valid ends with an error, which `/metrics` counts."""
    before = await counted(faulty)
    async with lmtool.connect(faulty) as model:
        text, problem, _ = await said(model, prompt, constraint={"json": ONE_NAME})
        assert text == '{"a":1,"a":1}'
        assert "not valid under its schema" in str(problem)
        assert "'a' occurs twice" in str(problem)
        ids = model.generate(prompt, text=False, constraint={"json": ONE_NAME})  # type: ignore[arg-type]
        with pytest.raises(LmtoolError, match="occurs twice"):
            assert not [output async for output in ids if output.last]
    assert await counted(faulty) == before + 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_http(faulty: str, kind: str, streamed: bool) -> None:
    """Over each HTTP route as well, whether it is streamed or not; a tool's arguments are held alike."""
    before = await counted(faulty)
    path, body = requests(ONE_NAME)[kind]
    async with httpx2.AsyncClient(base_url=faulty.replace("ws", "http", 1), timeout=60) as http:
        answer = await http.post(path, json={**body, "stream": streamed})
    assert answer.status_code == (200 if streamed else 500)
    assert "'a' occurs twice" in answer.text
    assert "invalid_answer" in answer.text or kind == "messages"
    assert '"stop"' not in answer.text
    assert await counted(faulty) == before + 1


async def test_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a socket too, and in the JSON of a structural tag."""
    for name in ("forbid_repeats", "advance"):
        monkeypatch.setattr(UniqueNames, name, getattr(UniqueNames, name))
    break_names()
    parts = [{"type": "const_string", "value": "so "}, {"type": "json_schema", "json_schema": ONE_NAME}]
    tag = {"structural_tag": {"format": {"type": "sequence", "elements": parts}}}
    async with lmtool.load(threads=1) as model:
        for constraint, written in (({"json": ONE_NAME}, ""), (tag, "so ")):
            text, problem, _ = await said(model, "Hi", constraint=constraint)
            assert text == written + '{"a":1,"a":1}'
            assert "occurs twice" in str(problem)


async def test_stdio() -> None:
    """Over stdin and stdout too."""
    command = f"stdio:{sys.executable} {FAULTY} -q serve --stdio --threads 1"
    async with lmtool.connect(command, open_timeout=120) as model:
        _, problem, _ = await said(model, "Hi", constraint={"json": ONE_NAME})
    assert "occurs twice" in str(problem)


async def test_behind_a_balancer() -> None:
    """A worker's alarm is counted where its server is asked."""
    worker = f"stdio:{sys.executable} {FAULTY} -q serve --stdio --threads 1"
    async with running(ServiceConfig(workers=(worker,))) as (_, where):
        async with lmtool.connect(where) as model:
            _, problem, _ = await said(model, "Hi", constraint={"json": ONE_NAME})
        assert "occurs twice" in str(problem)
        assert await counted(where) == 1


@pytest.mark.parametrize("prompt", ["Hi", [5, 6]])
async def test_stop_strings_over_lmtp(sound: str, prompt: object) -> None:
    """A stop string ends the answer within its constraint, and a warning says so."""
    async with lmtool.connect(sound) as model:
        text, problem, warnings = await said(model, prompt, constraint={"json": WORDS}, stop="two")
    assert (text, problem) == ('{"said":"one ', None)
    assert warnings == ["the answer was cut at the stop string 'two', before its constraint had ended it"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "responses"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_stop_strings_over_http(sound: str, kind: str, streamed: bool) -> None:
    """On each HTTP route that has them (Responses has none) as well."""
    path, body = requests(WORDS)[kind]
    stops = {"stop_sequences": ["two"]} if kind == "messages" else {"stop": ["two"]}
    async with httpx2.AsyncClient(base_url=sound.replace("ws", "http", 1), timeout=60) as http:
        answer = await http.post(path, json={**body, **stops, "stream": streamed})
        whole = await http.post(path, json={**body, "stream": streamed})
    assert "cut at the stop string 'two'" in answer.text
    assert "three" not in answer.text
    assert "three" in whole.text
    assert "cut at" not in whole.text
    assert await counted(sound) == 0


async def test_valid_answers_finish(sound: str) -> None:
    """What is valid ends with `stop`, and rings no alarm; a lenient answer tells what it is short of on LMTP too."""
    async with lmtool.connect(sound) as model:
        text, problem, warnings = await said(model, "Hi", constraint={"json": WORDS})
        assert (json.loads(text), problem, warnings) == ({"said": "one two three"}, None, [])
        schema = {"type": "array", "items": {"pattern": "^a$", "type": "string"}, "minItems": 2, "maxItems": 2}
        lenient = {"json": {**schema, "uniqueItems": True}, "strict": False}
        text, problem, warnings = await said(model, "Hi", constraint=lenient)
    assert problem is None
    assert any(warning.startswith("the answer is not valid: ") for warning in warnings), (text, warnings)
    assert await counted(sound) == 0
