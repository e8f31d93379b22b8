"""What the machine can do."""

from __future__ import annotations

import pytest

from lmtool.bench.peers.ceiling_peer import Peer


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_products(dtype: str) -> None:
    """Some arithmetic a second, in every number format."""
    assert Peer({"threads": 1}).product(dtype, 0.01)["flop_per_s"] > 1e8


def test_bandwidth() -> None:
    """Some bytes a second."""
    assert Peer({"threads": 1}).bandwidth(0.01)["bytes_per_s"] > 1e8
