"""One query a row over pages, its keys split among programs."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.cuda

CASES = [
    # head size, key heads, group, window, softcap, splits
    (64, 2, 1, None, None, 1),
    (64, 1, 8, None, None, 8),
    (80, 2, 3, 24, None, 4),
    (96, 1, 5, None, 6.0, 4),
    (128, 2, 4, None, None, 3),
    (128, 1, 7, 1, None, 2),
    (256, 1, 2, 40, 3.0, 5),
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


@pytest.mark.parametrize(("size", "kv_heads", "group", "window", "softcap", "splits"), CASES)
def test_equals_plain_attention(device, dtype, size, kv_heads, group, window, softcap, splits):
    """Each row is the attention of its own text; an empty row is zero."""
    from lmtool.engine.cuda.kernels.decode_attention import decode_attention

    query, keys, values, table, lengths = texts(device, dtype, size, kv_heads, group)
    asked = {"scaling": size**-0.5, "window": window, "softcap": softcap}
    output = decode_attention(query, keys, values, table, lengths, **asked, splits=splits)
    assert output.dtype == dtype
    assert not output[0].any()
    for row, length in list(enumerate(LENGTHS))[1:]:
        expected = plain(query[row], keys, values, table[row], length, *asked.values())
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(output[row].double(), expected, atol=tolerance, rtol=tolerance)


def test_values_of_another_size(device):
    """Values may have another size than keys."""
    from lmtool.engine.cuda.kernels.decode_attention import decode_attention

    query, keys, values, table, lengths = texts(device, torch.float32, 64, 2, 2, value_size=32)
    output = decode_attention(query, keys, values, table, lengths, scaling=0.125)
    expected = plain(query[7], keys, values, table[7], 200, 0.125, None, None)
    torch.testing.assert_close(output[7].double(), expected, atol=1e-5, rtol=1e-5)


def test_what_lies_behind_a_text_does_not_matter(device):
    """Positions behind a text's end may hold anything, NaN included."""
    from lmtool.engine.cuda.kernels.decode_attention import decode_attention

    query, keys, values, table, lengths = texts(device, torch.float32, 64, 2, 2)
    before = decode_attention(query, keys, values, table, lengths, scaling=0.125)
    for row, length in enumerate(LENGTHS):
        for position in range(length, table.shape[1] * 16):
            keys[table[row, position // 16].long(), position % 16] = float("nan")
            values[table[row, position // 16].long(), position % 16] = float("nan")
    after = decode_attention(query, keys, values, table, lengths, scaling=0.125)
    assert torch.equal(before, after)


def test_alone_and_in_a_crowd(device):
    """A row has the same bits alone and among others, with the same number of splits."""
    from lmtool.engine.cuda.kernels.decode_attention import decode_attention

    query, keys, values, table, lengths = texts(device, torch.float32, 64, 2, 2)
    whole = decode_attention(query, keys, values, table, lengths, scaling=0.125, splits=4)
    for row in range(len(LENGTHS)):
        one = slice(row, row + 1)
        alone = decode_attention(query[one], keys, values, table[one], lengths[one], scaling=0.125, splits=4)
        assert torch.equal(alone[0], whole[row])


def test_no_rows(device):
    """No rows give no rows."""
    from lmtool.engine.cuda.kernels.decode_attention import decode_attention

    query, keys, values, table, lengths = texts(device, torch.float32, 64, 2, 2)
    assert decode_attention(query[:0], keys, values, table[:0], lengths[:0], scaling=1.0).shape == (0, 4, 64)
