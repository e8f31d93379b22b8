"""`lmtool serve --structured-backend xgrammar` from end to end (the environment of LMTOOL_XGRAMMAR_PYTHON)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import jsonschema
import pytest

from lmtool import constraint
from lmtool.interfaces import stream
from lmtool.lmtp.client import LmtpClient
from lmtool.types import ChatMessage, Constraint, GenerateRequest, SamplingParams, TokenOutput
from tests.conftest import ROOT
from tests.guide.hostile import CASES
from tests.guide.test_answers import PERSON
from tests.guide.test_xgrammar import PYTHON

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(not PYTHON.is_file(), reason="needs an environment with xgrammar"),
]
DEADLINE = 10.0
"""Seconds that compiling may take."""
ARITHMETIC = 'root ::= term ("+" term)*\nterm ::= [0-9]{1,2} | "(" root ")"'
NUMBERS = r"\d{3}-[a-z]{4}"


@pytest.fixture(scope="module")
def over_xgrammar(start_server: StartServer) -> Iterator[ServerProcess]:
    """The embedded model, its streams held by xgrammar."""
    words = ("--structured-backend", "xgrammar", "--device", "cpu")
    with start_server(*words, python=str(PYTHON), PYTHONPATH=str(ROOT)) as server:
        server.expect("ready in")
        yield server


@pytest.fixture(scope="module")
def over_llguidance(start_server: StartServer) -> Iterator[ServerProcess]:
    """The same, held as it is by default."""
    with start_server("--device", "cpu") as server:
        server.expect("ready in")
        yield server


async def answers(server: ServerProcess, held: Constraint, count: int = 3) -> list[tuple[str, TokenOutput]]:
    """Texts of some answers at a high temperature, each with its last output."""
    found = []
    async with LmtpClient(server.url) as client:
        for seed in range(count):
            sampling = SamplingParams(max_tokens=150, temperature=1.5, seed=seed)
            request = GenerateRequest(seed, (ChatMessage("user", "Hello"),), sampling, text=True, constraint=held)
            outputs = [output async for output in stream(client, request)]
            found.append(("".join(output.text or "" for output in outputs), outputs[-1]))
    return found


@pytest.mark.parametrize("which", ["over_xgrammar", "over_llguidance"])
async def test_answers_are_valid(which: str, request: pytest.FixtureRequest) -> None:
    """Under both libraries: a schema, a pattern, a choice and a grammar are held to the end."""
    server = request.getfixturevalue(which)
    for text, last in await answers(server, constraint.json_schema(PERSON)):
        assert last.finish_reason == "stop", last
        jsonschema.validate(json.loads(text), PERSON)
    for text, last in await answers(server, constraint.regex(NUMBERS)):
        assert (last.finish_reason, bool(re.fullmatch(NUMBERS, text))) == ("stop", True), text
    for text, _ in await answers(server, constraint.choice(["perhaps", "never"])):
        assert text in {"perhaps", "never"}
    ended = [
        text for text, last in await answers(server, constraint.grammar(ARITHMETIC), 6) if last.finish_reason == "stop"
    ]
    assert ended
    for text in ended:
        assert re.fullmatch(r"[0-9+()]+", text)
        assert isinstance(eval(re.sub(r"\d+", "1", text), {}), int)


async def test_what_it_cannot_hold_is_named(over_xgrammar: ServerProcess) -> None:
    """A keyword, and Lark; an error before the first token, and a warning in lenient mode."""
    unique = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    [(text, last)] = await answers(over_xgrammar, constraint.json_schema(unique), 1)
    assert (text, last.error_code) == ("", "invalid_constraint")
    assert "'uniqueItems'" in str(last.error)
    assert "--structured-backend llguidance" in str(last.error)
    [(_, last)] = await answers(over_xgrammar, constraint.grammar('start: "a"'), 1)
    assert "Lark" in str(last.error)


async def test_a_hostile_constraint_is_refused_in_time(over_xgrammar: ServerProcess) -> None:
    """It would be compiled for half a minute: its process is killed, and the server goes on."""
    began = time.monotonic()
    [(text, last)] = await answers(over_xgrammar, CASES["5000 optional properties"](), 1)
    assert time.monotonic() - began < DEADLINE + 5
    assert (text, last.error_code) == ("", "constraint_too_complex")
    [(text, last)] = await answers(over_xgrammar, constraint.regex("[a-f]{3}"), 1)
    assert (last.finish_reason, len(text)) == ("stop", 3)
