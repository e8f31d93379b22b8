"""A model runs in the fastest form that gives transformers' logits, and through its own modules where none does."""

from __future__ import annotations

import contextlib
import logging

import pytest
import torch
import transformers

from lmtool.core.types import ScoreRequest
from lmtool.inference.engine import decoder, transformers_loader
from lmtool.inference.engine.batch_invariant import PACKED_MIN_ROWS, PLAIN_MIN_ROWS
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.cpu import forward
from lmtool.inference.engine.cpu.forward import CompiledForward
from lmtool.inference.engine.decoder import LlamaForward
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.engine.selfcheck import TransformersForward
from tests.inference.engine.conftest import no_compiler, save_model

LEAN = {"llama", "llama-tied", "llama3-rope", "llama-packed", "mistral", "qwen2", "qwen3"}
"""Those of the test models that are of the family. What they compute is compared in test_model_runner."""

COMPILED = LEAN | {"gpt2", "gpt2-packed"}


def test_who_runs_compiled(architecture, engine_of, kernels):
    """With a C compiler, the four families and GPT-2 run compiled, every other architecture through its own modules."""
    chosen = engine_of(architecture)._runner.forward
    assert type(chosen) is (CompiledForward if architecture in COMPILED else TransformersForward)


def test_who_runs_lean(architecture, engine_of):
    """Without one the four families run lean, every other architecture through its own modules."""
    chosen = engine_of(architecture, compiled=False)._runner.forward
    assert type(chosen) is (LlamaForward if architecture in LEAN else TransformersForward)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("architecture", ["llama-packed", "qwen3"])
def test_other_dtypes(architecture, dtype, engine_of):
    """The lean pass reproduces transformers' logits in half precision too, within its rounding."""
    assert type(engine_of(architecture, dtype=dtype, compiled=False)._runner.forward) is LlamaForward


@pytest.mark.parametrize("architecture", sorted(COMPILED))
def test_compiled_bfloat16(architecture, engine_of, kernels):
    """Weights in bfloat16 reproduce transformers' bfloat16 logits within its rounding, whatever the processor."""
    engine = engine_of(architecture, dtype="bfloat16")
    assert type(engine._runner.forward) is CompiledForward
    assert (engine.info_now.dtype, engine.info_now.kernels) == ("bfloat16", kernels.name)


def test_compiled_bfloat16_of_many_layers(tmp_path, kernels):
    """Rounding that grows from layer to layer, in transformers as here, is no reason to compute another way."""
    shape = {"vocab_size": 101, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**shape, num_hidden_layers=40, num_key_value_heads=2, initializer_range=0.2)
    engine = load_engine(str(save_model(config, tmp_path)), EngineConfig(threads=1, dtype="bfloat16"))
    assert type(engine._runner.forward) is CompiledForward
    engine.close()


def test_what_computes_is_told(engine_of, kernels):
    """C kernels; or what multiplies in torch's operators, where they do not compute it."""
    assert engine_of("llama").info_now.kernels == kernels.name
    products = {PACKED_MIN_ROWS: "oneDNN", PLAIN_MIN_ROWS: "torch"}
    for engine in (engine_of("llama", compiled=False), engine_of("gemma"), engine_of("gpt2-packed", compiled=False)):
        assert engine.info_now.kernels == products[engine._runner.min_rows]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_compiled_logits_that_differ(dtype, monkeypatch, checkpoint, caplog, kernels):
    """A compiled pass that gives other logits is not used: the next way is taken, and the log says why."""
    right = forward.CompiledForward._embed

    def wrong(self, batch, hidden):
        right(self, batch, hidden)
        hidden.mul_(1.1).add_(0.1)

    monkeypatch.setattr(forward.CompiledForward, "_embed", wrong)
    with caplog.at_level(logging.WARNING):
        engine = load_engine(str(checkpoint("llama")), EngineConfig(threads=1, dtype=dtype))
    assert type(engine._runner.forward) is LlamaForward
    engine.close()
    assert "runs without compiled kernels" in caplog.text
    assert "logits differ" in caplog.text


async def test_logits_that_differ(monkeypatch, checkpoint, reference, run, random_ids, caplog):
    """A lean pass that gives other logits is not used: the model is loaded again and runs through its modules."""
    monkeypatch.setattr(decoder, "_rotate", lambda heads, cos, sin: heads * cos)
    with no_compiler(), caplog.at_level(logging.WARNING):
        engine = load_engine(str(checkpoint("llama")), EngineConfig(threads=1))
    assert "runs through transformers' modules" in caplog.text
    assert "logits differ" in caplog.text
    ids = random_ids(30, seed=1)
    outputs = await run(engine, ScoreRequest(1, ids[:1], ids[1:]))
    engine.close()
    with torch.inference_mode():
        logits = reference("llama")(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    expected = torch.log_softmax(logits, -1)[range(29), ids[1:]].tolist()
    assert [output.logprob for output in outputs[1]] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("way", [no_compiler, contextlib.nullcontext])
def test_weights_are_in_memory_once(monkeypatch, checkpoint, way):
    """The transformers model has lost its weights to the lean or the compiled pass, all of them."""
    models = []
    load = transformers_loader.load_model
    monkeypatch.setattr(
        transformers_loader, "load_model", lambda *arguments: models.append(load(*arguments)) or models[-1]
    )
    with way():
        load_engine(str(checkpoint("llama-packed")), EngineConfig(threads=1)).close()
    assert [sum(weight.numel() for weight in model.parameters()) for model in models] == [0]
