"""The fused pass: its layers and its weights. That its logits are the model's own is shown in test_runner."""

from __future__ import annotations

import pytest
import torch

from lmtool.inference.engine.decoder import DecoderConfig

pytestmark = pytest.mark.cuda

SHAPE = DecoderConfig("llama", 11, 32, 48, 4, 2, 8, 1e-6, tied=False, windows=(None, 5))


def weights():
    """Weights of that shape, q and k with a bias less than v."""
    sizes = {
        "self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32),
        "self_attn.o_proj": (32, 32), "mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48),
        "input_layernorm": (32,), "post_attention_layernorm": (32,),
    }  # fmt: skip
    layers = {f"model.layers.{n}.{name}.weight": torch.ones(*size) for n in (0, 1) for name, size in sizes.items()}
    ends = {"model.embed_tokens.weight": (11, 32), "model.norm.weight": (32,), "lm_head.weight": (11, 32)}
    return layers | {name: torch.ones(*size) for name, size in ends.items()}


def test_all_weights_are_taken():
    """Nothing of the checkpoint is left, so that nothing is in memory twice; windows are the layers' own."""
    from lmtool.inference.engine.cuda.forward import CudaLlamaForward

    own = weights()
    model = CudaLlamaForward(SHAPE, own, torch.ones(4), 64, deterministic=False)
    assert not own
    assert [layer.window for layer in model.layers] == [None, 5]


def test_half_a_bias_is_refused():
    """Layers that are fused have all a bias, or none."""
    from lmtool.inference.engine.cuda.forward import CudaLlamaForward

    own = weights() | {"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}
    with pytest.raises(AssertionError, match="some of several fused layers"):
        CudaLlamaForward(SHAPE, own, torch.ones(4), 64, deterministic=False)
