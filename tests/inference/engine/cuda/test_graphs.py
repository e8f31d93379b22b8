"""Captured steps."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 4]), (4, [1, 2, 4]), (5, [1, 2, 4, 8]), (20, [1, 2, 4, 8, 16, 24])],
)
def test_batch_sizes(most, sizes):
    """Few sizes, the last one large enough."""
    from lmtool.inference.engine.cuda.graphs import batch_sizes

    assert batch_sizes(most) == sizes


def test_a_row_that_changes_hands(runner_of):
    """A row of the table follows the text that it is given: other pages, more pages, pages handed on."""
    import torch

    from lmtool.inference.engine.plan import Plan, Sequence, Span

    runner, *_ = runner_of("small")
    with torch.inference_mode():
        recorded = runner.prepared(2, 256)
        first = Sequence(1, list(range(3, 19)), prompt_length=15, max_length=90, blocks=[5])
        second = Sequence(2, list(range(40, 72)), prompt_length=30, max_length=90, blocks=[6, 2])
        runner.run(Plan([Span(first, 0, 15)]))
        runner.run(Plan([Span(second, 0, 31)]))
        for sequence, position in ((first, 15), (second, 31)):
            plan = Plan([Span(sequence, position, 1)])
            torch.testing.assert_close(recorded.run(plan), runner.run(plan), atol=1e-5, rtol=1e-5)
        first.tokens.append(77)
        first.blocks.append(9)
        plan = Plan([Span(first, 16, 1)])
        torch.testing.assert_close(recorded.run(plan), runner.run(plan), atol=1e-5, rtol=1e-5)


def test_ids_that_only_the_device_knows(runner_of):
    """Ids from a tensor stand in for the rows' own; the rows of padding stay as they are."""
    import torch

    from lmtool.inference.engine.cuda.step_rows import lay_out, lay_out_ahead
    from lmtool.inference.engine.plan import Plan, Sequence, Span

    runner, *_ = runner_of("small")
    with torch.inference_mode():
        graphs = runner.prepared(4, 256).graphs
        texts = [Sequence(number, [3, 4, 5, 10 + number], 3, max_length=90, blocks=[number]) for number in (1, 2, 3)]
        runner.run(Plan([Span(text, 0, 3) for text in texts]))
        plan = Plan([Span(text, 3, 1) for text in texts])
        known = graphs.run(lay_out(plan)).clone()
        ids = torch.tensor([11, 12, 13], device=runner.device)
        assert torch.equal(graphs.run(lay_out_ahead(plan), ids), known)
        assert torch.equal(graphs.run(lay_out(plan)), known)


def test_a_step_that_is_repeated(runner_of):
    """A step repeated for measurements gives its logits again, and the steps behind it are right."""
    import torch

    from lmtool.inference.engine.plan import Plan, Span

    runner, *_ = runner_of("small")
    with torch.inference_mode():
        recorded = runner.prepared(4, 256)
        plan = texts_of(runner, 3)
        logits = recorded.run(plan)
        expected = logits.clone()
        for _ in range(20):
            logits.zero_()
            recorded.graphs.replay(3)
        assert torch.equal(logits, expected)
        for span in plan.spans:
            span.sequence.tokens.append(9)
        behind = Plan([Span(span.sequence, 4, 1) for span in plan.spans])
        torch.testing.assert_close(recorded.run(behind), runner.run(behind), atol=1e-5, rtol=1e-5)


def texts_of(runner, count):
    """Sequences whose first three ids are computed, and the plan of their fourth."""
    from lmtool.inference.engine.plan import Plan, Sequence, Span

    texts = [
        Sequence(number, [3, 4, 5, 6 + number], 3, max_length=90, blocks=[number]) for number in range(1, count + 1)
    ]
    runner.run(Plan([Span(text, 0, 3) for text in texts]))
    return Plan([Span(text, 3, 1) for text in texts])


def test_all_graphs_write_to_one_memory(runner_of):
    """A step's logits are where those of the one before were, whatever its batch size."""
    import torch

    from lmtool.inference.engine.plan import Plan

    runner, *_ = runner_of("small")
    with torch.inference_mode():
        recorded = runner.prepared(4, 256)
        plan = texts_of(runner, 3)
        three, one = recorded.run(plan), recorded.run(Plan(plan.spans[:1]))
    assert three.data_ptr() == one.data_ptr()
    assert three.dtype == torch.float32


def test_bytes_of_graphs():
    """The estimate counts one buffer of logits, and grows with rows, context, layers and width."""
    from lmtool.inference.engine.cuda.graphs import graph_bytes

    known = graph_bytes(64, 8192, 128_256, 32, 100_000)
    assert 2 * 64 * 128_256 * 4 < known < 1 << 30
    assert all(
        graph_bytes(*larger) > known
        for larger in (
            (128, 8192, 128_256, 32, 100_000),
            (64, 9000, 128_256, 32, 100_000),
            (64, 8192, 200_000, 32, 100_000),
            (64, 8192, 128_256, 33, 100_000),
            (64, 8192, 128_256, 32, 100_001),
        )
    )
