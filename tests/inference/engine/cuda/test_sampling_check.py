"""The sampler's kernels are tried before they are used."""

from __future__ import annotations

import pytest
import torch

from lmtool.inference.engine import sampler
from lmtool.inference.engine.sampler import kernels_work, prepare_gpu, sample

CPU = torch.device("cpu")


def right(logits, rows):
    """What torch's operators give."""
    return sampler._start_by_stages(logits, rows).read()


def other_token(logits, rows):
    """The same, but for one id."""
    first, *others = right(logits, rows)
    return [first._replace(token=first.token + 1), *others]


def other_logprob(logits, rows):
    """The same, but for one log-probability."""
    *others, last = right(logits, rows)
    return [*others, last._replace(logprob=last.logprob - 0.01)]


def broken(logits, rows):
    """A compiler that fails."""
    raise RuntimeError("no such instruction")


def test_equal():
    """The C kernels are as good as torch's operators."""
    assert kernels_work(lambda logits, rows: sample(logits.clone(), rows), right, CPU, 900, torch.float32)


@pytest.mark.parametrize(
    ("by_kernel", "why"),
    [(other_token, "it drew"), (other_logprob, "its logprob of"), (broken, "no such instruction")],
)
def test_not_used(by_kernel, why, caplog):
    """Another id, another logprob, an error: a warning says which, and torch's operators sample."""
    assert not kernels_work(by_kernel, right, CPU, 300, torch.float32)
    assert f"sampled without Triton, and slower: {why}" in caplog.text


@pytest.mark.usefixtures("no_triton")
def test_without_triton():
    """Nothing is tried."""
    assert prepare_gpu.__wrapped__(CPU, 300, torch.float32) is None
