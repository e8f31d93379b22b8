"""Backends by name: our own and those of other packages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool.cli.backends import BackendConfig, find, refuse_options
from lmtool.engine.config import EngineConfig
from lmtool.errors import ResourceError, UsageError
from lmtool.interfaces import stream
from lmtool.lmtp.client import LmtpClient
from lmtool.types import GenerateRequest, SamplingParams

if TYPE_CHECKING:
    from tests.conftest import Run, StartServer


def test_options_are_words() -> None:
    """`NAME=VALUE`; the value may hold anything."""
    config = BackendConfig("vllm", "python", ("a=1", "b=x=y", "c="))
    assert config.options == {"python": "python", "a": "1", "b": "x=y", "c": ""}
    with pytest.raises(UsageError, match="is no NAME=VALUE"):
        _ = BackendConfig(backend_option=("a",)).options


def test_an_unknown_backend_is_refused() -> None:
    """With those that are known."""
    with pytest.raises(UsageError) as refused:
        find("exllama")
    assert "random" in refused.value.hints[0]
    with pytest.raises(UsageError, match="has no option 'a'"):
        find("transformers")("m", EngineConfig(), {"a": "1"}, lambda _progress: None)
    refuse_options("x", {"a": "1"}, ("a", "b"))


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


def test_a_gguf_file_needs_its_backend(lmtool: Run, tmp_path: Path) -> None:
    """Said at once; and without llama-cpp-python the install line, exit status 8."""
    (tmp_path / "small.gguf").touch()
    plain = lmtool("serve", "small.gguf")
    assert plain.returncode == 2
    assert "add:  --backend llamacpp" in plain.stderr
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
