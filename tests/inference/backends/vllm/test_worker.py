"""The vLLM worker as a process: over a stand-in for vLLM, over vLLM itself, and what is said where there is none."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams, TokenOutput
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.lmtp.endpoint import CommandEndpoint
from lmtool.serving.replicas import VLLM_PROGRAM
from tests.conftest import PATIENCE, STORIES
from tests.inference.backends.vllm.conftest import PYTHON, engine_of, gone, over_vllm_with, workers_of

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

LONG = GenerateRequest("long", (5, 6), SamplingParams(max_tokens=900, ignore_eos=True))
SHORT = replace(LONG, sampling=SamplingParams(max_tokens=1))
LOST = "worker 1 was lost before the stream's end; send the request again"


REASONS = (
    "python' was killed by SIGKILL",
    "vLLM's engine has ended: EngineCore was killed by SIGKILL",
    r"vLLM's engine has ended: VllmWorker-\d, a process of vLLM's, died without a message",
)
"""What the server's log tells of a worker, its engine core and a process below that."""


async def answered(client: LmtpClient) -> None:
    """Ask until a worker is up that answers."""
    async with asyncio.timeout(5 * PATIENCE):  # vLLM itself takes half a minute to start, and more on a busy machine
        while [output async for output in stream(client, SHORT)][-1].error is not None:
            await asyncio.sleep(0.1)


async def every_process_may_be_killed(server: ServerProcess, processes: int = 3) -> None:
    """Kill the worker, then the engine's processes from the top, each in a tree of its own; see what is left.

    processes: in a tree.
    """
    for victim in range(processes):
        async with LmtpClient(server.url) as client:
            await answered(client)
            (worker,) = workers_of(server)
            tree = [worker, *engine_of(worker)]
            assert len(tree) == processes
            found: list[TokenOutput] = []
            client.submit(LONG, found.extend)
            async with asyncio.timeout(PATIENCE):
                while not found:
                    await asyncio.sleep(0.001)
            tree[-1].suspend()  # so that the stream is still running when the victim dies
            tree[victim].kill()
            if tree[victim] != tree[-1]:
                tree[-1].resume()
            async with asyncio.timeout(PATIENCE):
                while not found[-1].last:
                    await asyncio.sleep(0.05)
            assert (found[-1].error_code, found[-1].error) == ("connection", LOST)
            assert gone(tree)
            assert re.search(REASONS[min(victim, 2)], server.expect("worker 1 is down"))
            await answered(client)
            server.expect("worker 1 is up again")


