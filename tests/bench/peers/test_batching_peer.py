"""Transformers' continuous batching as a contestant."""

from __future__ import annotations

import contextlib
from typing import Any

from lmtool.bench.peers.batching_peer import Peer
from tests.bench.peers.conftest import OUTPUT, PROMPTS


def test_its_greedy_ids_are_transformers_own(settings: dict[str, Any], right: list[list[int]]) -> None:
    """Of several prompts at once, again with another length, and of one alone."""
    with contextlib.closing(Peer(settings)) as peer:
        assert peer.about()["dtype"] == "float32"
        assert peer.generate(PROMPTS, OUTPUT) == right
        assert peer.generate(PROMPTS[1:2], 2) == [right[1][:2]]
