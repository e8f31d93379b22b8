"""Our attention as transformers knows it; what it computes inside a model is in test_model_runner."""

from __future__ import annotations

from transformers import AttentionInterface

from lmtool.engine.transformers_attention import IMPLEMENTATION, RECORDING, register


def test_registered():
    """Transformers knows both names, however often they are registered."""
    register()
    register()
    assert {IMPLEMENTATION, RECORDING} <= set(AttentionInterface().valid_keys())
