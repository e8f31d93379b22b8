"""Backends of paged attention: which are chosen, and the runner over them."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from lmtool.core.errors import ModelLoadError
from lmtool.inference.engine import transformers_loader as loader
from lmtool.inference.engine.cuda import attention_backends as backends
from lmtool.inference.engine.cuda.attention_backends import AttentionCase, AttentionParams, choose_backend
from lmtool.inference.engine.decoder import DecoderConfig
from lmtool.inference.engine.kv_cache import LayerShape, PagedCache
from lmtool.inference.engine.model_runner import ModelRunner
from lmtool.inference.engine.selfcheck import RecordedLayer

CASES = [
    AttentionCase(4, 2, 64, 64, AttentionParams(0.125)),
    AttentionCase(4, 2, 64, 64, AttentionParams(0.125, window=20, softcap=5.0)),
]
CPU = torch.device("cpu")


@pytest.mark.usefixtures("no_triton")
def test_nothing_installed(caplog):
    """Where nothing is there, nothing is chosen, and a warning says what that means."""
    assert choose_backend(CASES, torch.float32, CPU, deterministic=False) is None
    assert "keys and values are gathered" in caplog.text


@pytest.mark.usefixtures("no_triton")
def test_wrong_numbers_are_not_taken(monkeypatch, caplog):
    """A library that computes something else is named and left aside; one that fails, too."""

    def flash_attn_with_kvcache(query, keys, values, cu_seqlens_q=None, **settings):
        if cu_seqlens_q is not None:
            raise RuntimeError("not on this machine")
        return torch.zeros_like(query)

    library = SimpleNamespace(flash_attn_with_kvcache=flash_attn_with_kvcache)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", library)
    with caplog.at_level("INFO"):
        assert choose_backend(CASES, torch.float32, CPU, deterministic=False) is None
    assert "flash-attn 3 attention is not used: it is off by" in caplog.text
    assert "flash-attn 3 attention does not work here: RuntimeError: not on this machine" in caplog.text


@pytest.mark.usefixtures("no_triton")
def test_right_numbers_are_taken(monkeypatch, caplog):
    """A library that gives plain attention's numbers is taken for both kinds, and the log says so."""

    def flash_attn_with_kvcache(
        query, keys, values, cache_seqlens, page_table, softmax_scale, causal, window_size, softcap,
        cu_seqlens_q=None, max_seqlen_q=None,
    ):  # fmt: skip
        """Plain attention under the signature of flash-attn 3."""
        assert causal
        flat = query.flatten(0, 1) if cu_seqlens_q is None else query
        bounds = range(len(query) + 1) if cu_seqlens_q is None else cu_seqlens_q.tolist()
        output = torch.empty_like(flat)
        for text, length in enumerate(cache_seqlens.tolist()):
            own = slice(bounds[text], bounds[text + 1])
            rows = flat[own].transpose(0, 1)
            key, value = (
                pages[page_table[text].long()].flatten(0, 1)[:length].transpose(0, 1).repeat_interleave(2, 0)
                for pages in (keys, values)
            )
            scores = rows @ key.transpose(1, 2) * softmax_scale
            if softcap:
                scores = torch.tanh(scores / softcap) * softcap
            positions = torch.arange(length)
            asking = (length - rows.shape[1] + torch.arange(rows.shape[1])).unsqueeze(1)
            hidden = positions > asking
            if window_size[0] >= 0:
                hidden |= positions < asking - window_size[0]
            output[own] = (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value).transpose(0, 1)
        return output.view(query.shape)

    library = SimpleNamespace(flash_attn_with_kvcache=flash_attn_with_kvcache)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", library)
    with caplog.at_level("INFO"):
        chosen = choose_backend(CASES, torch.float32, CPU, deterministic=False)
    assert (chosen.decode_name, chosen.prefill_name, chosen.own) == ("flash-attn 3", "flash-attn 3", False)
    assert "attention on cpu: flash-attn 3 for decode, flash-attn 3 for prompts" in caplog.text
    assert choose_backend(CASES, torch.float32, CPU, deterministic=True) is None


def as_kernels(fault=None):
    """Attention of single queries with a kernel's arithmetic: products in float32, of weights in the pages' dtype."""

    def run(query, keys, values, rows, params):
        scaling = params.scaling * (1.1 if fault == "scaling" else 1)
        outputs = []
        for text, length in enumerate(rows.lengths.tolist()):
            pages = rows.table[text].long()
            if fault == "page":
                pages[1:2] = pages[0]
            visible = length + (fault == "a key too many") - (fault == "a key too few" and length > 1)
            key, value = (part[pages].flatten(0, 1)[:visible].float() for part in (keys, values))
            heads = query.shape[1] // key.shape[1]
            key, value = (part.repeat_interleave(heads, 1) for part in (key, value))
            scores = torch.einsum("hd,shd->hs", query[text].float(), key) * scaling
            weights = torch.exp(scores - scores.amax(-1, keepdim=True))
            mixed = torch.einsum("hs,shd->hd", weights.to(values.dtype).float(), value)
            outputs.append((mixed / weights.sum(-1, keepdim=True)).to(query.dtype))
        return torch.stack(outputs)

    return run


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", [AttentionCase(8, 2, 128, 128, AttentionParams(s)) for s in (128**-0.5, 1.0)])
class TestTrial:
    """What the trial lets through in half precision, with small and large scores."""

    def test_right(self, half, case):
        """A kernel's rounding is less than a third of what is allowed."""
        assert backends._check_decode(as_kernels(), case, half, CPU) < backends._ALLOWED[half] / 3

    @pytest.mark.parametrize("fault", ["page", "a key too few", "a key too many", "scaling"])
    def test_wrong(self, half, case, fault):
        """A fault in what is attended to is more than three times what is allowed."""
        assert backends._check_decode(as_kernels(fault), case, half, CPU) > 3 * backends._ALLOWED[half]


@pytest.mark.cuda
def test_our_own_works(device, dtype, monkeypatch):
    """Our kernels pass the check for every kind of layer."""
    for name in ("flash_attn_interface", "flashinfer"):
        monkeypatch.setitem(sys.modules, name, None)
    chosen = choose_backend(CASES, dtype, device, deterministic=False)
    assert chosen is not None
    assert chosen.own


CPU_load = torch.device("cpu")
SHAPE = DecoderConfig("LlamaForCausalLM", 101, 32, 48, 4, 2, 8, 1e-6, tied=False, windows=(None,))


def plain_runner():
    """A runner with pages, as it is before a way of attention is chosen, and its one layer."""
    layer = RecordedLayer(object(), LayerShape(2, 8, 8), None, 4, 8**-0.5, None)
    cache = PagedCache([(layer.layer, layer.shape)], 4, torch.float32, CPU_load)
    return ModelRunner(None, cache, CPU_load, 16, 1), layer


@pytest.mark.usefixtures("no_triton")
def test_without_triton_pages_are_gathered(caplog):
    """Where no kernel works the plain runner stays, without a fused pass, and the log says so."""
    runner, layer = plain_runner()
    assert loader.paged_runner(runner, [layer], torch.float32, deterministic=False) is runner
    assert loader.fused_llama(runner, SHAPE, {}, torch.ones(4), 64) is None
    assert "no paged attention works on cpu" in caplog.text


@pytest.mark.usefixtures("no_triton")
def test_deterministic_needs_triton():
    """`--deterministic` is refused where it cannot be kept."""
    runner, layer = plain_runner()
    with pytest.raises(ModelLoadError, match="--deterministic needs Triton"):
        loader.paged_runner(runner, [layer], torch.float32, deterministic=True)
