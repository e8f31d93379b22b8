"""One model split over two nodes of a Ray cluster, both on this machine; what vLLM refuses; what a lost process ends.

Needs Ray in vLLM's environment, and some minutes: pytest -m peer tests/inference/backends/vllm/test_over_ray.py
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from lmtool.protocol.lmtp.client import LmtpClient
from tests.conftest import PATIENCE
from tests.inference.backends.vllm.conftest import PYTHON, VARIABLE, gone, over_vllm_with, workers_of
from tests.inference.backends.vllm.test_tensor_parallel import SPLIT, UNBOUND, same_constraints, same_streams_as_ours
from tests.inference.backends.vllm.test_worker import LONG, LOST, answered

if TYPE_CHECKING:
    from lmtool.core.types import TokenOutput
    from tests.conftest import ServerProcess, StartServer

pytestmark = pytest.mark.peer
PLATFORM = Path(__file__).parent / "ray_platform"
OVER_RAY = (*SPLIT, "--distributed-executor-backend", "ray")
NODE = ("--block", "--num-cpus=2", "--num-gpus=1", "--object-store-memory=80000000")
ACTOR = "ray::RayWorkerProc"


@contextlib.contextmanager
def ray(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A node of a cluster, `ray start WORDS...`, that ends with the block, and all of its processes with it."""
    assert PYTHON is not None
    environment = {**os.environ, "PYTHONPATH": str(PLATFORM), "RAY_USAGE_STATS_ENABLED": "0"}
    command = (PYTHON, "-m", "ray.scripts.scripts", "start", *NODE, *words)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    ) as node:
        try:
            assert node.stdout is not None
            said: list[str] = []
            while "Ray runtime started" not in (line := node.stdout.readline()):
                said.append(line)
                assert line, "".join(said)
            yield node
        finally:
            started = psutil.Process(node.pid).children(recursive=True)
            node.terminate()
            _, left = psutil.wait_procs(started, PATIENCE)
            for process in left:
                process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of two nodes with a device each."""
    if not PYTHON or subprocess.run([PYTHON, "-c", "import ray"], capture_output=True, check=False).returncode:
        pytest.skip(f"{VARIABLE} does not name the Python of an environment with vLLM and Ray")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:  # a socket's path is short
        head = ("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}")
        with ray(*head), ray(f"--address={address}"):
            yield address


@pytest.fixture(scope="module")
def server(start_server: StartServer, tiny_text: Path, cluster: str) -> Iterator[ServerProcess]:
    """The model over both nodes."""
    environment = {**UNBOUND, "RAY_ADDRESS": cluster, "PYTHONPATH": str(PLATFORM)}
    yield from over_vllm_with(start_server, tiny_text, *OVER_RAY, **environment)


def actors() -> list[psutil.Process]:
    """The processes that have a part of the model each, below Ray's own."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if process.cmdline() and process.cmdline()[0].startswith(ACTOR):
                found.append(process)
    return found


async def test_streams_are_those_of_our_engine(server: ServerProcess, tiny_text: Path) -> None:
    """Each part is on a node of its own; neither has lmtool, which Ray brings there."""
    assert len({process.ppid() for process in actors()}) == 2
    await same_streams_as_ours(server, tiny_text)


async def test_constraints(server: ServerProcess) -> None:
    """They are compiled and applied on both nodes."""
    await same_constraints(server)


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_lost_process(server: ServerProcess, rank: int) -> None:
    """Ends the streams with an error; the log has the reason, and all is started again."""
    async with LmtpClient(server.url) as client:
        await answered(client)
        found: list[TokenOutput] = []
        client.submit(LONG, found.extend)
        async with asyncio.timeout(PATIENCE):
            while not found:
                await asyncio.sleep(0.001)
            before = actors()
            assert len(before) == 2
            before[rank].kill()
            while not found[-1].last:
                await asyncio.sleep(0.05)
        assert (found[-1].error_code, found[-1].error) == ("connection", LOST)
        assert "vLLM's engine has ended: RayWorkerProc rank=" in server.expect("worker 1 is down")
        assert gone(before)
        await answered(client)
        server.expect("worker 1 is up again")
        assert len(actors()) == 2


async def test_a_killed_worker(server: ServerProcess) -> None:
    """Leaves nothing on the nodes either."""
    before = actors()
    (worker,) = workers_of(server)
    worker.kill()
    assert gone([worker, *before])
    async with LmtpClient(server.url) as client:
        await answered(client)


def test_cpus_alone(start_server: StartServer, tiny_text: Path, cluster: str) -> None:
    """Without the plugin vLLM refuses, and its reason is told with what to do."""
    assert PYTHON is not None
    words = ("--backend", "vllm", "--backend-python", PYTHON, *OVER_RAY, "--dtype", "float32")
    environment = {**UNBOUND, "RAY_ADDRESS": cluster, "VLLM_CPU_KVCACHE_SPACE": "1"}
    with start_server(str(tiny_text), *words, **environment) as server:
        said = server.expect("error:", 5 * PATIENCE)
    assert "current platform cpu does not support ray" in said
