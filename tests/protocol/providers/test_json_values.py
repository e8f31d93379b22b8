"""JSON of a peer, read with tolerance."""

from __future__ import annotations

import math

import pytest

from lmtool.protocol.providers.json_values import count_of, list_of, load, logprob_of, object_of, text_of


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b"[-Infinity]", [-math.inf]),
        (b'"\xff"', "\ufffd"),
        (b"[DONE]", None),
        (b"", None),
        (b"[" * 100_000, None),
    ],
)
def test_loading(data: bytes, value: object) -> None:
    """What Python's reader takes is read; what none takes is None."""
    assert load(data) == value


def test_other_types_count_as_absent() -> None:
    """Each reader of a member gives something of its type."""
    assert (object_of([1]), list_of({}), text_of(5)) == ({}, (), "")
    assert [count_of(one) for one in (3, -1, True, 1.0, None)] == [3, None, None, None, None]
    assert [logprob_of(one) for one in (-1, -0.5, True, "x", -math.inf, math.nan)] == [
        -1.0,
        -0.5,
        None,
        None,
        None,
        None,
    ]
