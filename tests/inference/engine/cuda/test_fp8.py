"""Eight bits on a GPU: a model with e4m3 weights, and one with e4m3 keys and values, through our own kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lmtool.core.errors import ModelLoadError, ResourceError
from lmtool.core.types import GenerateRequest, ModelInfo, SamplingParams
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.cuda.products import rounded_weight, scaled_mm_works
from lmtool.inference.engine.engine_loader import load_engine
from lmtool.inference.engine.hardware import check_formats
from lmtool.inference.engine.kv_cache import PagedCache
from lmtool.inference.engine.model_runner import ModelRunner
from lmtool.inference.engine.plan import Plan, Sequence, Span
from lmtool.inference.engine.selfcheck import QUANTIZED, check_runner
from lmtool.inference.engine.transformers_loader import CheckedModel, with_cache

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"quantize": "fp8"}, "--quantize fp8 is for GPUs"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8 is for GPUs"),
    ],
)
def test_a_cpu_refuses(checkpoint, settings, said):
    """Before anything is read, with what to do instead."""
    with pytest.raises(ResourceError, match=said) as raised:
        load_engine(str(checkpoint("llama")), EngineConfig(device="cpu", **settings))
    assert raised.value.hints


@pytest.mark.parametrize(
    ("capability", "settings", "said"),
    [
        ((9, 0), {"quantize": "int8"}, "--quantize int8 is for CPUs"),
        ((7, 5), {"quantize": "fp8"}, "compute capability 8.0"),
        ((7, 5), {"kv_cache_dtype": "fp8"}, "compute capability 8.0"),
        ((8, 0), {"quantize": "fp8", "kv_cache_dtype": "fp8"}, None),
        ((7, 5), {}, None),
    ],
)
def test_a_gpu_refuses(monkeypatch, capability, settings, said):
    """What this GPU does not compute is refused, with its name; the rest is not."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr("lmtool.inference.engine.hardware._gpu", lambda _: "a GPU")
    config, device = EngineConfig(**settings), torch.device("cuda:0")
    if said is None:
        check_formats(config, device)
        return
    with pytest.raises(ResourceError, match=said):
        check_formats(config, device)


def narrow(runner):
    """The runner with keys and values of eight bits, scaled by those that it has stored."""
    old = runner.cache
    cache = PagedCache(old.layers, 12, torch.uint8, old.device, old.e4m3_scales())
    return replace(runner, cache=cache)


def logits_of(runner, tokens, cut):
    """All logits of a text, its first `cut` ids as a prompt, the others one by one."""
    sequence = Sequence(1, tokens, prompt_length=cut, max_length=90, scoring=True, blocks=[4, 9, 2, 7])
    spans = [Span(sequence, 0, cut), *(Span(sequence, at, 1) for at in range(cut, len(tokens) - 1))]
    return torch.cat([runner.run(Plan([span])) for span in spans])


@pytest.mark.cuda
@pytest.mark.parametrize("architecture", ["small", "gpt2"])
def test_keys_and_values(runner_of, architecture):
    """Stored in eight bits they give nearly the same logits, through our own pass and through transformers' modules."""
    runner, reference, _ = runner_of(architecture)
    with torch.inference_mode():
        check_runner(runner, architecture, reference)
        rounded = narrow(runner)
        assert rounded.cache.block_bytes * 4 == runner.cache.block_bytes
        tokens = [3 + (7 * position) % 90 for position in range(20)]
        exact, ours = (logits_of(own, tokens, 17) for own in (runner, rounded))
    error = float((ours - exact).square().mean().sqrt() / exact.std())
    assert 0 < error < QUANTIZED["fp8 keys and values"]


