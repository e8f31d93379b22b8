"""What runs a model on a GPU."""

from __future__ import annotations

import pytest
import torch

from lmtool.engine.cuda import load
from lmtool.engine.cuda.paged_cache import PagedCache
from lmtool.engine.kv_cache import LayerShape
from lmtool.engine.lean_config import LeanConfig
from lmtool.engine.model_runner import ModelRunner
from lmtool.engine.selfcheck import RecordedLayer
from lmtool.errors import ModelLoadError

CPU = torch.device("cpu")
SHAPE = LeanConfig("llama", 101, 32, 48, 4, 2, 8, 1e-6, tied=False, windows=(None,))


def plain_runner():
    """A runner with pages, as it is before a way of attention is chosen, and its one layer."""
    layer = RecordedLayer(object(), LayerShape(2, 8, 8), None, 4, 8**-0.5, None)
    cache = PagedCache([(layer.layer, layer.shape)], 4, torch.float32, CPU)
    return ModelRunner(None, cache, CPU, 16, 1), layer


@pytest.mark.usefixtures("no_triton")
def test_without_triton_pages_are_gathered(caplog):
    """Where no kernel works the plain runner stays, without a fused pass, and the log says so."""
    runner, layer = plain_runner()
    assert load.paged_runner(runner, [layer], torch.float32, deterministic=False) is runner
    assert load.lean_model(runner, SHAPE, {}, torch.ones(4), 64) is None
    assert "no paged attention works on cpu" in caplog.text


@pytest.mark.usefixtures("no_triton")
def test_deterministic_needs_triton():
    """`--deterministic` is refused where it cannot be kept."""
    runner, layer = plain_runner()
    with pytest.raises(ModelLoadError, match="--deterministic needs Triton"):
        load.paged_runner(runner, [layer], torch.float32, deterministic=True)


def test_deterministic_needs_a_fused_pass():
    """The refusal says for which models it can be kept."""
    problem = load.no_fixed_pass("gpt2")
    assert "gpt2 cannot be served with --deterministic" in problem.message
    assert "Qwen3" in problem.hints[0]


@pytest.mark.cuda
def test_other_families_have_no_fused_pass(runner_of):
    """A family that the fused pass does not compute runs through its own modules."""
    runner, _, _ = runner_of("gpt2")
    other = LeanConfig("gpt2", 101, 32, 48, 4, 2, 8, 1e-6, tied=False, windows=(None,))
    assert load.lean_model(runner, other, {}, torch.ones(4), 64) is None
