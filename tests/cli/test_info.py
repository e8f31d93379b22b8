"""`lmtool info`: against our server, against one that tells little, and against nobody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from websockets.asyncio.server import serve

from lmtool.cli.info import describe, model_list
from lmtool.core.model_entry import ModelEntry
from tests.conftest import PATIENCE

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection

    from tests.conftest import Run, ServerProcess, StartServer

STORIES = str(Path(__file__).parent.parent / "data/stories260K")
URL = "ws://127.0.0.1:8080/"
LMQL = {
    "model": "gpt2",
    "model_type": "transformers",
    "constructor": "AutoModelForCausalLM.from_pretrained('gpt2')]",
    "transformers": "4.36.2",
}
"""What LMQL's server tells of a transformers model."""


def test_a_server_is_described(lmtool: Run, server: ServerProcess) -> None:
    """Model, address and round trip, backend, context, vocabulary, tokenizer, streams, protocol."""
    told = lmtool("info", "-e", server.url)
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert re.fullmatch(r"stories260K · 260 K · float32 · cpu · (C kernels \(.+\)|oneDNN|torch)", lines[0])
    facts = {line[2:12].strip(): line[13:] for line in lines[1:]}
    assert facts["at"].startswith(f"{server.url}   round trip ")
    assert facts["at"].endswith(" ms")
    assert facts["results"] == "batch invariant: yes"
    assert facts["sampling"] == "temperature 0, where an HTTP request leaves them out"  # its file: do_sample false
    assert facts["context"] == "512 tokens"
    assert facts["vocabulary"] == "512 tokens, ends with 1, 2"
    assert facts["tokenizer"].startswith("stories260K, without a chat template, sha256 ")
    assert facts["streams"].endswith("running, 0 waiting")
    assert facts["protocol"].startswith("LMTP 1 with extensions: cancel, ")


def test_json_is_what_the_server_says(lmtool: Run, served: str) -> None:
    """`--json` gives the answer as it came, with the endpoint and the round trip."""
    told = json.loads(lmtool("info", "--json", "-e", served).stdout)
    assert told["endpoint"] == served
    assert told["round_trip_ms"] > 0
    assert told["model_info"]["model"] == "stories260K"
    assert told["model_info"]["lmtp"] == 1


def test_a_model_that_is_not_served(lmtool: Run, served: str) -> None:
    """The server's own error, exit status 4."""
    told = lmtool("info", "nonsense", "-e", served)
    assert told.returncode == 4
    assert "'nonsense' is not served here" in told.stderr


def test_one_of_many(lmtool: Run, served: str) -> None:
    """A model may be named by `-m` as with other commands; two different names make no sense."""
    told = lmtool("info", "-m", "stories260K", "-e", served)
    assert told.stdout.startswith("stories260K")
    assert lmtool("info", "-m", "nonsense", "-e", served).returncode == 4
    twice = lmtool("info", "stories260K", "-m", "nonsense", "-e", served)
    assert twice.returncode == 2
    assert "stories260K and -m nonsense are two models" in twice.stderr


