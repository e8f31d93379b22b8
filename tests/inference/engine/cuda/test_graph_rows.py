"""What the host sends for a step in a CUDA graph: what has changed, and no more."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lmtool.inference.engine.cuda.step_rows import lay_out, lay_out_ahead
from lmtool.inference.engine.plan import Plan, Sequence, Span

pytestmark = pytest.mark.cuda

WIDE = 512
"""Positions of the longest text: 32 pages."""


@pytest.fixture
def rows_of(device, monkeypatch):
    """Rows for a batch of 4 single queries and one with 64 rows of prompts, and how many numbers each step sent."""
    from lmtool.inference.engine.cuda import graphs as module

    sent = []
    right = module.to_device

    def noting(pairs, dtype, device):
        sent.append(pairs.shape[1])
        return right(pairs, dtype, device)

    monkeypatch.setattr(module, "to_device", noting)
    decode, mixed = module.GraphSize(4, logits=4), module.GraphSize(4, 64, 5, 8)

    def make(texts=8):
        with torch.inference_mode():
            rows = module.GraphRows([decode, mixed], texts, WIDE, device)

        def step(layout, ids=None):
            sent.clear()
            size = mixed if layout.parts else decode
            with torch.inference_mode():
                rows.send(layout, size, ids)
                rows.enqueue(size)
                rows.follow(size)
            return sum(sent)

        return rows, step

    return make


def texts_of(*lengths):
    """Streams that have all but their last id computed, with their pages."""
    texts = []
    for number, length in enumerate(lengths, start=1):
        blocks = [number * 40 + index for index in range(length // 16 + 1)]
        texts.append(Sequence(number, list(range(100, 100 + length)), 1, max_length=WIDE, blocks=blocks))
    return texts


def decode(texts):
    """The rows of each text's last id."""
    return lay_out(Plan([Span(text, len(text.tokens) - 1, 1) for text in texts]))


