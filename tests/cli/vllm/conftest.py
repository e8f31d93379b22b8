"""A server over vLLM, where there is one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

VARIABLE = "LMTOOL_VLLM_PYTHON"
PYTHON = os.environ.get(VARIABLE)
"""Read at once: each test of a command gets a clean environment."""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Llama whose heads are as wide as vLLM wants them on a CPU."""
    from lmtool.bench.peers.maker_peer import Peer

    folder = tmp_path_factory.mktemp("tiny-llama")
    Peer({}).make("llama-tiny", str(folder), 0)
    return folder


@pytest.fixture(scope="session")
def over_vllm(start_server: StartServer, tiny: Path) -> Iterator[ServerProcess]:
    """`lmtool serve --backend vllm` on it; the test is skipped where no environment with vLLM is named."""
    if not PYTHON:
        pytest.skip(f"{VARIABLE} does not name the Python of an environment with vLLM")
    words = ("--backend", "vllm", "--backend-python", PYTHON, "--backend-option", "enforce_eager=true")
    more = ("--dtype", "float32", "--max-context", "1000", "--max-streams", "8")
    with start_server(str(tiny), *words, *more, VLLM_CPU_KVCACHE_SPACE="1") as server:
        server.expect("ready in")
        yield server