@pytest.mark.parametrize("balanced", [False, True])
def test_many_models_are_listed_and_not_loaded(lmtool: Run, start_server: StartServer, *, balanced: bool) -> None:
    """Without a name, all that is served, as far as it is known; nothing is loaded for it, nor by a balancer."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start_server("--allow-model", STORIES, "--served-model-name", "first"))
        server.expect("ready in")
        if balanced:
            server = stack.enter_context(start_server(server.url, command="balance"))
            server.expect("ready in")
        for _ in range(2):
            told = lmtool("info", "-e", server.url)
            assert told.returncode == 0, told.stderr
            head, first, second, _hint = told.stdout.splitlines()
            assert head == f"2 models at {server.url}"
            assert first.split()[:2] == ["first", "ready"]
            assert second.split() == ["stories260K", "unloaded", "1.0", "MB"]
        entries = json.loads(lmtool("info", "--json", "-e", server.url).stdout)["models"]
        assert [(entry["name"], entry["phase"]) for entry in entries] == [
            ("first", "ready"),
            ("stories260K", "unloaded"),
        ]
        rows = [line.split() for line in lmtool("models", "-e", server.url).stdout.splitlines()]
        assert [row[1] for row in rows if row[0] == "served"] == ["first", "stories260K"]
        assert lmtool("info", "stories260K", "--wait", "-e", server.url).stdout.startswith("stories260K ·")
        until = time.monotonic() + PATIENCE
        while "unloaded" in (told := lmtool("info", "-e", server.url).stdout):  # a balancer asks once in a while
            assert time.monotonic() < until, told


def test_a_list_says_how_many() -> None:
    """One model alone is listed where it is not in memory; none at all is told with what to do."""
    one = [ModelEntry("first", phase="unloaded")]
    assert model_list(one, URL)[0] == f"1 model at {URL}, not in memory"
    assert model_list(one * 2, URL)[0] == f"2 models at {URL}"
    assert model_list([], URL)[0] == f"{URL} has no model in memory"


def test_nobody_there(lmtool: Run) -> None:
    """No server: exit status 3, and how to start one."""
    told = lmtool("info", "-e", "127.0.0.1:1")
    assert told.returncode == 3
    assert told.stderr.startswith("error: ")
    assert "lmtool serve" in told.stderr


def test_wait_waits_for_the_model(lmtool: Run, start_server: StartServer) -> None:
    """While a model loads, `--wait` waits and tells how far it is."""
    with start_server(STORIES) as server:
        server.expect(" listen ")
        told = lmtool("info", "--wait", "-e", server.url)
        assert told.returncode == 0, told.stderr
        assert told.stdout.startswith("stories260K")
        assert "loading stories260K" in told.stderr


def test_little_is_told_by_lmqls_server() -> None:
    """A transformers model at LMQL's server: no vocabulary, no tokenizer, no extensions."""
    lines = describe(LMQL, "gpt2", URL, 0.0008, None)
    assert lines == [
        "gpt2",
        f"  at         {URL}   round trip 0.8 ms",
        "  runs on    transformers, transformers 4.36.2",
        "  made by    AutoModelForCausalLM.from_pretrained('gpt2')]",
        "  tokenizer  none: the server takes token ids only",
        "  protocol   LMTP as in LMQL: token ids only, no cancelling, no text",
    ]


def test_a_bare_string_is_shown_as_it_is() -> None:
    """LMQL's random backend tells its constructor and nothing else."""
    lines = describe("UniformRandomSamplingLLM(seed=0)", "random", URL, 0.001, None)
    assert lines[0] == "random"
    assert "  made by    UniformRandomSamplingLLM(seed=0)" in lines


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_long_facts_are_broken_at_the_terminals_width(columns: int) -> None:
    """Continuation lines stand under the fact, and none reaches the last column."""
    told = {
        **LMQL,
        "lmtp": 1,
        "extensions": ["cancel", "stop", "sampling", "seed", "logprobs_mode", "text", "usage"] * 3,
    }
    lines = describe(told, None, "ws://x/", 0.001, columns)
    assert max(map(len, lines)) < columns or columns == 40
    assert lines[-1].startswith(" " * 13)


async def test_a_server_that_says_nothing(lmtool: Run) -> None:
    """Without an answer in five seconds, or in those of `--timeout`: exit status 6, and `--wait` is named."""

    async def silent(connection: ServerConnection) -> None:
        async for _frame in connection:
            pass

    async with serve(silent, "127.0.0.1", 0) as mute:
        port = mute.sockets[0].getsockname()[1]
        told = await asyncio.to_thread(lmtool, "info", "-e", f":{port}")
        soon = await asyncio.to_thread(lmtool, "info", "-e", f":{port}", "--timeout", "0.2")
    assert told.returncode == soon.returncode == 6
    assert "--wait" in told.stderr
    assert "within 0.2 s" in soon.stderr