class TestStandIn:
    """Over processes of the same shape as vLLM's."""

    def test_from_an_empty_folder(self, stand_in: StartServer) -> None:
        """All processes find this package, though it is neither in their environment nor in the working folder."""
        with stand_in() as server:
            server.expect("ready in")
            (worker,) = workers_of(server)
            assert len(engine_of(worker)) == 2
        assert gone([worker])
        assert not [line for line in [*server.lines, *server.rest()] if "stand-in" in line]

    async def test_what_it_cannot_go_on_with(self, stand_in: StartServer) -> None:
        """What counts as generated is refused by name, and a resumable stream is told no seed."""
        with stand_in() as server:
            server.expect("ready in")
            async with LmtpClient(server.url) as client, asyncio.timeout(PATIENCE):
                (refused,) = [one async for one in stream(client, GenerateRequest(1, (3, 4), generated=(5,)))]
                assert "it cannot have generated" in (refused.error or "")
                outputs = [one async for one in stream(client, GenerateRequest(2, (3, 4), resumable=True))]
                assert outputs[-1].finish_reason is not None
                assert {one.seed for one in outputs} == {None}

    async def test_every_process_may_be_killed(self, stand_in: StartServer) -> None:
        """The whole tree ends, its stream ends with an error, the log has the reason, and all is started again.

        An engine that dies while nobody asks for anything is noticed all the same.
        """
        with stand_in() as server:
            server.expect("ready in")
            await every_process_may_be_killed(server)
            (worker,) = workers_of(server)
            engine_of(worker)[0].kill()
            assert "EngineCore was killed by SIGKILL" in server.expect("worker 1 is down")
            server.expect("worker 1 is up again")

    async def test_a_worker_whose_engine_has_died(self, foreign_python: str) -> None:
        """Ends as well, with the reason, whoever has started it."""
        settings = {"model": str(STORIES), "name": "m", "options": {"behaviour": "good"}, "verbose": False}
        words = (foreign_python, str(VLLM_PROGRAM), json.dumps(settings))
        async with LmtpClient(CommandEndpoint(words, on_log=print)) as client, asyncio.timeout(PATIENCE):
            await client.info()
            (worker,) = [one for one in psutil.Process().children() if str(VLLM_PROGRAM) in one.cmdline()]
            engine_of(worker)[0].kill()
            while client.connected:
                await asyncio.sleep(0.05)
            assert client.loss is not None
            assert client.loss.message == "vLLM's engine has ended: EngineCore was killed by SIGKILL"
            assert gone([worker])

    @pytest.mark.parametrize("behaviour", ["good", "slow", "stuck"])
    def test_a_server_that_is_killed(self, stand_in: StartServer, behaviour: str) -> None:
        """Takes everything with it: while serving, while the model loads, and if the engine hangs in a computation.

        In the first case together with the worker, so that the engine's processes are on their own.
        """
        with stand_in(behaviour=behaviour) as server:
            tree = tree_of(server)
            if behaviour != "slow":
                server.expect("ready in")
            server.process.kill()
            if behaviour == "good":
                tree[0].kill()
            assert gone(tree)

    @pytest.mark.parametrize(("behaviour", "number"), [("good", signal.SIGTERM), ("slow", signal.SIGINT)])
    def test_a_server_that_is_told_to_end(self, stand_in: StartServer, behaviour: str, number: int) -> None:
        """The same, whether the model is there or not."""
        with stand_in(behaviour=behaviour) as server:
            tree = tree_of(server)
            if behaviour == "good":
                server.expect("ready in")
            server.process.send_signal(number)
            assert server.wait() == (0 if behaviour == "good" else 128 + number)
            assert gone(tree)

    def test_an_engine_that_hangs(self, stand_in: StartServer) -> None:
        """Is ended with its process group when its worker has died, and all is started again."""
        with stand_in(behaviour="stuck") as server:
            server.expect("ready in")
            (worker,) = workers_of(server)
            tree = [worker, *engine_of(worker)]
            worker.kill()
            assert gone(tree)
            server.expect("worker 1 is up again")

    def test_a_model_that_cannot_be_loaded(self, stand_in: StartServer) -> None:
        """The reason in our words with the option that helps, exit status 8, and nothing of what vLLM prints."""
        with stand_in(behaviour="memory") as server:
            assert server.wait() == 8
            said = "\n".join(server.rest())
        assert "vLLM wants 92 % of this machine's memory, 14.69 GiB, and 13.36 of 15.96 GiB are free" in said
        assert "\n  limit its KV cache:  --kv-cache-bytes 6600000000" in said
        assert "stand-in" not in said
        assert "Traceback" not in said

    def test_a_model_that_cannot_be_run(self, stand_in: StartServer) -> None:
        """Though it can be loaded: found out before anybody is told that it is there."""
        with stand_in(behaviour="wrong") as server:
            assert server.wait() == 8
            said = "\n".join(server.rest())
        assert (
            "error: vLLM does not run models whose attention heads are 8 wide, on this machine\n  lmtool's own" in said
        )

    def test_a_mistake_of_ours(self, foreign_python: str) -> None:
        """Ends the worker with a traceback for the server's log, and leaves nothing."""
        done = subprocess.run(
            [foreign_python, str(VLLM_PROGRAM), '{"verbose": false}'], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (70, "")
        assert done.stderr.startswith("Traceback")
        assert "error: the worker failed: KeyError: 'options'" in done.stderr

    def test_verbose(self, stand_in: StartServer) -> None:
        """What vLLM prints is shown with -v."""
        with stand_in("-v") as server:
            server.expect("ready in")
            noise = [line for line in server.lines if "stand-in" in line]
        assert len(noise) == 3


def tree_of(server: ServerProcess) -> list[psutil.Process]:
    """A worker and its engine's processes, as soon as they are all there."""
    server.expect("loading")
    for _ in range(600):
        for worker in workers_of(server):
            if len(engine := engine_of(worker)) == 2:
                return [worker, *engine]
        psutil.wait_procs(psutil.Process(server.process.pid).children(), 0.1)
    pytest.fail("the engine's processes did not start")


class TestVllm:
    """Over vLLM itself."""

    pytestmark = pytest.mark.peer

    async def test_it_speaks_text(self, over_vllm: ServerProcess) -> None:
        """By the model's own tokenizer, in the worker; its description names vLLM."""
        async with LmtpClient(over_vllm.url) as client:
            info = await client.info()
            assert (info.backend, info.vocab_size, info.context_length) == ("vllm", 512, 1000)
            request = GenerateRequest("a", "w9 w10", SamplingParams(max_tokens=3, ignore_eos=True), text=True)
            outputs = [output async for output in stream(client, request)]
        words = "".join(output.text or "" for output in outputs).split()
        assert words == [f"w{output.token}" for output in outputs]

    def test_it_is_one_process_of_its_own(self, over_vllm: ServerProcess) -> None:
        """In the environment that was named."""
        assert [worker.cmdline()[0] for worker in workers_of(over_vllm)] == [PYTHON]
        assert sys.executable != PYTHON

    async def test_every_process_may_be_killed(self, start_server: StartServer, tiny: Path) -> None:
        """The whole tree ends, its stream ends with an error, the log has the reason, and all is started again."""
        for server in over_vllm_with(start_server, tiny):
            await every_process_may_be_killed(server)
            (worker,) = workers_of(server)
            tree = [worker, *worker.children(recursive=True)]
            paths = {Path(part.path) for process in tree for part in process.memory_maps()}
            shared = [path for path in paths if path.is_relative_to("/dev/shm")]
            assert shared
            server.process.kill()
            worker.kill()
            assert gone(tree)
            assert not [path for path in shared if path.exists()]
