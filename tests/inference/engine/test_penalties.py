"""How often each id is in a stream, counted where a kernel adds what it samples."""

from __future__ import annotations

import pytest
import torch

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
