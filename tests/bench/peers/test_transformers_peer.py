"""Transformers' `generate` as a contestant and as the reference."""

from __future__ import annotations

from typing import Any

import pytest

from lmtool.bench.peers.transformers_peer import Peer
from tests.bench.peers.conftest import OUTPUT, PROMPTS


def test_the_reference_tells_how_sure_each_id_is(settings: dict[str, Any], right: list[list[int]]) -> None:
    """The lead of the best logit over the second, in standard deviations: never negative."""
    told = Peer(settings).reference(PROMPTS, OUTPUT)
    assert told["ids"] == right
    assert [len(gaps) for gaps in told["gaps"]] == [OUTPUT] * len(PROMPTS)
    assert all(gap >= 0 for gaps in told["gaps"] for gap in gaps)


def test_a_stream_alone_is_the_stream_in_a_batch(settings: dict[str, Any], right: list[list[int]]) -> None:
    """Equal lengths need no padding."""
    assert Peer(settings).generate(PROMPTS[:1], OUTPUT) == right[:1]


def test_dtypes_that_it_does_not_have(settings: dict[str, Any]) -> None:
    """Refused with the value."""
    with pytest.raises(ValueError, match="no int8"):
        Peer({**settings, "dtype": "int8"})
