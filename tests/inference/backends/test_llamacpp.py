"""GGUF files through llama.cpp, under our engine."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from lmtool.core import constraint
from lmtool.core.errors import ModelLoadError, ResourceError, UsageError
from lmtool.core.types import GenerateRequest, NamedProcessor, SamplingParams, ScoreRequest
from lmtool.inference.backends.llamacpp import load_llamacpp
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.guide.compiler import MatcherCompiler
from lmtool.inference.text.tokenizer import load_tokenizer
from tests.conftest import STORIES

PYTHON = os.environ.get("LMTOOL_LLAMACPP_PYTHON")
ONE = EngineConfig(threads=1, dtype="float32", max_streams=8, max_context=256)


def quiet(_progress):
    """Nobody asks how the load proceeds."""


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is not None, reason="llama-cpp-python is installed here")
def test_without_the_package():
    """The install line, exit status 8."""
    with pytest.raises(ResourceError, match="needs the package llama-cpp-python") as refused:
        load_llamacpp("x.gguf", ONE, {}, quiet)
    assert "pip install llama-cpp-python" in refused.value.hints[0]


@pytest.mark.parametrize("options", [{"layers": "1"}, {"n_gpu_layers": "all"}])
def test_options_that_make_no_sense(options):
    """Refused with the value."""
    with pytest.raises(UsageError):
        load_llamacpp("x.gguf", ONE, options, quiet)


@pytest.fixture(scope="module")
def llama_cpp():
    """Let this process find the package of the environment that is named; its other packages come after our own."""
    if not PYTHON:
        pytest.skip("LMTOOL_LLAMACPP_PYTHON does not name the Python of an environment with llama-cpp-python and gguf")
    where = subprocess.run(
        [PYTHON, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    sys.path.append(where)
    yield
    sys.path.remove(where)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random Llama as transformers has it."""
    from lmtool.measure.bench.peers.maker_peer import Peer

    path = tmp_path_factory.mktemp("llama")
    Peer({}).make("llama-tiny", str(path), 0)
    return path


@pytest.fixture(scope="module")
def gguf(llama_cpp, folder, tmp_path_factory):
    """The same as a GGUF file of float32."""
    from pathlib import Path

    from lmtool.measure.bench.peers.llamacpp_peer import write_gguf

    path = Path(tmp_path_factory.mktemp("gguf")) / "tiny.gguf"
    write_gguf(folder, path, "float32")
    return path


@pytest.fixture(scope="module")
def engines(gguf, folder):
    """The model at llama.cpp and at our own engine."""
    both = load_llamacpp(str(gguf), ONE, {}, quiet), load_engine(str(folder), ONE)
    yield both
    for engine in both:
        engine.close()


@pytest.mark.peer
class TestLlamaCpp:
    """Everything but the logits is our engine's own."""

    async def test_a_crowd_says_what_our_engine_says(self, engines, run):
        """More streams than fit at once, long prompts in chunks: ids and logprobs of our own forward pass."""
        sampling = SamplingParams(max_tokens=9, ignore_eos=True, top_logprobs=3)
        prompts = [tuple(3 + (n * 7 + i * 13) % 500 for i in range(1 + 17 * n)) for n in range(12)]
        requests = [GenerateRequest(n, prompt, sampling) for n, prompt in enumerate(prompts)]
        theirs, ours = [await run(engine, *requests) for engine in engines]
        for number in range(len(prompts)):
            assert [o.token for o in theirs[number]] == [o.token for o in ours[number]]
            expected = [o.logprob for o in ours[number]]
            assert [o.logprob for o in theirs[number]] == pytest.approx(expected, abs=1e-3)

    async def test_scoring_bias_and_stop(self, engines, run):
        """SCORE gives all logits of a chunk; a forced stop id ends a stream."""
        sampling = SamplingParams(max_tokens=5, logit_bias={9: 100.0}, stop_token_ids=(9,))
        requests = (
            ScoreRequest("a", (5, 6), tuple(range(10, 150)), top_logprobs=2),
            GenerateRequest("b", (5,), sampling),
        )
        theirs, ours = [await run(engine, *requests) for engine in engines]
        assert [o.logprob for o in theirs["a"]] == pytest.approx([o.logprob for o in ours["a"]], abs=1e-3)
        assert [(o.token, o.logprob, o.finish_reason) for o in theirs["b"]] == [(9, 0.0, "stop")]

    async def test_cancelled_streams_make_room(self, engines, run):
        """Again and again, more often than there are places."""
        engine = engines[0]
        for number in range(20):
            arrived = asyncio.Event()
            handle = engine.submit(
                GenerateRequest(number, (5, number + 3), SamplingParams(max_tokens=200, ignore_eos=True)),
                lambda _outputs, arrived=arrived: arrived.set(),
            )
            await asyncio.wait_for(arrived.wait(), 30)
            handle.cancel()
        (last,) = (await run(engine, GenerateRequest("z", (5,), SamplingParams(max_tokens=1))))["z"]
        assert last.finish_reason == "length"

    async def test_constraints_and_processors(self, engines, run, plugin, monkeypatch):
        """The same guides hold its logits, mixed with streams that nothing holds, and the same ids come."""
        tokenizer = load_tokenizer(str(STORIES))
        for engine in engines:
            engine.set_guide_compiler(MatcherCompiler(tokenizer.to_json(), 512, (2,)))
            known = replace(engine.info_now, eos_token_ids=(2,))  # which the file, without a vocabulary, does not say
            monkeypatch.setattr(engine._factory, "_info", known)
        patterns = ["[0-9]{3}", "(ab|cd){2,4}", "red|green", '\\{"a": (true|false)\\}']
        sampling = SamplingParams(max_tokens=40)
        requests = [
            GenerateRequest(n, (5, 6 + n), sampling, constraint=None if pattern is None else constraint.regex(pattern))
            for n, pattern in enumerate([*patterns, None])
        ]
        named = (NamedProcessor("louder", {"ids": [40, 41]}),)
        requests.append(GenerateRequest("louder", (5,), replace(sampling, max_tokens=3), logits_processors=named))
        requests.append(GenerateRequest("bad", (5,), sampling, constraint=constraint.regex("(?=a)b")))
        theirs, ours = [await run(engine, *requests) for engine in engines]
        for number, pattern in enumerate(patterns):
            assert theirs[number][-1].error is None
            ids = [output.token for output in theirs[number]]
            assert re.fullmatch(pattern, tokenizer.decode(ids))
            assert theirs[number][-1].finish_reason == "stop"
        assert [o.token for o in theirs["louder"]][:2] == [40, 41]
        assert theirs["bad"][-1].error_code == "invalid_constraint"
        for name, outputs in ours.items():
            assert [o.token for o in theirs[name]] == [o.token for o in outputs]

    def test_what_it_says_of_itself(self, engines):
        """Size, context and vocabulary as the file has them."""
        info = engines[0].info_now
        assert (info.backend, info.model, info.vocab_size, info.context_length) == ("llamacpp", "tiny", 512, 256)

    def test_files_that_are_none(self, llama_cpp, tmp_path):
        """A folder, a missing file, a damaged one."""
        damaged = tmp_path / "bad.gguf"
        damaged.write_bytes(b"GGUF nonsense")
        for path in (tmp_path, tmp_path / "none.gguf", damaged):
            with pytest.raises(ModelLoadError):
                load_llamacpp(str(path), ONE, {}, quiet)
