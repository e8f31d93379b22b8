"""The key-value cache of a model on a GPU: allocated last, with room left for CUDA graphs."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from lmtool.core.types import GenerateRequest, ModelInfo, SamplingParams
from lmtool.inference.engine import transformers_loader
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.engine.kv_cache import PagedCache
from lmtool.inference.engine.model_runner import ModelRunner
from lmtool.inference.engine.plan import Plan, Sequence, Span


def checked(runner, reference=None):
    """A model that passed its check."""
    info = ModelInfo("small", "", "transformers", vocab_size=101, context_length=256)
    return transformers_loader.CheckedModel("small", runner, reference, info, None, token_bytes=1000)


@pytest.mark.cuda
def test_another_cache_for_the_same_layers(runner_of, monkeypatch):
    """Steps over it, plain or captured, give what those over the cache of the check gave."""
    from lmtool.inference.engine.cuda.graphs import graph_bytes

    runner, *_ = runner_of("small")
    reserved = []
    monkeypatch.setattr(transformers_loader, "cache_blocks", lambda *arguments: reserved.append(arguments[-1]) or 9)
    with torch.inference_mode():
        model = transformers_loader.with_cache(checked(runner), EngineConfig(max_streams=4))
        text = Sequence(0, list(range(3, 20)), prompt_length=16, max_length=60, blocks=[7, 8])  # behind those of checks
        expected = [runner.run(Plan([span])) for span in (Span(text, 0, 16), Span(text, 16, 1))][1]
        model.runner.run(Plan([Span(text, 0, 16)]))
        assert torch.equal(model.runner.run(Plan([Span(text, 16, 1)])), expected)
        captured = model.runner.prepared(4, 256)
        assert captured.graphs is not None
        torch.testing.assert_close(captured.run(Plan([Span(text, 16, 1)])), expected, atol=1e-5, rtol=1e-5)
    assert (model.blocks, model.info.context_length) == (9, 9 * 16 + 1)
    assert model.runner.cache is not runner.cache
    assert reserved == [graph_bytes(4, 256, 101, 1, 1000) + 4 * 101 * 8]


@pytest.mark.cuda
async def test_a_closed_engine_holds_nothing(engine_on, run, random_ids):
    """Neither keys and values nor weights nor captured steps, whoever still refers to the engine."""
    engine = engine_on("small")
    await run(engine, GenerateRequest(1, random_ids(5, seed=1), SamplingParams(max_tokens=3, ignore_eos=True)))
    runner = engine._runner
    kept = [weakref.ref(own) for own in (runner.forward, runner.graphs, *runner.cache.memory(runner.forward.layers[0]))]
    del runner
    engine.close()
    gc.collect()
    assert [own() for own in kept] == [None] * 4


@pytest.mark.cuda
def test_memory_comes_back(gpu, checkpoint):
    """After a model is closed the GPU has what it had before, but for a library's workspaces; a second one fits."""
    config = EngineConfig(device=str(gpu), max_streams=16, kv_cache_bytes=1 << 30)
    free = []
    for _ in range(3):
        engine = load_engine(str(checkpoint("llama-packed")), config)
        engine.close()
        free.append(torch.cuda.mem_get_info(gpu)[0])
    assert min(free[1:]) > free[0] - (1 << 28)
    assert torch.cuda.memory_reserved(gpu) < 1 << 29


def test_no_room_for_graphs_that_there_are_not():
    """A runner without CUDA graphs needs none."""
    cache = PagedCache([], 4, torch.float32, torch.device("cpu"))
    plain = ModelRunner(None, cache, torch.device("cpu"), 16, 1)
    assert transformers_loader._graph_bytes(checked(plain), EngineConfig()) == 0
