"""A server over vLLM, where there is one, and over a stand-in with processes of the same shape everywhere."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.conftest import PATIENCE, STORIES

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

VARIABLE = "LMTOOL_VLLM_PYTHON"
PYTHON = os.environ.get(VARIABLE)
"""Read at import: each test of a command gets a clean environment."""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Llama whose heads are as wide as vLLM wants them on a CPU."""
    from lmtool.measure.bench.peers.maker_peer import Peer

    folder = tmp_path_factory.mktemp("tiny-llama")
    Peer({}).make("llama-tiny", str(folder), 0)
    return folder


@pytest.fixture(scope="session")
def tiny_text(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a real tokenizer of the same size: each byte is a token of it."""
    folder = tmp_path_factory.mktemp("parent") / "tiny-text"
    shutil.copytree(tiny, folder)
    shutil.copy(STORIES / "tokenizer.json", folder)
    return folder


@pytest.fixture(scope="session")
def over_vllm(start_server: StartServer, tiny: Path) -> Iterator[ServerProcess]:
    """`lmtool serve --backend vllm` on it; the test is skipped where no environment with vLLM is named."""
    yield from over_vllm_with(start_server, tiny)


@pytest.fixture(scope="session")
def over_vllm_text(start_server: StartServer, tiny_text: Path) -> Iterator[ServerProcess]:
    """The same on the model that has a real tokenizer."""
    yield from over_vllm_with(start_server, tiny_text)


@pytest.fixture
def stand_in(start_server: StartServer, foreign_python: str) -> StartServer:
    """Start `lmtool serve --backend vllm` over the stand-in, from an empty folder; words: further options."""

    def start(*words: str, behaviour: str = "good") -> contextlib.AbstractContextManager[ServerProcess]:
        backend = (
            "--backend",
            "vllm",
            "--backend-python",
            foreign_python,
            "--backend-option",
            f"behaviour={behaviour}",
        )
        return start_server(str(STORIES), *backend, *words)

    return start


def workers_of(server: ServerProcess) -> list[psutil.Process]:
    """The worker processes of a server."""
    return psutil.Process(server.process.pid).children()


def engine_of(worker: psutil.Process) -> list[psutil.Process]:
    """The engine's processes below a worker, without Python's own helpers, which track what is shared."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        found = [one for one in worker.children(recursive=True) if "resource_tracker" not in str(one.cmdline())]
    return found


def gone(processes: list[psutil.Process], seconds: float = PATIENCE) -> bool:
    """Whether all of these processes end within some time."""
    _, alive = psutil.wait_procs([one for one in processes if one.is_running()], seconds)
    return all(one.status() == psutil.STATUS_ZOMBIE for one in alive)


def over_vllm_with(start_server: StartServer, folder: Path, *options: str, **env: str) -> Iterator[ServerProcess]:
    """A server on a model's folder, with further options and variables in its environment."""
    if not PYTHON:
        pytest.skip(f"{VARIABLE} does not name the Python of an environment with vLLM")
    words = ("--backend", "vllm", "--backend-python", PYTHON, "--backend-option", "enforce_eager=true")
    more = ("--dtype", "float32", "--max-context", "1000", "--max-streams", "8")
    with start_server(str(folder), *words, *more, *options, VLLM_CPU_KVCACHE_SPACE="1", **env) as server:
        server.expect("ready in", 5 * PATIENCE)  # half a minute on a quiet machine
        yield server
