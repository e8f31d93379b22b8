"""The vLLM worker as a process, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from lmtool.lmtp.client import LmtpClient
from lmtool.ports import stream
from lmtool.types import GenerateRequest, SamplingParams
from tests.cli.vllm.conftest import PYTHON

if TYPE_CHECKING:
    from tests.conftest import Run, ServerProcess


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--backend vllm needs the Python of an environment that has vLLM"),
        (("--backend-python", "/no/python"), "--backend-python '/no/python' is no program"),
    ],
)
def test_without_an_environment(lmtool: Run, words: tuple[str, ...], message: str) -> None:
    """Exit status 8 with the install line."""
    done = lmtool("serve", "--backend", "vllm", *words)
    assert done.returncode == 8
    assert message in done.stderr
    assert "pip install vllm" in done.stderr


def test_an_environment_without_vllm(lmtool: Run) -> None:
    """The worker ends, and so does the server: starting it for ever would help nobody."""
    python = subprocess.run(["which", "python3"], capture_output=True, text=True, check=True).stdout.strip()
    done = lmtool("serve", "--backend", "vllm", "--backend-python", python, "--port", "0")
    assert done.returncode == 3
    assert "exit status" in done.stderr


@pytest.mark.peer
async def test_it_speaks_text(over_vllm: ServerProcess) -> None:
    """By the model's own tokenizer, in the worker; its description names vLLM."""
    async with LmtpClient(over_vllm.url) as client:
        info = await client.info()
        assert (info.backend, info.vocab_size, info.context_length) == ("vllm", 512, 1000)
        request = GenerateRequest("a", "w9 w10", SamplingParams(max_tokens=3, ignore_eos=True), text=True)
        outputs = [output async for output in stream(client, request)]
    words = "".join(output.text or "" for output in outputs).split()
    assert words == [f"w{output.token}" for output in outputs]


@pytest.mark.peer
def test_it_is_one_process_of_its_own(over_vllm: ServerProcess) -> None:
    """In the environment that was named."""
    workers = psutil.Process(over_vllm.process.pid).children()
    assert [worker.cmdline()[0] for worker in workers] == [PYTHON]
    assert sys.executable != PYTHON
