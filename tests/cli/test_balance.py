"""`lmtool balance` and `serve --replicas` as processes, with workers that die."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams, TokenOutput
from lmtool.inference.engine.cpu.library import find_compiler
from lmtool.protocol.lmtp.client import LmtpClient
from tests.conftest import STORIES

if TYPE_CHECKING:
    from tests.conftest import Run, ServerProcess, StartServer

RANDOM = ("--backend", "random", "--backend-option", "step_ms=10")
PATIENCE = 60.0


def request(number: int, tokens: int) -> GenerateRequest:
    return GenerateRequest(number, (number + 5, 7), SamplingParams(max_tokens=tokens, ignore_eos=True))


async def collect(client: LmtpClient, asked: GenerateRequest) -> list[TokenOutput]:
    async with asyncio.timeout(PATIENCE):
        return [output async for output in stream(client, asked)]


def drawn(outputs: list[TokenOutput]) -> list[object]:
    """What a stream has brought, however it came about."""
    assert outputs[-1].usage is not None
    return [outputs[-1].usage.completion_tokens, *((one.token, one.logprob, one.finish_reason) for one in outputs)]


def workers(server: ServerProcess) -> list[psutil.Process]:
    return [child for child in psutil.Process(server.process.pid).children() if "--stdio" in child.cmdline()]


async def test_a_worker_of_ours_that_is_killed(start_server: StartServer) -> None:
    """Its streams go on at the other, to the bit; it is started again; Ctrl-C leaves no process behind."""
    with start_server(*RANDOM, "--replicas", "2") as server:
        server.expect("ready in")
        async with LmtpClient(server.url) as client:
            assert (await client.info()).backend == "random"
            first, second = await _both_up(client, server)
            asked = [request(number, 150) for number in range(4)]
            whole = await asyncio.gather(*(collect(client, one) for one in asked))
            running = [asyncio.create_task(collect(client, one)) for one in asked]
            await collect(client, request(9, 10))
            first.send_signal(signal.SIGKILL)
            assert [drawn(await task) for task in running] == [drawn(outputs) for outputs in whole]
            server.expect("is down")
            server.expect("is up again")
            assert all(end[-1].error is None for end in [await collect(client, request(n, 3)) for n in range(4)])
        left = workers(server)
        assert len(left) == 2
        assert second in left
        server.interrupt()
        assert server.rest()[-1] == "stopped"
        assert server.wait() == 0
        assert not psutil.wait_procs(left, timeout=10)[1]


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler here")
async def test_a_worker_that_would_compute_otherwise(start_server: StartServer, tmp_path: Path) -> None:
    """All workers compute as the server found it possible: one whose compiler is broken by now does not come up."""
    compiler, broken = tmp_path / "cc", tmp_path / "broken"
    compiler.write_text(f'#!/bin/sh\n[ -e {broken} ] && exit 1\nexec {find_compiler()} "$@" -O0\n', encoding="utf-8")
    compiler.chmod(0o755)
    home = {"CC": str(compiler), "XDG_CACHE_HOME": str(tmp_path)}
    with start_server(str(STORIES), "--replicas", "2", **home) as server:
        assert " · C kernels (" in server.expect("  model ")
        async with LmtpClient(server.url) as client:
            first, _ = await _both_up(client, server)
            broken.touch()
            for library in (tmp_path / "lmtool").glob("*.so"):
                library.unlink()
            first.send_signal(signal.SIGKILL)
            server.expect("--kernels required: C kernels cannot be compiled here")
            assert ((await client.info()).kernels or "").startswith("C kernels (")


async def _both_up(client: LmtpClient, server: ServerProcess) -> list[psutil.Process]:
    """Wait until both workers answer; the server tells when the first one does."""
    metrics = server.url.replace("ws://", "http://") + "metrics"
    async with asyncio.timeout(PATIENCE):
        while b"lmtool_workers_up 2" not in await asyncio.to_thread(_read, metrics):
            await client.info()
    return workers(server)


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return answer.read()


async def test_servers_at_addresses(start_server: StartServer, served: str) -> None:
    """One address for two servers, one of which ends: its streams are told, new ones go to the other."""
    with start_server("--served-model-name", "stories260K", *RANDOM) as mortal:
        mortal.expect("ready in")
        with start_server(served, mortal.url, command="balance") as server:
            server.expect("ready in")
            async with LmtpClient(server.url) as client:
                assert (await client.info()).model == "stories260K"
                for number in range(4):
                    assert (await collect(client, request(number, 3)))[-1].finish_reason == "length"
                mortal.process.kill()
                server.expect("is down")
                for number in range(4):
                    assert (await collect(client, request(number, 3)))[-1].finish_reason == "length"
            server.interrupt()
            server.rest()
            assert server.wait() == 0


async def test_several_models(start_server: StartServer) -> None:
    """Workers serve what is allowed too; it is listed at once, here and by a balancer in front, and can be asked."""
    stories = str(Path(__file__).parent.parent / "data/stories260K")
    with start_server(*RANDOM, "--replicas", "2", "--allow-model", stories) as server:
        server.expect("listen")
        assert await _listed(server) == {"lmtool-tiny": "loading", "stories260K": "unloaded"}
        server.expect("ready in")
        with start_server(server.url, command="balance") as front:
            front.expect("ready in")
            assert await _listed(front) == {"lmtool-tiny": "ready", "stories260K": "unloaded"}
            async with LmtpClient(front.url) as client:
                asked = replace(request(1, 3), model="stories260K")
                assert [output.error for output in await collect(client, asked)] == [None] * 3
                async with asyncio.timeout(PATIENCE):
                    while (await _listed(front))["stories260K"] != "ready":
                        await client.models()


async def _listed(server: ServerProcess) -> dict[str, str]:
    models = server.url.replace("ws://", "http://") + "v1/models"
    return {card["id"]: card["phase"] for card in json.loads(await asyncio.to_thread(_read, models))["data"]}


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("balance", ":1", ":1"), 2, "each worker is named once"),
        (("balance", "ftp://x"), 2, "is no endpoint"),
        (("balance",), 2, "URL"),
        (("serve", "--layout", "2by2"), 2, "--layout '2by2'"),
        (("serve", "--layout", "2x1"), 8, "needs 2 CUDA devices"),
        (("serve", "--backend", "nothing"), 2, "there is no backend 'nothing'"),
        (("serve", *RANDOM, "--backend-option", "size=1", "--replicas", "2", "--port", "0"), 8, "no option 'size'"),
    ],
)
def test_what_cannot_be_balanced(lmtool: Run, words: tuple[str, ...], status: int, message: str) -> None:
    """A sentence and the documented exit status."""
    done = lmtool(*words, CUDA_VISIBLE_DEVICES="")
    assert message in done.stderr
    assert done.returncode == status
    assert not re.search("Traceback", done.stderr)
