"""Draws by the kernel: what torch's operators give, row by row."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmtool.inference.engine.cpu import sampling
from lmtool.inference.engine.cpu.sampling import KernelRow, has_kernel, sample_by_kernel

pytestmark = pytest.mark.usefixtures("kernels")

VOCABULARIES = (1, 7, 31, 32, 33, 255, 257, 1536, 4099, 40_000)


def words(allowed, vocabulary):
    """The mask of some ids."""
    bits = torch.zeros(-(-vocabulary // 32) * 32, dtype=torch.int64)
    bits[torch.tensor(sorted(allowed))] = 1
    return (bits.view(-1, 32) << torch.arange(32)).sum(dim=1).to(torch.int32)


def left_by_cuts(probabilities, want):
    """What top-k, top-p of the rest and min-p leave, the first of equals before others; and the nearest to an edge.

    probabilities: [V] float64. Returns [V] bool, and how far a share before an id is from `top_p` at least.
    """
    order = torch.sort(probabilities, descending=True, stable=True).indices
    shares = probabilities[order]
    stays = torch.arange(len(shares)) < (want.top_k or len(shares))
    before = (shares * stays).cumsum(0) / (shares * stays).sum() - shares / (shares * stays).sum()
    edge = float((before - want.top_p)[stays].abs().min()) if want.top_p < 1 else 1.0
    stays &= (before < want.top_p) | torch.tensor(want.top_p >= 1)
    stays[0] = True
    stays &= shares >= want.min_p * shares[0] * (1 - 1e-6)
    left = torch.zeros_like(stays)
    left[order[stays]] = True
    return left, edge


def reference(row, want):
    """Highest logit, log of the sum, and the probabilities drawn from, of one row; in float64."""
    left = row.double().clone()
    if want.allowed is not None:
        bits = want.allowed.unsqueeze(1) >> torch.arange(32) & 1
        left[bits.flatten()[: len(row)] == 0] = -math.inf
    normaliser = torch.logsumexp(left, 0)
    highest = left.max()
    left[list(want.barred)] = -math.inf
    if left.max() == -math.inf:
        return highest, normaliser, torch.full_like(left, math.nan)
    heated = left / want.temperature if want.temperature > 0 else torch.where(left == left.max(), 0.0, -math.inf)
    return highest, normaliser, torch.softmax(heated, 0)


CUTS = ((0, 1.0, 0.0), (1, 1.0, 0.0), (7, 1.0, 0.0), (0, 0.9, 0.0), (0, 1e-9, 0.0), (0, 0.5, 0.0), (0, 0.999, 0.0),
        (40, 0.7, 0.0), (5000, 0.95, 0.0), (0, 1.0, 0.1), (0, 1.0, 1.0), (30, 0.9, 0.02))  # fmt: skip
"""Top-k, top-p and min-p."""


@st.composite
def batches(draw):
    """Rows of logits, many of them equal in some, and what is wanted from each."""
    vocabulary = draw(st.sampled_from(VOCABULARIES))
    count = draw(st.integers(1, 5))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    logits = torch.randn(count, vocabulary, generator=seed) * draw(st.sampled_from([0.1, 1.0, 8.0]))
    if draw(st.booleans()):
        logits = logits.round()
    wanted = []
    for row in range(count):
        some = draw(st.sampled_from([None, 1, 3, 40, vocabulary]))
        chosen = torch.randperm(vocabulary, generator=seed)[:some].tolist()
        target = draw(st.none() | st.integers(0, vocabulary - 1))
        wanted.append(
            KernelRow(
                row,
                target,
                draw(st.sampled_from([0.0, 1.0, 0.3, 2.5])),
                draw(st.floats(0, 1, exclude_max=True)),
                None if target is not None or some is None else words(chosen, vocabulary),
                draw(st.sampled_from([(), (0,), (vocabulary - 1,), tuple({chosen[0], vocabulary // 2})])),
                draw(st.booleans()),
                *draw(st.sampled_from(CUTS)),
            )
        )
    return logits, wanted


@given(batches())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_as_torch_does(batch):
    """The highest logit, the sum of all, and where the cumulative sum passes the number given."""
    logits, wanted = batch
    before = logits.clone()
    found = sample_by_kernel(logits, wanted)
    for want, own, token, highest, normaliser in zip(
        wanted, before, found.tokens.tolist(), found.highest.tolist(), found.normaliser.tolist(), strict=True
    ):
        top, total, probabilities = reference(own, want)
        assert normaliser == pytest.approx(float(total), abs=2e-6 * max(1, abs(float(total))))
        if want.target is not None:
            assert (token, highest) == (want.target, pytest.approx(float(top)))
        elif probabilities.isnan().any():
            assert (token, highest) == (0, -math.inf)  # all ids are barred
        else:
            assert highest == pytest.approx(float(top))
            assert probabilities[token] > 0
            if want.temperature > 0:
                left, edge = left_by_cuts(probabilities, want)
                if edge < 1e-6:  # float32 decides whether one more stays
                    continue
                assert left[token]
                probabilities = probabilities * left / (probabilities * left).sum()
                sums = probabilities.cumsum(0)
                assert float(sums[token]) >= want.uniform - 1e-5
                assert float(sums[token] - probabilities[token]) <= want.uniform + 1e-5


@given(batches())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_row_alone(batch):
    """Gives the same, to the bit, as in a batch, on however many threads."""
    logits, wanted = batch
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        together = sample_by_kernel(logits.clone(), wanted)
        torch.set_num_threads(1)
        alone = [sample_by_kernel(logits.clone(), [want]) for want in wanted]
    finally:
        torch.set_num_threads(threads)
    for name in ("tokens", "highest", "normaliser"):
        own = torch.cat([getattr(one, name) for one in alone])
        assert torch.equal(getattr(together, name).nan_to_num(nan=0.5), own.nan_to_num(nan=0.5))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 40, 96])
def test_what_is_no_distribution(value, place):
    """Shows in the highest logit, unless a mask hides it; the next row is none the worse."""
    logits = torch.randn(2, 97)
    logits[0, place] = value
    others = words(set(range(97)) - {place}, 97)
    found = sample_by_kernel(
        logits.clone(), [KernelRow(0, temperature=1.0), KernelRow(1), KernelRow(0, allowed=others)]
    )
    assert not math.isfinite(found.highest[0])
    assert math.isfinite(found.highest[1])
    assert found.tokens[0] == 0
    assert found.tokens[1] == logits[1].argmax()
    assert math.isfinite(found.highest[2])
    assert found.tokens[2] != place


def test_nothing_allowed():
    """An empty mask is no distribution either."""
    found = sample_by_kernel(
        torch.randn(1, 64), [KernelRow(0, temperature=1.0, allowed=torch.zeros(2, dtype=torch.int32))]
    )
    assert found.highest.tolist() == [-math.inf]


def test_what_others_see():
    """Where that is asked for, all that is forbidden is -inf afterwards, and what is barred is as it was."""
    logits = torch.randn(2, 200)
    before = logits.clone()
    mask = words({3, 190, 199}, 200)
    sample_by_kernel(
        logits,
        [KernelRow(0, temperature=1.0, allowed=mask, barred=(3, 199), mask_logits=True), KernelRow(1, barred=(5,))],
    )
    assert torch.equal(logits[1], before[1])
    assert logits[0].isfinite().nonzero().flatten().tolist() == [3, 190, 199]
    assert torch.equal(logits[0][[3, 190, 199]], before[0][[3, 190, 199]])


def test_frequencies():
    """RowLogprobs spread evenly draw each id as often as it is likely."""
    logits = torch.log(torch.tensor([[0.05, 0.4, 0.1, 0.3, 0.15]]))
    wanted = [KernelRow(0, temperature=1.0, uniform=(number + 0.5) / 1000) for number in range(1000)]
    counts = torch.bincount(sample_by_kernel(logits, wanted).tokens, minlength=5).tolist()
    assert counts == [50, 400, 100, 300, 150]


@pytest.mark.parametrize(
    ("cuts", "left"),
    [
        ((2, 1.0, 0.0), [1, 3]), ((3, 1.0, 0.0), [1, 2, 3]), ((9, 1.0, 0.0), [0, 1, 2, 3, 4, 5]),
        ((0, 0.3, 0.0), [1]), ((0, 0.33, 0.0), [1, 3]), ((0, 0.65, 0.0), [1, 2, 3]),
        ((0, 1.0, 0.34), [1, 3]), ((0, 1.0, 0.3), [1, 2, 3, 4, 5]), ((0, 1.0, 1.0), [1, 3]),
        ((3, 0.9, 0.0), [1, 2, 3]), ((3, 0.8, 0.0), [1, 3]), ((2, 0.4, 0.0), [1]), ((4, 0.99, 0.5), [1, 3]),
    ],
)  # fmt: skip
def test_cuts(cuts, left):
    """Of ids that are equally likely the first ones stay."""
    logits = torch.log(torch.tensor([[0.03, 0.305, 0.1, 0.305, 0.1, 0.1, 0.0]]))
    wanted = [KernelRow(0, None, 1.0, (number + 0.5) / 300, None, (), False, *cuts) for number in range(300)]
    assert sorted(set(sample_by_kernel(logits, wanted).tokens.tolist())) == left


def test_where_there_are_kernels(monkeypatch):
    """Only for float32 in one piece, and for vocabularies that there is room for."""
    assert has_kernel(torch.zeros(2, 5))
    assert not has_kernel(torch.zeros(2, 5).t())
    assert not has_kernel(torch.zeros(2, 5, dtype=torch.bfloat16))
    assert not has_kernel(torch.zeros(1, 1, device="meta"))
    assert not has_kernel(torch.zeros(1, 1).expand(1, 2_097_153))
    monkeypatch.setattr(sampling, "kernels", lambda: None)
    assert not has_kernel(torch.zeros(2, 5))
