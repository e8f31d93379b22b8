"""LMQL 0.7.3's own programs, and a tiny model that both sides can load."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PATIENCE = 120.0
VARIABLE = "LMTOOL_LMQL_PYTHON"


@dataclass
class Lmql:
    """The Python of an environment with LMQL."""

    python: str

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}

    def run(self, script: str, *words: str, cwd: Path) -> Any:
        """What one of the scripts in this folder writes."""
        done = subprocess.run(
            [self.python, str(HERE / script), *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            cwd=cwd,
            env=self.environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    @contextlib.contextmanager
    def serve(self, folder: Path) -> Iterator[int]:
        """Run LMQL's server on a free port until it is left."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [self.python, "-m", "lmql.cli", "serve-model", str(folder), "--port", str(port)]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**self.environment, "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        said: list[str] = []
        try:
            for line in process.stdout:
                said.append(line)
                if "ready on device" in line:
                    break
            else:
                pytest.fail("LMQL's server did not start:\n" + "".join(said))
            # It goes on talking; what it says has to be taken from it.
            drain = threading.Thread(target=said.extend, args=(process.stdout,), daemon=True)
            drain.start()
            yield port
        finally:
            process.kill()
            process.wait(PATIENCE)
            process.stdout.close()


@pytest.fixture(scope="session")
def lmql() -> Lmql:
    """LMQL's programs; the test is skipped where they are not."""
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"{VARIABLE} does not name the Python of an environment with LMQL 0.7.3")
    return Lmql(python)


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random GPT-2 of 304 tokens whose files old and new libraries read."""
    from tests.peer.tiny_gpt2 import make_tiny_gpt2

    folder = tmp_path_factory.mktemp("models") / "tiny-gpt2"
    make_tiny_gpt2(folder)
    return folder


@pytest.fixture(scope="session")
def lmqls_server(lmql: Lmql, tiny_gpt2: Path) -> Iterator[int]:
    """The port of LMQL's own server with the tiny model."""
    with lmql.serve(tiny_gpt2) as port:
        yield port


@pytest.fixture(scope="session")
def our_server(lmql: Lmql, tiny_gpt2: Path, start_server: Any) -> Iterator[int]:
    """The port of `lmtool serve` with the same."""
    with start_server(str(tiny_gpt2), "--dtype", "float32") as process:
        process.expect("ready in")
        yield int(process.url.rstrip("/").rpartition(":")[2])
