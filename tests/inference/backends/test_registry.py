"""Backends by name: our own and those of other packages."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool.core.errors import ResourceError, UsageError
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.inference.backends.registry import BackendConfig, check_vllm_python, find, number_options
from lmtool.inference.engine.config import EngineConfig
from lmtool.protocol.lmtp.client import LmtpClient
from tests.net.subprocesses.test_foreign_python import program

if TYPE_CHECKING:
    from tests.conftest import Run, StartServer


def test_options_are_words() -> None:
    """`NAME=VALUE`; the value may hold anything."""
    config = BackendConfig("vllm", "python", ("a=1", "b=x=y", "c="))
    assert config.options == {"python": "python", "a": "1", "b": "x=y", "c": ""}
    with pytest.raises(UsageError, match="is no NAME=VALUE"):
        _ = BackendConfig(backend_option=("a",)).options


def test_options_without_a_backend_are_refused() -> None:
    """Before anything is loaded; a backend's own options are its loader's business."""
    with pytest.raises(UsageError, match="'transformers' has no option 'seed'"):
        BackendConfig(backend_option=("seed=1",)).check()
    BackendConfig("random", backend_option=("seed=1",)).check()


def test_an_unknown_backend_is_refused() -> None:
    """With those that are known."""
    with pytest.raises(UsageError) as refused:
        find("exllama")
    assert "random" in refused.value.hints[0]
    with pytest.raises(UsageError, match="has no option 'a'"):
        find("transformers")("m", EngineConfig(), {"a": "1"}, lambda _progress: None)


@pytest.mark.parametrize("options", [{"c": "1"}, {"a": "many"}, {"a": "-1"}, {"a": "8"}, {"a": "nan"}])
def test_options_that_make_no_sense(options: dict[str, str]) -> None:
    """An unknown name, no number, out of range: refused; the ends of a range are in it."""
    with pytest.raises(UsageError, match=f"option '?{next(iter(options))}"):
        number_options("x", options, {"a": (0, 7), "b": (1, 2)})
    assert number_options("x", {"a": "7", "b": "1"}, {"a": (0, 7), "b": (1, 2)}) == {"a": 7, "b": 1}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that brings two backends, one of them broken."""
    (tmp_path / "brought.py").write_text("def load(model, config, options, on_progress):\n    return model\n")
    metadata = tmp_path / "brought-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[lmtool.backends]\nmine = brought:load\nbroken = brought:nothing\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("package")
def test_a_package_brings_a_backend() -> None:
    """By an entry point of the group `lmtool.backends`; a broken one is named."""
    assert find("mine")("m", EngineConfig(), {}, lambda _progress: None) == "m"  # type: ignore[comparison-overlap]
    with pytest.raises(ResourceError, match="the backend 'broken' cannot be imported"):
        find("broken")
    sys.modules.pop("brought")


def test_a_gguf_file_without_a_model(lmtool: Run, tmp_path: Path) -> None:
    """What is none is said by our engine; and llama.cpp's, where it is asked for and missing, how to install it."""
    (tmp_path / "small.gguf").write_bytes(b"nonsense")
    plain = lmtool("serve", "small.gguf", "--port", "0")
    assert plain.returncode == 8
    assert "small.gguf is not a GGUF file" in plain.stderr
    missing = lmtool("serve", "small.gguf", "--backend", "llamacpp", "--port", "0")
    assert missing.returncode == 8
    assert "pip install llama-cpp-python" in missing.stderr


async def test_a_server_over_a_backend(start_server: StartServer) -> None:
    """`serve --backend random`: text in and text out by the model's tokenizer, no weights read."""
    words = ("--backend", "random", "--backend-option", "seed=3")
    with start_server(*words) as server:
        server.expect("ready in")
        async with LmtpClient(server.url) as client:
            assert (await client.info()).backend == "random"
            request = GenerateRequest("a", "Hello", SamplingParams(max_tokens=4, ignore_eos=True), text=True)
            outputs = [output async for output in stream(client, request)]
    assert len(outputs) == 4
    assert any(output.text for output in outputs)


def test_a_complete_vllm_environment(foreign_python: str) -> None:
    """Is accepted."""
    check_vllm_python(foreign_python)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo '[[3, 8, 1], []]'", "is Python 3.8.1, and workers need 3.11 or newer"),
        ('echo \'[[3, 13, 0], ["vllm", "msgspec"]]\'', "there is no vLLM in the environment of"),
        ('echo \'[[3, 13, 0], ["msgspec", "jinja2"]]\'', "lacks what vLLM itself requires: msgspec jinja2"),
    ],
)
def test_incomplete_vllm_environments(tmp_path: Path, script: str, message: str) -> None:
    """Are refused with what is missing and how to install it."""
    with pytest.raises(ResourceError, match=message.replace("[", r"\[")) as refused:
        check_vllm_python(program(tmp_path / "python", script))
    assert "pip install" in refused.value.hints[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--backend vllm needs the Python of an environment that has vLLM"),
        (("--backend-python", "/no/python"), "'/no/python' does not run as a Python: No such file"),
        (("--backend-python", shutil.which("env") or ""), "does not run as a Python"),
        (("--backend-python", sys.executable), "there is no vLLM in the environment of"),
    ],
)
def test_a_server_without_vllm(lmtool: Run, words: tuple[str, ...], message: str) -> None:
    """Exit status 8 with the install line, and no port is opened."""
    done = lmtool("serve", "--backend", "vllm", *words, "--port", "0")
    assert (done.returncode, done.stdout) == (8, "")
    assert message in done.stderr
    assert "pip install vllm" in done.stderr
