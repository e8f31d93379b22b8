"""Schema, regular expression and tool, by every API, streamed or not, with speculation or not, thinking or not."""

from __future__ import annotations

from tests.protocol.http.product import THINKING, cases, run

SAMPLE = 30


def test_a_sample_of_the_product() -> None:
    """Finished answers are held, thoughts are never part of them: here for 30 requests, for all by the command."""
    assert len(list(cases())) == 216
    counts = run(1, seed=3, sample=SAMPLE)
    assert sum(counts.values()) == SAMPLE
    assert {name.partition(":")[0] for name in counts} == set(THINKING)
