"""Transformers' modules as a forward pass; what they compute is compared in test_model_runner."""

from __future__ import annotations

import torch

from lmtool.engine.plan import Plan, Span
from lmtool.engine.sequence import Sequence


def test_a_chunk_without_logits(engine_of, random_ids):
    """Where no row of logits is needed the output layer is left out, but keys and values are stored."""
    runner = engine_of("gpt2")._runner
    ids = list(random_ids(40, seed=1))
    with torch.inference_mode():
        whole, chunked = (Sequence(n, list(ids), prompt_length=40, max_length=60) for n in (1, 2))
        whole.blocks, chunked.blocks = [1, 2, 3], [4, 5, 6]
        expected = runner.run(Plan(spans=[Span(whole, 0, 40)], fresh_blocks=[1, 2, 3, 4, 5, 6]))
        assert runner.run(Plan(spans=[Span(chunked, 0, 30)], fresh_blocks=[])).numel() == 0
        found = runner.run(Plan(spans=[Span(chunked, 30, 10)], fresh_blocks=[]))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
