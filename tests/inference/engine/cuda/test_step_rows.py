"""Plans as rows over pages: generated positions first, then parts of prompts."""

from __future__ import annotations

import torch

from lmtool.inference.engine.cuda import step_rows
from lmtool.inference.engine.cuda.step_rows import QUERY_TILE, TABLE_STEP, build, lay_out, lay_out_ahead
from lmtool.inference.engine.plan import Plan, Sequence, Span

CPU = torch.device("cpu")


def sequence(number, tokens, prompt, blocks, **settings):
    """A sequence whose first id is 100 times its number."""
    ids = [100 * number + position for position in range(tokens)]
    return Sequence(number, ids, prompt_length=prompt, max_length=500, blocks=blocks, **settings)


def plan():
    """A prompt's part, a stream that decodes, one that was preempted behind its prompt's end, a SCORE stream."""
    starting = sequence(1, 40, 40, [3, 4, 5])
    running = sequence(2, 20, 5, [7, 8])
    again = sequence(3, 18, 15, [9, 10])
    scored = sequence(4, 6, 2, [11], scoring=True)
    return Plan([Span(starting, 16, 24), Span(running, 19, 1), Span(again, 13, 5), Span(scored, 0, 5)])


def test_rows():
    """Ids, positions and slots of every row; generated positions come first, each with its own length."""
    batch, rows = build(plan(), CPU)
    ids = [219, 315, 316, 317, *range(116, 140), 313, 314, *range(400, 405)]
    assert batch.input_ids.tolist() == [ids]
    assert batch.positions.tolist() == [[number % 100 for number in ids]]
    assert rows.slots[:4].tolist() == [8 * 16 + 3, 9 * 16 + 15, 10 * 16, 10 * 16 + 1]
    assert rows.slots[4:20].tolist() == list(range(64, 80))
    assert rows.singles.lengths.tolist() == [20, 16, 17, 18]
    assert rows.singles.table[:, :2].tolist() == [[7, 8], [9, 10], [9, 10], [9, 10]]
    assert rows.singles.table.shape[1] == TABLE_STEP


def test_parts():
    """Parts of prompts follow in the plan's order, in tiles that know their piece, row, size and position."""
    _, rows = build(plan(), CPU)
    assert rows.parts.first == 4
    assert rows.parts.bounds.tolist() == [0, 24, 26, 31]
    assert rows.parts.lengths.tolist() == [40, 15, 5]
    assert rows.parts.table[:, :4].tolist() == [[3, 4, 5, 0], [9, 10, 0, 0], [11, 0, 0, 0]]
    assert rows.parts.tiles.tolist() == [[0, 4, 24, 16], [1, 28, 2, 13], [2, 30, 5, 0]]
    assert rows.parts.longest == 24


def test_long_parts_have_several_tiles():
    """A part longer than a tile is cut from its start."""
    long = sequence(1, 150, 150, list(range(1, 11)))
    _, rows = build(Plan([Span(long, 16, 134)]), CPU)
    assert rows.singles is None
    assert rows.parts.tiles.tolist() == [[0, 0, QUERY_TILE, 16], [0, 64, QUERY_TILE, 80], [0, 128, 6, 144]]


def test_logit_rows_are_in_the_order_of_the_spans():
    """Logits come out in the plan's order, wherever their rows are."""
    batch, _ = build(plan(), CPU)
    rows = [batch.input_ids[0, row].item() for row in batch.logit_rows]
    assert rows == [139, 219, 317, 401, 402, 403, 404]
    assert batch.logits == 7


def test_steps_that_only_decode():
    """Generated and guessed positions whose logits are all needed are told from any other step."""
    running, guessed = sequence(2, 20, 5, [7, 8]), sequence(3, 18, 15, [9, 10], draft=[41, 42])
    layout = lay_out(Plan([Span(running, 19, 1), Span(guessed, 17, 3)]))
    assert layout.decodes
    assert (layout.ids, layout.positions) == ([219, 317, 41, 42], [19, 17, 18, 19])
    assert layout.singles == [running, guessed, guessed, guessed]
    assert not lay_out(plan()).decodes
    assert not lay_out(Plan([Span(sequence(1, 20, 20, [1, 2]), 19, 1)])).decodes
    assert not lay_out(Plan([Span(sequence(3, 18, 15, [9, 10]), 15, 2)])).decodes


def test_the_last_ids_of_texts():
    """The shortest way to lay out what most steps are gives the same as that for any step."""
    spans = [Span(sequence(number, 20 + number, 5, [7, 8]), 19 + number, 1) for number in (2, 3, 4)]
    assert step_rows._lay_out_decode(Plan(spans)) == step_rows._lay_out_any(Plan(spans))
    others = [
        Span(sequence(1, 20, 20, [1, 2]), 19, 1),
        Span(sequence(1, 20, 5, [1, 2]), 18, 1),
        Span(sequence(1, 20, 5, [1, 2]), 18, 2),
        Span(sequence(1, 20, 5, [1, 2], draft=[7]), 20, 1),
        Span(sequence(1, 20, 5, [1, 2], draft=[7]), 19, 2),
        Span(sequence(1, 20, 5, [1, 2], scoring=True), 19, 1),
        Span(sequence(1, 20, 5, [1, 2], prefill_only=True), 19, 1),
    ]
    for other in others:
        assert step_rows._lay_out_decode(Plan([*spans, other])) is None


def test_steps_ahead():
    """Positions behind the known ids, of texts in the order of the plan; the ids are not known."""
    running, other = sequence(2, 20, 5, [7, 8]), sequence(3, 18, 15, [9, 10])
    layout = lay_out_ahead(Plan([Span(running, 20, 1), Span(other, 18, 1)]))
    assert (layout.positions, layout.singles, layout.logit_rows) == ([20, 18], [running, other], [0, 1])
    assert layout.decodes


def test_tensors_begin_where_kernels_expect_it():
    """Whatever the number of rows, each tensor begins at a multiple of 16 bytes: no kernel is compiled anew."""
    for count in (1, 2, 3, 5, 33):
        batch, rows = build(
            Plan([Span(sequence(1, 40, 40, [3, 4, 5]), 0, count), Span(sequence(2, 9, 5, [7]), 8, 1)]), CPU
        )
        tensors = (batch.positions, rows.slots, batch.logit_rows, rows.singles.table, rows.singles.lengths)
        parts = (rows.parts.table, rows.parts.lengths, rows.parts.bounds, rows.parts.tiles)
        first = batch.input_ids.data_ptr()
        assert [(own.data_ptr() - first) % 16 for own in tensors[:3]] == [0] * 3
        assert [own.stride(0) * 4 % 64 for own in (tensors[3], parts[0])] == [0] * 2
        base = rows.singles.table.data_ptr()
        assert [(own.data_ptr() - base) % 16 for own in (tensors[4], parts[0])] == [0] * 2
        assert [(own.data_ptr() - parts[1].data_ptr()) % 16 for own in parts[2:]] == [0] * 2
