"""Where the tests of GPU code run: on an NVIDIA GPU, or in Triton's interpreter (TRITON_INTERPRET=1), or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import transformers

from lmtool.core.types import ModelInfo
from lmtool.inference.engine import selfcheck
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.decoder import decoder_config
from lmtool.inference.engine.engine import Engine
from lmtool.inference.engine.kv_cache import PagedCache
from lmtool.inference.engine.model_runner import ModelRunner
from lmtool.inference.engine.plan import Limits
from lmtool.inference.engine.selfcheck import Reference, TransformersForward, record_layers, reference_logits
from lmtool.inference.engine.transformers_loader import fused_llama, paged_runner
from tests.inference.engine.conftest import save_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from lmtool.inference.engine.cuda.runner import CudaRunner

VOCABULARY, CONTEXT = 101, 256
"""Of the models of `checkpoint`, see the folder above."""

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, and say why, what is marked `cuda` where there is neither a GPU nor the interpreter."""
    reason = f"needs an NVIDIA GPU, and torch {torch.__version__} sees none; or Triton and TRITON_INTERPRET=1"
    runs = torch.cuda.is_available() or INTERPRETED
    for item in items:
        if item.get_closest_marker("cuda") and not runs:
            item.add_marker(pytest.mark.skip(reason=reason))
        if INTERPRETED:  # the interpreter's own habit, an error from numpy 2.4 on
            item.add_marker(pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, where no plugin has made a function of it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@contextlib.contextmanager
def forbidden_syncs() -> Iterator[None]:
    """Whatever makes the host wait for the GPU raises `RuntimeError` meanwhile, in any thread."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)  # torch, once
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def device() -> torch.device:
    """Where kernels run: the GPU, or the CPU under Triton's interpreter."""
    return torch.device("cuda:0" if torch.cuda.is_available() and not INTERPRETED else "cpu")


@pytest.fixture
def gpu() -> torch.device:
    """A real GPU; the test is skipped without one."""
    if not torch.cuda.is_available():
        pytest.skip(f"needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    return torch.device("cuda:0")


@pytest.fixture(params=["float32", "half"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Both widths of numbers; the interpreter multiplies float16 matrices, but takes bfloat16 ones for integers."""
    half = torch.float16 if INTERPRETED else torch.bfloat16
    return torch.float32 if request.param == "float32" else half


@pytest.fixture(scope="session")
def checkpoint(checkpoint, tmp_path_factory) -> Callable[[str], Path]:
    """The checkpoints of the folder above, and `small`: one layer, two heads, for the interpreter's patience."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        initializer_range=0.5,
        bos_token_id=1,
        eos_token_id=2,
    )
    folder = save_model(config, tmp_path_factory.mktemp("small"))
    return lambda architecture: folder if architecture == "small" else checkpoint(architecture)


@pytest.fixture(autouse=INTERPRETED)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program takes the interpreter milliseconds: no more of them than some tens."""
    from lmtool.inference.engine.cuda.kernels import attention

    monkeypatch.setattr(attention, "_PROGRAMS", 8)
    monkeypatch.setattr(attention, "_ROWS", (8, 64, 4096))  # sums over rows are loops there
    monkeypatch.setattr("lmtool.inference.engine.cuda.graphs._PART_TOKENS", (32,))
    monkeypatch.setattr("lmtool.inference.engine.cuda.graphs._PART_SINGLES", ())
    monkeypatch.setattr("lmtool.inference.engine.cuda.graphs._MOST_PARTS", 3)


@pytest.fixture
def runner_of(checkpoint, device) -> Callable[..., tuple[CudaRunner, Reference, PreTrainedModel]]:
    """A runner over pages for a small model of the given architecture, as `load_transformers` would make it on a GPU.

    In Triton's interpreter it lies on the CPU, where "recorded" steps are plain ones.
    """
    return partial(make_runner, checkpoint, device)


def make_runner(checkpoint, device, architecture="llama", *, blocks=64, deterministic=False, fp8=False, change=None):
    """See `runner_of`: the runner, transformers' own logits, and the model's configuration.

    fp8: with weights of eight bits. change: called with the weights before they are taken.
    """
    selfcheck.register()
    name = str(checkpoint(architecture))
    model = transformers.AutoModelForCausalLM.from_pretrained(name, attn_implementation="eager").to(device)
    with torch.inference_mode():
        reference = reference_logits(model, name)
        layers = record_layers(model, name, CONTEXT)
        cache = PagedCache([(layer.layer, layer.shape) for layer in layers], blocks, model.dtype, device)
        plain = ModelRunner(TransformersForward(model), cache, device, 16, 1)
        runner = paged_runner(plain, layers, model.dtype, deterministic=deterministic)
        shape = decoder_config(model.config.to_dict())
        if shape is not None and not shape.is_gpt2:
            frequencies = model.get_submodule("model.rotary_emb").get_buffer("inv_freq")
            weights = {name: parameter.data for name, parameter in model.named_parameters()}
            if change is not None:
                change(weights)
            forward = fused_llama(runner, shape, weights, frequencies, CONTEXT, fp8=fp8)
            assert forward is not None
            cache.rename(forward.layers)
            runner = replace(runner, forward=forward)
    return runner, reference, model.config


@pytest.fixture
def engine_on(runner_of) -> Iterator[Callable[..., Engine]]:
    """A running engine over such a runner; closed at the end of the test.

    recorded: whether decode steps are. samples: whether recorded ones sample, too.
    """
    made = []

    def make(
        architecture="llama", *, recorded=True, samples=False, blocks=64, deterministic=False, streams=8, **settings
    ):
        runner, *_ = runner_of(architecture, blocks=blocks, deterministic=deterministic)
        if recorded:
            with torch.inference_mode():
                runner = runner.prepared(streams, CONTEXT, samples=samples)
            assert runner.graphs is not None
        limits = Limits(
            max_streams=streams,
            max_batch_tokens=64,
            chunk_tokens=16,
            block_tokens=16,
            max_scored_rows=512,
            cache_generated=not deterministic,
        )
        info = ModelInfo(
            model=architecture,
            constructor="",
            backend="transformers",
            vocab_size=VOCABULARY,
            context_length=min(CONTEXT, blocks * 16 + 1),
            bos_token_id=1,
            eos_token_ids=(2,),
        )
        config = EngineConfig(**{"speculation": False, "step_ahead": False, **settings})
        engine = Engine(runner, limits, blocks, info, config)
        engine.start()
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any kernels for attention, whatever is installed."""
    for name in ("triton", "flash_attn_interface", "flashinfer"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith("lmtool.inference.engine.cuda.kernels.")]:
        monkeypatch.delitem(sys.modules, name)
