"""One worker of a balancer: lost, and found again."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys

import psutil
import pytest

from lmtool.core.types import GenerateRequest, SamplingParams, TokenOutput
from lmtool.gateway.balance.worker import Worker
from lmtool.protocol.lmtp.endpoint import parse
from tests.protocol.lmtp.document_server import document_server
from tests.protocol.lmtp.harness import PATIENCE, serving, until
from tests.scripted_model import ScriptedModel

LONG = GenerateRequest("a", (1,), SamplingParams(max_tokens=4000))
STDIO = f"stdio:{sys.executable} -m tests.protocol.lmtp.stdio_server"


def make(endpoint: str, **seconds: float) -> Worker:
    return Worker(
        0, parse(endpoint), lambda _worker: None, lambda _progress: None, **{"check_seconds": 0.05, **seconds}
    )


async def test_a_server_that_goes_takes_its_streams_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """They end with an error that says whose loss it was; the worker is down and counts no streams."""
    found: list[TokenOutput] = []
    async with serving(ScriptedModel()) as server:
        worker = make(server.url)
        worker.start()
        await until(lambda: worker.up)
        worker.submit(LONG, found.extend)
        await until(lambda: len(found) > 2)
        assert worker.running == 1
    await until(lambda: found[-1].last and not worker.up)
    assert worker.running == 0
    assert found[-1].error is not None
    downs, ups = (caplog.text.count(f"is {state}") for state in ("down", "up again"))
    assert downs == ups + 1  # it may find the server once more while that is closing
    await worker.close()


async def test_a_worker_that_does_not_answer_is_cut_off() -> None:
    """Its streams end, instead of waiting for ever."""
    model = ScriptedModel()
    found: list[TokenOutput] = []
    async with serving(model) as server:
        worker = make(server.url, answer_seconds=0.1)
        worker.start()
        await until(lambda: worker.up)
        model.loaded.clear()  # MODEL_INFO waits
        model._manual = True  # and no token comes
        worker.submit(LONG, found.extend)
        async with asyncio.timeout(PATIENCE):
            await until(lambda: bool(found) and found[-1].last)
        assert found[-1].error == f"worker 1 ({server.url}) was lost before the stream's end; send the request again"
        assert not worker.up
        model.loaded.set()
        await until(lambda: worker.up)
        await worker.close()


async def test_a_server_that_never_answers() -> None:
    """It is down, and said to be, once its first check has taken too long: nothing waits for it for ever."""
    async with document_server(deaf=True) as server:
        worker = make(server.url, answer_seconds=0.1)
        worker.start()
        await until(lambda: worker.checked)
        assert not worker.up
        assert worker.error is not None
        assert worker.error.message == "no list of models within 0.1 s"
        await worker.close()


async def test_a_server_that_says_that_it_ends() -> None:
    """What it answers until then counts no more: the worker is up again over another connection, not over this one."""
    async with serving(ScriptedModel()) as server:
        worker = make(server.url)
        worker.start()
        await until(lambda: worker.up)
        before = worker._client
        worker.lose("the device is lost; the server ends")
        assert not worker.up
        await until(lambda: worker.up)
        assert worker._client is not before
        await worker.close()


async def test_a_process_of_ours_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    """By the next question, after its streams have ended with an error; the reason is logged, and what it prints."""
    prints = shlex.quote(f"echo odd >&2; exec {STDIO.removeprefix('stdio:')}")
    worker = make(f"stdio:sh -c {prints}")
    assert worker.owned
    assert worker.name == "worker 1"
    worker.start()
    async with asyncio.timeout(PATIENCE):
        await until(lambda: worker.up)
        channel = _process()
        channel.kill()
        await until(lambda: not worker.up)
        await until(lambda: worker.up)
        assert _process().pid != channel.pid
    await worker.close()
    assert re.search(r"worker 1 is down: '\S*' was killed by SIGKILL", caplog.text)
    assert caplog.text.count("worker 1: odd") == 2


def _process() -> psutil.Process:
    """The worker's process, found through this one's children; one that has ended may still be among them."""
    living = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    (child,) = [child for child in living if "tests.protocol.lmtp.stdio_server" in child.cmdline()]
    return child


async def test_questions_at_once_are_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of clients that ask for the description do not queue up in front of streams; each gets it."""
    model = ScriptedModel()
    async with serving(model) as server:
        worker = make(server.url)
        worker.start()
        await until(lambda: worker.up)
        model.loaded.clear()
        asked = []
        info = worker._client.info
        monkeypatch.setattr(worker._client, "info", lambda name: asked.append(name) or info(name))
        answers = [asyncio.create_task(worker.describe(None)) for _ in range(100)]
        await until(lambda: bool(asked))
        answers[0].cancel()  # whoever asked first leaves
        model.loaded.set()
        async with asyncio.timeout(PATIENCE):
            described = await asyncio.gather(*answers[1:])
        assert len({one.model for one in described}) == 1
        assert asked == [None]
        assert (await worker.describe(None)).model == described[0].model  # and asks again
        assert asked == [None, None]
        await worker.close()
