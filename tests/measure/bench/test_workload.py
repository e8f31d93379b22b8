"""The requests of a load test."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import UsageError
from lmtool.measure.bench.workload import (
    BRANCHES,
    CONTINUATIONS,
    SCENARIOS,
    Job,
    Scenario,
    ServeBench,
    arrivals,
    check_fits,
    jobs,
    landing,
)


@pytest.mark.parametrize("scenario", ["S1", "S2", "S3", "S4", "S5"])
def test_the_same_seed_asks_the_same(scenario: Scenario) -> None:
    """And another seed something else."""
    lengths = ServeBench(scenario, 20, 5).shape
    first, again, other = (jobs(scenario, lengths, 8, 100, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len(first) >= 8


@given(st.integers(1, 40), st.integers(4, 300), st.integers())
def test_ids_are_in_the_vocabulary(length: int, size: int, seed: int) -> None:
    """Above the special ones that most models begin with."""
    (job,) = jobs("S1", ServeBench("S1", length, 3).shape, 1, size, seed)
    assert len(job.prompt) == length
    assert all(3 <= token < size for token in job.prompt)


def test_branches_share_a_prefix() -> None:
    """S4: 16 branches each, which differ in their last token only."""
    found = jobs("S4", ServeBench("S4", 12, 4).shape, 20, 1000, 0)
    assert len(found) == 2 * BRANCHES
    prefixes = {job.prompt[:12] for job in found}
    assert len(prefixes) == 2
    assert len({job.prompt for job in found}) > BRANCHES


def test_scoring_generates_nothing() -> None:
    """S5: 64 continuations of one prefix."""
    found = jobs("S5", SCENARIOS["S5"], 1, 1000, 0)
    assert len(found) == CONTINUATIONS
    assert {(job.prompt, job.output_len, len(job.scored)) for job in found} == {(found[0].prompt, 0, 8)}


def test_a_long_prompt_lands_among_short_streams() -> None:
    """S6: two long prompts that share nothing, so that none is remembered."""
    streams, (alone, lands) = landing(SCENARIOS["S6"], 1000, 0)
    assert (len(streams), len(alone.prompt), len(lands.prompt)) == (16, 4096, 4096)
    assert alone.prompt[:16] != lands.prompt[:16]


def test_mixed_lengths_have_the_medians_asked_for() -> None:
    """S3: log-normal, cut at both ends."""
    found = jobs("S3", ServeBench("S3", 200, 100).shape, 400, 1000, 0)
    lengths = sorted(len(job.prompt) for job in found)
    assert 150 < lengths[200] < 270
    assert lengths[-1] <= 800
    assert max(job.output_len for job in found) <= 512


def test_arrivals_are_a_poisson_process() -> None:
    """Ascending, the same for a seed, `rate` a second on average."""
    times = arrivals(50.0, 5000, 3)
    assert times == sorted(times) == arrivals(50.0, 5000, 3)
    assert 5000 / times[-1] == pytest.approx(50, rel=0.05)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert sum(gap < 0.02 * 0.6931 for gap in gaps) / len(gaps) == pytest.approx(0.5, abs=0.03)


def test_what_does_not_fit_is_refused_before_it_is_sent() -> None:
    """With both numbers and the flags."""
    with pytest.raises(UsageError, match="a request of 30 tokens does not fit into the model's context of 29"):
        check_fits([Job((1,) * 20, 10)], 29)
    check_fits([Job((1,) * 20, 10)], 30)
    check_fits([Job((1,) * 20, 10)], None)
