"""A small model that every peer can load, and the environments of foreign peers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmtool.bench.contestants import variable
from lmtool.bench.worker import Worker

PROMPTS = [[5, 6, 7, 8, 9, 10], [100, 90, 80, 70, 60, 50], [11, 12, 13, 14, 15, 16]]
OUTPUT = 6


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Llama of 512 ids, float32."""
    from lmtool.bench.peers.maker_peer import Peer

    folder = tmp_path_factory.mktemp("tiny-llama")
    Peer({}).make("llama-tiny", str(folder), 0)
    return folder


@pytest.fixture(autouse=True)
def empty_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers run where no lmtool lies beside them."""
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))


@pytest.fixture
def settings(tiny: Path, tmp_path: Path) -> dict[str, Any]:
    """What a peer is started with."""
    return {"model": str(tiny), "work": str(tmp_path), "dtype": "float32", "threads": 1, "streams": 4, "tokens": 16}


@pytest.fixture(scope="session")
def right(tiny: Path) -> list[list[int]]:
    """Transformers' own greedy ids."""
    from lmtool.bench.peers.transformers_peer import Peer

    return Peer({"model": str(tiny), "dtype": "float32", "threads": 1}).generate(PROMPTS, OUTPUT)


@pytest.fixture
def foreign() -> Callable[[str, dict[str, Any]], Worker]:
    """A worker of a peer in its own environment; the test is skipped where there is none."""

    def make(peer: str, settings: dict[str, Any]) -> Worker:
        python = os.environ.get(variable(peer))
        if not python:
            pytest.skip(f"{variable(peer)} does not name the Python of an environment with it")
        return Worker(peer, python, settings)

    return make