@pytest.mark.cuda
def test_the_cache_of_a_model_that_is_served(runner_of, monkeypatch):
    """Once a model has passed its check, its streams get keys and values of eight bits, which must pass it, too."""
    runner, reference, _ = runner_of("small")
    info = ModelInfo("small", "", "transformers", vocab_size=101, context_length=256, dtype="float32")
    config = EngineConfig(max_streams=4, kv_cache_dtype="fp8", kv_cache_bytes=1 << 16)
    with torch.inference_mode():
        check_runner(runner, "small", reference)
        model = CheckedModel("small", runner, reference, info, None, token_bytes=1000)
        narrow = with_cache(model, config)
        assert narrow.runner.cache.dtype == torch.uint8
        assert narrow.blocks == (1 << 16) // narrow.runner.cache.block_bytes
        assert narrow.info.dtype == "float32"
        monkeypatch.setattr(PagedCache, "e4m3_scales", lambda self: [torch.full((2, 1), 1e-4, device=self.device)])
        with pytest.raises(
            ModelLoadError, match=r"small with --kv-cache-dtype fp8 .* cannot be served: its logits differ"
        ):
            with_cache(model, config)


def test_without_kernels_there_is_no_narrow_cache():
    """Where keys and values are gathered by torch, they have their own type."""
    plain = ModelRunner(None, PagedCache([], 4, torch.float32, CPU), CPU, 16, 1)
    info = ModelInfo("m", "", "transformers", vocab_size=101, context_length=256)
    with pytest.raises(ResourceError, match="--kv-cache-dtype fp8: it needs Triton"):
        with_cache(CheckedModel("m", plain, None, info, None, 1000), EngineConfig(kv_cache_dtype="fp8"))


def round_layers(weights):
    """Replace the matrices of layers by what e4m3 leaves of them."""
    for name, weight in weights.items():
        if "layers" in name and weight.dim() == 2:
            stored, scale = rounded_weight(weight)
            weights[name] = stored.view(torch.float8_e4m3fn).float() * scale.unsqueeze(1)


@pytest.mark.cuda
def test_weights(runner_of):
    """The layers' weights are those of e4m3, embedding and head stay; without the library's help inputs do, too."""
    runner, *_ = runner_of("small", fp8=True)
    plain, *_ = runner_of("small", change=round_layers)
    exact, *_ = runner_of("small")
    with torch.inference_mode():
        tokens = [3 + (7 * position) % 90 for position in range(20)]
        ours, expected, unrounded = (logits_of(own, tokens, 17) for own in (runner, plain, exact))
    assert not torch.allclose(expected, unrounded, atol=1e-3)
    if scaled_mm_works(runner.device, torch.float32):  # it rounds inputs, too: emulated, they are off by 0.12
        assert float((ours - expected).square().mean().sqrt() / expected.std()) < 0.2
    else:
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


class TestOnTheGpu:
    """As `lmtool serve --quantize fp8 --kv-cache-dtype fp8` runs a model."""

    @pytest.mark.cuda
    @pytest.mark.parametrize(
        "settings",
        [{"quantize": "fp8"}, {"kv_cache_dtype": "fp8"}, {"quantize": "fp8", "kv_cache_dtype": "fp8"}],
        ids=["weights", "cache", "both"],
    )
    @pytest.mark.parametrize("deterministic", [False, True])
    async def test_a_model_is_served(self, gpu, checkpoint, run, random_ids, settings, deterministic):
        """It passes the check, and answers; deterministic, the same alone and in a crowd."""
        config = EngineConfig(
            device=str(gpu), max_streams=8, kv_cache_bytes=1 << 24, prefix_cache=False, deterministic=deterministic,
            **settings,
        )  # fmt: skip
        engine = load_engine(str(checkpoint("llama-packed")), config)
        greedy = SamplingParams(max_tokens=6, ignore_eos=True)
        try:
            requests = [GenerateRequest(seed, random_ids(11 * seed, seed=seed), greedy) for seed in range(1, 5)]
            crowd = await run(engine, *requests)
            alone = [(await run(engine, request))[request.stream_id] for request in requests]
        finally:
            engine.close()
        assert engine.info_now.dtype == settings.get("quantize", "bfloat16")
        for request, own in zip(requests, alone, strict=True):
            assert len(own) == greedy.max_tokens
            if deterministic:
                assert [(o.token, o.logprob) for o in own] == [(o.token, o.logprob) for o in crowd[request.stream_id]]
