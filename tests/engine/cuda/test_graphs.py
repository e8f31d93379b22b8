"""Recorded decode steps."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 4]), (4, [1, 2, 4]), (5, [1, 2, 4, 8]), (20, [1, 2, 4, 8, 16, 24])],
)
def test_batch_sizes(most, sizes):
    """Few sizes, the last one large enough."""
    from lmtool.engine.cuda.graphs import batch_sizes

    assert batch_sizes(most) == sizes


def test_a_row_that_changes_hands(runner_of):
    """A row of the table follows the text that it is given: other pages, more pages, pages handed on."""
    import torch

    from lmtool.engine.plan import Plan, Span
    from lmtool.engine.sequence import Sequence

    runner, *_ = runner_of("small")
    with torch.inference_mode():
        recorded = runner.prepared(2, 256)
        first = Sequence(1, list(range(3, 20)), prompt_length=15, max_length=90, blocks=[5])
        second = Sequence(2, list(range(40, 72)), prompt_length=30, max_length=90, blocks=[6, 2])
        plans = [Plan([Span(first, 0, 15)]), Plan([Span(second, 0, 31)])]
        for plan in plans:
            runner.run(plan)
        steps = [(first, 15), (second, 31)]
        for sequence, position in steps:
            plan = Plan([Span(sequence, position, 1)])
            torch.testing.assert_close(recorded.run(plan), runner.run(plan), atol=1e-5, rtol=1e-5)
        first.blocks.append(9)
        plan = Plan([Span(first, 16, 1)])
        torch.testing.assert_close(recorded.run(plan), runner.run(plan), atol=1e-5, rtol=1e-5)


def test_ids_that_only_the_device_knows(runner_of):
    """Ids from a tensor stand in for the rows' own; the rows of padding stay as they are."""
    import torch

    from lmtool.engine.cuda.step_rows import Place
    from lmtool.engine.plan import Plan, Span
    from lmtool.engine.sequence import Sequence

    runner, *_ = runner_of("small")
    with torch.inference_mode():
        graphs = runner.prepared(4, 256).graphs
        texts = [Sequence(number, [3, 4, 5], 3, max_length=90, blocks=[number]) for number in (1, 2, 3)]
        runner.run(Plan([Span(text, 0, 3) for text in texts]))
        known = graphs.run([Place(text, 10 + text.number, 3) for text in texts])
        ids = torch.tensor([11, 12, 13], device=runner.device)
        assert torch.equal(graphs.run([Place(text, 0, 3) for text in texts], ids), known)
