"""One query a row over pages, its keys split among programs."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.cuda

CASES = [
    # head size, key heads, group, window, softcap, most splits
    (64, 2, 1, None, None, 1),
    (64, 1, 8, None, None, 8),
    (80, 2, 3, 24, None, 4),
    (96, 1, 5, None, 6.0, 4),
    (128, 2, 4, None, None, 2),
    (128, 1, 7, 1, None, 2),
    (256, 1, 2, 40, 3.0, 4),
    (16, 1, 6, 200, None, 16),
]
LENGTHS = (0, 1, 15, 16, 17, 64, 65, 200)
"""An empty row, one token, page and tile boundaries and their neighbours."""


def plain(query, keys, values, pages, length, scaling, window, softcap):
    """Attention [H, Dv] of one query in float64."""
    key, value = (own[pages.long()].flatten(0, 1)[:length].double() for own in (keys, values))
    if window is not None:
        key, value = key[-window:], value[-window:]
    grouped = query.double().view(key.shape[1], -1, query.shape[-1])
    scores = torch.einsum("kgd,tkd->kgt", grouped, key) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    return torch.einsum("kgt,tkd->kgd", scores.softmax(-1), value).flatten(0, 1)


def texts(device, dtype, size, kv_heads, group, value_size=None):
    """Queries, pages of keys and values, a table in which pages lie out of order, and lengths."""
    generator = torch.Generator().manual_seed(size + group)
    width = -(-max(LENGTHS) // 16)
    pages = width * len(LENGTHS) + 1
    keys = torch.randn(pages, 16, kv_heads, size, generator=generator)
    values = torch.randn(pages, 16, kv_heads, value_size or size, generator=generator)
    query = torch.randn(len(LENGTHS), kv_heads * group, size, generator=generator)
    table = (torch.randperm(pages - 1, generator=generator) + 1).view(len(LENGTHS), width).int()
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    return (*(own.to(device, dtype) for own in (query, keys, values)), table.to(device), lengths.to(device))


def cut(monkeypatch, tokens, splits=64, programs=8):
    """Cut rows into parts of at least so many positions, that so many programs share."""
    from lmtool.inference.engine.cuda.kernels import attention

    monkeypatch.setattr(attention, "_SPLIT_TOKENS", tokens)
    monkeypatch.setattr(attention, "_WHOLE_TOKENS", 1)
    monkeypatch.setattr(attention, "most_splits", lambda _: splits)
    monkeypatch.setattr(attention, "_PROGRAMS", programs)


@pytest.mark.parametrize(("size", "kv_heads", "group", "window", "softcap", "splits"), CASES)
def test_equals_plain_attention(device, dtype, size, kv_heads, group, window, softcap, splits, monkeypatch):
    """Each row is the attention of its own text; an empty row is zero."""
    from lmtool.inference.engine.cuda.kernels.attention import decode_attention

    cut(monkeypatch, 32, splits)
    query, keys, values, table, lengths = texts(device, dtype, size, kv_heads, group)
    asked = {"scaling": size**-0.5, "window": window, "softcap": softcap}
    output = decode_attention(query, keys, values, table, lengths, **asked)
    assert output.dtype == dtype
    assert not output[0].any()
    for row, length in list(enumerate(LENGTHS))[1:]:
        expected = plain(query[row], keys, values, table[row], length, *asked.values())
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(output[row].double(), expected, atol=tolerance, rtol=tolerance)


def test_values_of_another_size(device):
    """Values may have another size than keys."""
    from lmtool.inference.engine.cuda.kernels.attention import decode_attention

    query, keys, values, table, lengths = texts(device, torch.float32, 64, 2, 2, value_size=32)
    output = decode_attention(query, keys, values, table, lengths, scaling=0.125)
    expected = plain(query[7], keys, values, table[7], 200, 0.125, None, None)
    torch.testing.assert_close(output[7].double(), expected, atol=1e-5, rtol=1e-5)


def test_what_lies_behind_a_text_does_not_matter(device):
    """Positions behind a text's end may hold anything, NaN included."""
    from lmtool.inference.engine.cuda.kernels.attention import decode_attention

    query, keys, values, table, lengths = texts(device, torch.float32, 64, 2, 2)
    before = decode_attention(query, keys, values, table, lengths, scaling=0.125)
    for row, length in enumerate(LENGTHS):
        for position in range(length, table.shape[1] * 16):
            keys[table[row, position // 16].long(), position % 16] = float("nan")
            values[table[row, position // 16].long(), position % 16] = float("nan")
    after = decode_attention(query, keys, values, table, lengths, scaling=0.125)
    assert torch.equal(before, after)


@pytest.mark.parametrize("window", [None, 100])
def test_alone_and_in_a_crowd(device, monkeypatch, window):
    """A row has the same bits alone and among others, long ones too, whichever programs there are for its parts."""
    from lmtool.inference.engine.cuda.kernels.attention import decode_attention

    query, keys, values, table, lengths = texts(device, torch.float32, 64, 2, 2)
    cut(monkeypatch, 32, 4, programs=3)
    whole = decode_attention(query, keys, values, table, lengths, scaling=0.125, window=window)
    cut(monkeypatch, 32, 4, programs=100)
    for row in range(len(LENGTHS)):
        one = slice(row, row + 1)
        narrow = table[one, : -(-max(LENGTHS[row], 1) // 16)].contiguous()
        alone = decode_attention(query[one], keys, values, narrow, lengths[one], scaling=0.125, window=window)
        assert torch.equal(alone[0], whole[row])


def test_more_rows_than_a_program_looks_at(device, monkeypatch):
    """They are computed in several launches, with the same bits."""
    from lmtool.inference.engine.cuda.kernels import attention

    query, keys, values, table, lengths = texts(device, torch.float32, 64, 2, 2)
    whole = attention.decode_attention(query, keys, values, table, lengths, scaling=0.125)
    monkeypatch.setattr(attention, "_ROWS", (2, 4))
    assert torch.equal(attention.decode_attention(query, keys, values, table, lengths, scaling=0.125), whole)


def test_a_long_text_alone_has_many_parts():
    """Parts grow with the text only when there are enough of them for a large GPU, and fit where partial results go."""
    from lmtool.inference.engine.cuda.kernels.attention import _SPLIT_TOKENS, most_splits

    for kv_heads in (1, 2, 4, 8, 12):
        for length in (1, 128, 129, 4096, 32768, 131072, 1_000_003):
            tokens = max(-(-length // most_splits(kv_heads) // _SPLIT_TOKENS), 1) * _SPLIT_TOKENS
            parts = -(-length // tokens)
            assert parts <= min(most_splits(kv_heads), -(-length // _SPLIT_TOKENS))
            assert length < 32768 or parts * kv_heads >= 30


def test_stored_as_e4m3(device, dtype, monkeypatch):
    """Keys and values in bytes, with a scale for each head, give the attention of the numbers that they stand for."""
    from lmtool.inference.engine.cuda.kernels.attention import decode_attention

    query, keys, values, table, lengths = texts(device, dtype, 64, 2, 3)
    cut(monkeypatch, 64)
    scales = torch.tensor([[0.5, 2.0], [0.25, 1.0]], device=device)
    narrow = [
        (own.float() / scale[:, None]).to(torch.float8_e4m3fn)
        for own, scale in zip((keys, values), scales, strict=True)
    ]
    output = decode_attention(
        query, *(own.view(torch.uint8) for own in narrow), table, lengths, scaling=0.125, scales=scales
    )
    wide = [own.double() * scale[:, None] for own, scale in zip(narrow, scales, strict=True)]
    assert not output[0].any()
    for row, length in list(enumerate(LENGTHS))[1:]:
        expected = plain(query[row], *wide, table[row], length, 0.125, None, None)
        torch.testing.assert_close(output[row].double(), expected, atol=2e-2, rtol=2e-2)


def test_no_rows(device):
    """No rows give no rows."""
    from lmtool.inference.engine.cuda.kernels.attention import decode_attention

    query, keys, values, table, lengths = texts(device, torch.float32, 64, 2, 2)
    assert decode_attention(query[:0], keys, values, table[:0], lengths[:0], scaling=1.0).shape == (0, 4, 64)
