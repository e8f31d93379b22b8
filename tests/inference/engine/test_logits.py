"""Operations on rows of logits, and counts of the ids that penalties need."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.core.types import SamplingParams
from lmtool.inference.engine.logits import most_likely, sample_rows, top_tokens, truncate
from lmtool.inference.engine.sampling_row import TokenCounts


@pytest.fixture
def counts():
    """Of nine ids, none counted yet."""
    return TokenCounts(torch.zeros(9, dtype=torch.int32))


def sampled(counts, token, *, read=True):
    """What the kernel does, and what is read of it."""
    counts.counts[token] = (counts.counts[token] + 2) | 1
    if read:
        counts.note_read(counts.counted - 1, token)


def test_prompt_and_generated(counts):
    """Ids of the prompt are known; each time that an id was generated counts, and makes it known."""
    counts.update([1, 2, 2, 3, 2], 2, 5)
    assert counts.counts.tolist() == [0, 1, 5, 3, 0, 0, 0, 0, 0]


def test_only_what_is_new(counts):
    """What the kernel added is not added again; what came besides, such as forced ids, is."""
    tokens = [1, 2]
    counts.update(tokens, 2, 2)
    sampled(counts, 4)
    tokens.append(4)
    counts.update(tokens, 2, 3)
    assert counts.counts.tolist() == [0, 1, 1, 0, 3, 0, 0, 0, 0]
    sampled(counts, 4)
    tokens += [4, 5, 5]
    counts.update(tokens, 2, 6)
    assert counts.counts.tolist() == [0, 1, 1, 0, 5, 5, 0, 0, 0]


@pytest.mark.parametrize("read", [True, False])
def test_what_was_dropped(counts, read):
    """An id that was sampled and not recorded is taken back, whether it was read or not."""
    counts.update([1, 2], 1, 2)
    sampled(counts, 7, read=read)
    counts.update([1, 2], 1, 2)
    assert counts.counts.tolist() == [0, 1, 3, 0, 0, 0, 0, 0, 0]
    sampled(counts, 7, read=read)
    counts.update([1, 2, 6], 1, 3)
    assert counts.counts.tolist() == [0, 1, 3, 0, 0, 0, 3, 0, 0]


def test_of_a_row_without_a_stream():
    """Known ids and counts become the same numbers."""
    own = TokenCounts.of({1, 2}, {2: 3, 5: 1}, 9, torch.device("cpu"))
    assert own.counts.tolist() == [0, 1, 7, 0, 0, 2, 0, 0, 0]


def kept(logits, **params):
    """The ids that stay, of one row."""
    result = truncate(torch.tensor([logits]), [SamplingParams(**params)])
    return [index for index, value in enumerate(result[0].tolist()) if value > float("-inf")]


LOGITS = torch.log(torch.tensor([0.05, 0.4, 0.1, 0.3, 0.15])).tolist()


class TestTruncate:
    """top-k, then top-p of what is left, then min-p."""

    @pytest.mark.parametrize(
        ("params", "ids"),
        [
            ({"top_k": 2}, [1, 3]),
            ({"top_k": 99}, [0, 1, 2, 3, 4]),
            ({"top_p": 0.39}, [1]),
            ({"top_p": 0.41}, [1, 3]),
            ({"top_p": 0.0}, [1]),
            ({"min_p": 0.3}, [1, 3, 4]),
            ({"min_p": 1.0}, [1]),
            ({"top_k": 2, "top_p": 0.55}, [1]),
            ({"top_k": 3, "min_p": 0.5}, [1, 3]),
        ],
    )
    def test_keeps(self, params, ids):
        """Exactly the ids that the definition names; `top_p` counts what `top_k` has left."""
        assert kept(LOGITS, **params) == ids

    @pytest.mark.parametrize(
        "params",
        [{"top_p": 0.9}, {"top_k": 700}, {"min_p": 0.01}, {"top_k": 700, "top_p": 0.8}, {"top_k": 300, "top_p": 0.2}],
    )
    def test_beyond_the_fast_candidates(self, params):
        """A flat distribution, whose cut lies beyond the fast path's candidates, is cut just as exactly."""
        logits = torch.linspace(0, 1, 1000).tolist()
        probabilities = torch.softmax(torch.tensor(logits), -1).sort(descending=True).values
        count = min(params.get("top_k", 1000), 1000)
        mass = probabilities[:count].cumsum(0) / probabilities[:count].sum()
        count = min(count, int((mass < params.get("top_p", 1.1)).sum()) + 1)
        count = min(count, int((probabilities >= params.get("min_p", 0) * probabilities[0]).sum()))
        assert kept(logits, **params) == list(range(1000 - count, 1000))

    def test_rows_do_not_meet(self):
        """Each row is cut by its own parameters."""
        rows = truncate(torch.tensor([LOGITS, LOGITS]), [SamplingParams(top_k=1), SamplingParams(top_k=4)])
        assert torch.isfinite(rows).sum(-1).tolist() == [1, 4]


class TestMostLikely:
    """The first of the highest."""

    @pytest.mark.parametrize("vocabulary", [1, 5, 256, 700, 4095, 4096, 4700, 8192])
    def test_ties_go_to_the_first(self, vocabulary):
        """As `argmax` over a whole row of few different values, in all blocks and behind the last whole one."""
        logits = torch.randint(0, 3, (200, vocabulary), generator=torch.Generator().manual_seed(1)).float()
        logits[torch.arange(100), torch.arange(100) * 7 % vocabulary] = 5.0
        first = (logits == logits.amax(-1, keepdim=True)).int().argmax(-1)
        assert torch.equal(most_likely(logits), first)


class TestDraw:
    """The token at which the cumulative sum passes the uniform number."""

    def test_inverse_of_the_cumulative_sum(self):
        """A grid of uniform numbers gives each token as often as its probability says."""
        uniforms = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
        tokens = sample_rows(torch.tensor([LOGITS]).expand(2000, -1), uniforms)
        counts = torch.bincount(tokens, minlength=5) / 2000
        assert counts.tolist() == pytest.approx([0.05, 0.4, 0.1, 0.3, 0.15], abs=1e-3)

    @given(st.integers(1, 700), st.floats(0, 1, exclude_max=True), st.integers(0, 2**31))
    @settings(deadline=None, max_examples=60)
    def test_never_a_cut_token(self, vocabulary, uniform, seed):
        """Whatever the uniform number, a token of probability zero is never drawn."""
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(1, vocabulary, generator=generator)
        cut = torch.rand(1, vocabulary, generator=generator) < 0.7
        cut[0, seed % vocabulary] = False
        token = int(sample_rows(logits.masked_fill(cut, float("-inf")), torch.tensor([uniform], dtype=torch.float64)))
        assert 0 <= token < vocabulary
        assert not cut[0, token]


@given(st.integers(1, 3), st.integers(128, 9000), st.integers(1, 40), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_highest(rows, vocabulary, count, seed):
    """The values of a whole sort, best first, with their own ids, whichever way is taken."""
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))
    values, ids = top_tokens(logits, min(count, vocabulary))
    assert torch.equal(values, logits.sort(dim=-1, descending=True).values[:, : min(count, vocabulary)])
    assert torch.equal(logits.gather(1, ids), values)
