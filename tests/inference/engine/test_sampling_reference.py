"""The sampler against a slow reference, and its distributions with each parameter changed."""

from __future__ import annotations

import random

import pytest
import torch

from lmtool.core.types import SamplingParams
from lmtool.inference.engine import sampler, sampling_result
from lmtool.inference.engine.sampler import sample
from lmtool.inference.engine.sampling_row import Row
from tests.inference.engine.random_rows import random_rows
from tests.inference.engine.sampling_reference import check, expected
from tests.inference.engine.what_if_cases import check as check_what_if


@pytest.mark.parametrize("by", ["kernels", "torch"])
@pytest.mark.parametrize("vocabulary", [31, 300, 5000])
def test_equals_the_definition(by, vocabulary, monkeypatch):
    """Any mix of parameters gives the definition's id, log-probability and alternatives."""
    if by == "torch":
        for module in (sampler, sampling_result):
            monkeypatch.setattr(module, "has_kernel", lambda _logits: False)
    chosen = random.Random(vocabulary)
    for scale in (0.5, 3.0, 8.0):
        logits, rows = random_rows(chosen, 8, vocabulary, scale)
        for own, row, found in zip(logits, rows, sample(logits.clone(), rows), strict=True):
            check(own, row, found)


def test_the_definition():
    """Of four tokens, worked out by hand: top-k 3 leaves .5, .3, .1 of .9; top-p .6 of that the first two."""
    logits = torch.log(torch.tensor([0.1, 0.5, 0.1, 0.3]))
    row = Row(SamplingParams(temperature=1.0, top_k=3, top_p=0.6, logprobs_mode="processed"))
    assert torch.exp(expected(logits, row).logprobs).tolist() == pytest.approx([0, 0.625, 0, 0.375])


@pytest.mark.parametrize("seed", range(8))
def test_the_engine_does_what_is_told(seed: int) -> None:
    """Over random steps and parameters every bound holds, and who is told to be drawn is drawn by the sampler."""
    counts = check_what_if(40, 10_000 + seed)
    assert counts["steps"] == 40
    assert counts["exact"] > 5
    assert counts["drawn"] > 5
