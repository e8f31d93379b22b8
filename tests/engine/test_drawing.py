"""What was drawn, before and after the host has read it."""

from __future__ import annotations

import math

import pytest
import torch

from lmtool.engine.drawing import Choice, Drawing, numbers, parts_of

LOGITS = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]))
TOKENS = torch.tensor([1, 2])


def test_numbers():
    """Log-probabilities of the chosen ids, and as many alternatives as each row asks for."""
    found = list(numbers(LOGITS, [0, 1], TOKENS, [4, 7], [2, None]).read())
    assert [row for row, _, _ in found] == [4, 7]
    assert [logprob for _, logprob, _ in found] == pytest.approx([math.log(0.3), math.log(0.6)], abs=1e-6)
    assert [token for token, _ in found[0][2]] == [0, 1]
    assert found[1][2] is None


def test_choices_of_several_stages():
    """Each row's numbers may come from another stage; they are read in the order of the rows."""
    parts = [numbers(LOGITS, [1], TOKENS[1:], [1], [1]), numbers(LOGITS, [0], TOKENS[:1], [0], [0])]
    drawing = Drawing(TOKENS, torch.zeros(2), parts)
    assert drawing.tokens.tolist() == [1, 2]
    first, second = drawing.choices()
    assert (first.token, second.token) == (1, 2)
    assert [token for token, _ in first.top_logprobs] == [1]
    assert second.top_logprobs == ((2, second.logprob),)


def test_a_row_that_gave_nothing():
    """Neither logits that were no numbers nor a logprob that is none make a choice."""
    broken = torch.tensor([[0.0, 1.0, 2.0], [-math.inf] * 3, [0.0, 0.0, 1.0]])
    tokens = torch.tensor([2, 0, 2])
    drawing = Drawing(
        tokens, torch.tensor([math.inf, 0.0, 0.0]), [numbers(broken, [0, 1, 2], tokens, [0, 1, 2], [None] * 3)]
    )
    none, neither, choice = drawing.choices()
    assert (none, neither) == (None, None)
    assert choice == Choice(2, choice.logprob, None)


def test_parts_are_small():
    """On CPU, rows are looked at as many at a time as a cache holds; each once, in order."""
    parts = list(parts_of([5, 6, 7], torch.empty(1, 400_000)))
    assert parts == [[5], [6], [7]]
    assert list(parts_of([5, 6, 7], torch.empty(1, 10))) == [[5, 6, 7]]
