"""A model runs in the fastest form that gives transformers' logits, and through its own modules where none does."""

from __future__ import annotations

import logging

import pytest
import torch

from lmtool.engine import checked, lean
from lmtool.engine.backends import load_engine
from lmtool.engine.config import EngineConfig
from lmtool.engine.lean import LeanModel
from lmtool.engine.transformers_forward import TransformersForward
from lmtool.types import ScoreRequest

LEAN = {"llama", "llama-tied", "llama3-rope", "llama-packed", "mistral", "qwen2", "qwen3"}
"""Those of the test models that are of the family. What they compute is compared in test_model_runner."""


def test_who_runs_lean(architecture, engine_of):
    """The four families run lean, every other architecture through its own modules."""
    forward = engine_of(architecture)._runner.forward
    assert type(forward) is (LeanModel if architecture in LEAN else TransformersForward)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("architecture", ["llama-packed", "qwen3"])
def test_other_dtypes(architecture, dtype, engine_of):
    """The lean pass reproduces transformers' logits in half precision too, within its rounding."""
    assert type(engine_of(architecture, dtype=dtype)._runner.forward) is LeanModel


async def test_logits_that_differ(monkeypatch, checkpoint, reference, run, random_ids, caplog):
    """A lean pass that gives other logits is not used: the model is loaded again and runs through its modules."""
    monkeypatch.setattr(lean, "_rotate", lambda heads, cos, sin: heads * cos)
    with caplog.at_level(logging.WARNING):
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


def test_weights_are_in_memory_once(monkeypatch, checkpoint):
    """The transformers model has lost its weights to the lean pass, all of them."""
    models = []
    load = checked.load_model
    monkeypatch.setattr(checked, "load_model", lambda *arguments: models.append(load(*arguments)) or models[-1])
    load_engine(str(checkpoint("llama-packed")), EngineConfig(threads=1)).close()
    assert [sum(weight.numel() for weight in model.parameters()) for model in models] == [0]