def check(rows, texts):
    """The device has what the step needs: ids, positions, slots, lengths and pages of all texts, and padding."""
    count = len(texts)
    positions = [len(text.tokens) - 1 for text in texts]
    slots = [text.blocks[at // 16] * 16 + at % 16 for text, at in zip(texts, positions, strict=True)]
    assert rows.input_ids[:count].tolist() == [text.tokens[-1] for text in texts]
    assert rows.positions[:4].tolist() == positions + [0] * (4 - count)
    assert rows.slots[:4].tolist() == slots + [-1] * (4 - count)
    assert rows.text_lengths.tolist() == [at + 1 for at in positions] + [0] * (4 - count)
    for row, (text, at) in enumerate(zip(texts, positions, strict=True)):
        assert rows.pages[row, : at // 16 + 1].tolist() == text.blocks[: at // 16 + 1]


def test_a_step_that_follows(rows_of):
    """The first step of texts sends their rows and pages; those that follow their ids, and a page where one begins."""
    rows, step = rows_of()
    texts = texts_of(17, 31, 200)
    assert step(decode(texts)) == 3 * 3 + 2 + 2 + 13  # the row of its pages, a length, an id each
    check(rows, texts)
    for text in texts:
        text.tokens.append(7)
    assert step(decode(texts)) == 3
    check(rows, texts)
    for text in texts:
        text.tokens.append(9)
    texts[1].blocks.append(300)
    assert step(decode(texts)) == 3 + 1
    check(rows, texts)


def test_ids_that_lie_on_the_device(rows_of, device):
    """A step ahead sends nothing but new pages, and the step behind it all ids again."""
    rows, step = rows_of()
    texts = texts_of(17, 31)
    step(decode(texts))
    ahead = lay_out_ahead(Plan([Span(text, len(text.tokens), 1) for text in texts]))
    texts[1].blocks.append(300)
    assert step(ahead, torch.tensor([5, 6], device=device)) == 1
    for text, token in zip(texts, (5, 6), strict=True):
        text.tokens.append(token)
    check(rows, texts)
    for text in texts:
        text.tokens.append(text.tokens[-2])  # what the host has sent last
    assert step(decode(texts)) == 2
    check(rows, texts)


def test_texts_that_end_and_come(rows_of):
    """Whoever moves up brings its row; the pages of those that stay are not sent again, nor of one that was away."""
    rows, step = rows_of()
    texts = texts_of(200, 300, 400, 17)
    step(decode(texts))
    assert step(decode(texts[1:])) <= 3 * 4
    check(rows, texts[1:])
    assert step(decode(texts)) <= 3 * 4
    check(rows, texts)


def test_pages_that_become_others(rows_of):
    """Pages that others have computed first, or all of them after a preemption, reach the device."""
    rows, step = rows_of()
    texts = texts_of(40, 50)
    step(decode(texts))
    texts[0].blocks[1:2] = [333]
    texts[0].prefixes.append(object())
    texts[1].blocks = [350, 351, 352, 353]
    for text in texts:
        text.tokens.append(7)
    assert step(decode(texts)) == 2 + 1 + 4
    check(rows, texts)
    texts[0].blocks[2:] = [335, 336]
    texts[0].prefixes.append(object())
    for text in texts:
        text.tokens.append(9)
    assert step(decode(texts)) == 2 + 2
    check(rows, texts)


def test_more_texts_than_rows(rows_of):
    """The text that was away longest gives its row of the table away, and gets another."""
    rows, step = rows_of(texts=4)
    texts = texts_of(17, 18, 19, 20, 21, 22)
    for first in (0, 2, 0, 1, 2):
        step(decode(texts[first : first + 4]))
        check(rows, texts[first : first + 4])


def test_after_a_step_that_failed(rows_of):
    """What the device has is not known then: everything is sent again."""
    rows, step = rows_of()
    texts = texts_of(17, 31)
    whole = step(decode(texts))
    with torch.inference_mode():
        rows._device_numbers.fill_(12345)
    rows.forget()
    assert step(decode(texts)) > whole
    check(rows, texts)


def test_parts_of_prompts(rows_of):
    """Their rows follow those of single queries and their padding, with tiles that name the table's rows."""
    rows, step = rows_of()
    running, starting, other = texts_of(20, 40, 30)
    starting.prompt_length, other.prompt_length = 40, 30
    plan = Plan([Span(starting, 16, 24), Span(running, 19, 1), Span(other, 0, 16)])
    step(lay_out(plan))
    table = rows.table.cpu()
    assert rows.positions[:4].tolist() == [19, 0, 0, 0]
    assert rows.positions[4:44].tolist() == [*range(16, 40), *range(16)]
    assert rows.input_ids[4:44].tolist() == [*range(116, 140), *range(100, 116)]
    slots = [starting.blocks[at // 16] * 16 + at % 16 for at in range(16, 40)]
    assert rows.slots[4:44].tolist() == [*slots, *range(other.blocks[0] * 16, other.blocks[0] * 16 + 16)]
    assert set(rows.slots[44:68].tolist()) == {-1}
    from lmtool.inference.engine.cuda.graphs import GraphSize

    size = GraphSize(4, 64, 5, 8)
    assert rows.logit_rows(size).tolist() == [27, 0, 0, 0, 0, 0, 0, 0]
    tiles = rows.tiles(size).tolist()
    assert [tile[1:] for tile in tiles] == [[4, 24, 16], [28, 16, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    for tile, text in zip(tiles, (starting, other), strict=False):
        assert table[tile[0], : len(text.blocks)].tolist() == text.blocks


def test_random_steps(rows_of):
    """Whatever streams come, go, grow and lose their pages, the device has what each step needs."""
    rows, step = rows_of(texts=6)
    generator = np.random.default_rng(3)
    texts = texts_of(*generator.integers(1, 300, 12).tolist())
    for _ in range(60):
        chosen = [texts[index] for index in generator.permutation(12)[: generator.integers(1, 5)]]
        for text in chosen:
            if generator.random() < 0.7:
                text.tokens.append(int(generator.integers(3, 99)))
            if generator.random() < 0.2:
                text.blocks = [int(block) for block in generator.integers(1, 999, len(text.blocks))]
            while len(text.blocks) * 16 < len(text.tokens):
                text.blocks.append(int(generator.integers(1, 999)))
        step(decode(chosen))
        check(rows, chosen)
