"""The embedded model is in memory without transformers, and gives transformers' logits all the same."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from lmtool.core.errors import ModelLoadError
from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest
from lmtool.inference.engine import transformers_loader
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.cpu.forward import CompiledForward
from lmtool.inference.engine.decoder import LlamaForward
from lmtool.inference.engine.engine_loader import FOLDER, is_embedded, load_engine
from lmtool.inference.engine.selfcheck import check_runner, reference_logits
from lmtool.inference.tiny.path import MODEL_DIR
from tests.inference.engine.conftest import bits, no_compiler

ONE = EngineConfig(threads=1)
CODE = f"""
import asyncio, sys
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest

async def main():
    engine = load_engine({str(MODEL_DIR)!r})
    sampling = SamplingParams(max_tokens=5, ignore_eos=True, temperature=1, top_p=0.9, seed=1, top_logprobs=3)
    for request in (GenerateRequest(1, (5, 6, 7), sampling), ScoreRequest(2, (5,), (6, 7))):
        outputs = [output async for output in stream(engine, request)]
        assert outputs[-1].error is None, outputs[-1]
    engine.close()

asyncio.run(main())
heavy = {{"transformers", "huggingface_hub", "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "sympy"}}
print(sorted(heavy & set(sys.modules)))
"""


@pytest.fixture(scope="module", params=[CompiledForward, LlamaForward])
def kind(request):
    """What computes the model: compiled kernels, or torch's operators where there is no compiler."""
    with no_compiler() if request.param is LlamaForward else contextlib.nullcontext():
        yield request.param


@pytest.fixture(scope="module")
def embedded(kind):
    """A running engine over the embedded model."""
    engine = load_engine(str(MODEL_DIR), ONE)
    assert type(engine._runner.forward) is kind
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference():
    """The same model in transformers, with its own attention."""
    return transformers.AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype="float32", attn_implementation="eager")


def test_folder(tmp_path):
    """It is known by its folder, however that is written; a copy elsewhere is a model like any other."""
    assert FOLDER.samefile(MODEL_DIR)
    assert is_embedded(str(MODEL_DIR / ".." / FOLDER.name))
    assert not is_embedded(str(tmp_path))
    assert not is_embedded("lmtool-tiny")


def test_without_transformers():
    """Loading, generating and scoring import neither transformers nor torch's compiler."""
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_check_of_other_models(dtype):
    """It passes the check that other models have to pass at each load."""
    with torch.inference_mode():
        model = transformers.AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=dtype)
        engine = load_engine(str(MODEL_DIR), EngineConfig(threads=1, dtype=dtype))
        check_runner(engine._runner, "embedded", reference_logits(model, "embedded"))
    engine.close()


async def test_scores(embedded, reference, run):
    """A batch of texts up to the whole context has the logprobs of transformers' plain passes, within 1e-4."""
    generator = torch.Generator().manual_seed(0)
    texts = [tuple(torch.randint(1536, (length,), generator=generator).tolist()) for length in (2, 17, 64, 200, 511)]
    outputs = await run(embedded, *(ScoreRequest(n, ids[:1], ids[1:]) for n, ids in enumerate(texts)))
    for number, ids in enumerate(texts):
        with torch.inference_mode():
            logits = reference(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        expected = torch.log_softmax(logits, -1)[range(len(ids) - 1), ids[1:]].tolist()
        assert [output.logprob for output in outputs[number]] == pytest.approx(expected, abs=1e-4)


async def test_alone_and_in_a_crowd(embedded, run):
    """A seeded stream gives the same bits alone and among others of all lengths."""
    sampling = SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.2, seed=3, top_logprobs=5)
    request = GenerateRequest("subject", tuple(range(100, 190)), sampling)
    alone = bits((await run(embedded, request))["subject"])
    for crowd in (3, 24):
        others = [
            GenerateRequest(i, tuple(range(5, 6 + 11 * i)), SamplingParams(max_tokens=5 + i, temperature=i % 2))
            for i in range(crowd)
        ]
        outputs = await run(embedded, *others[: crowd // 2], request, *others[crowd // 2 :])
        assert bits(outputs["subject"]) == alone


def test_info(embedded):
    """What is told is what transformers would tell of it, but for who loads and runs it."""
    ours = embedded.info_now
    theirs = transformers_loader._info("x", transformers.AutoModelForCausalLM.from_pretrained(MODEL_DIR), 1536, 512)
    for name in ("vocab_size", "context_length", "eos_token_ids", "bos_token_id", "architecture", "parameters"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert (ours.backend, ours.constructor) == ("lmtool", f"lmtool.load({str(MODEL_DIR)!r})")
    assert ours.versions == {"torch": torch.__version__}


class TestSettings:
    """The engine's settings mean what they mean for other models."""

    def test_max_context(self):
        """A lower limit is kept."""
        engine = load_engine(str(MODEL_DIR), EngineConfig(threads=1, max_context=100, max_streams=1))
        engine.close()
        assert engine.info_now.context_length == 100

    def test_progress(self):
        """Bytes from none to all."""
        seen = []
        load_engine(str(MODEL_DIR), ONE, seen.append).close()
        size = (MODEL_DIR / "model.safetensors").stat().st_size
        assert [(one.phase, one.done_bytes, one.total_bytes) for one in seen] == [
            ("loading", 0, size),
            ("ready", size, size),
        ]


class TestDamage:
    """An installation that lost something."""

    @pytest.fixture
    def copy(self, tmp_path, monkeypatch):
        """A copy that counts as the embedded model."""
        for file in MODEL_DIR.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        monkeypatch.setattr("lmtool.inference.engine.engine_loader.FOLDER", Path(tmp_path))
        return tmp_path

    def test_cut_off(self, copy):
        """Weights that are not all there."""
        (copy / "model.safetensors").write_bytes((MODEL_DIR / "model.safetensors").read_bytes()[:5000])
        with pytest.raises(ModelLoadError, match="cannot be loaded"):
            load_engine(str(copy), ONE)

    def test_another_model(self, copy):
        """A configuration that does not belong to the weights."""
        raw = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**raw, "num_hidden_layers": 3}))
        with pytest.raises(ModelLoadError, match="damaged"):
            load_engine(str(copy), ONE)
