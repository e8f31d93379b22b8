"""Our engine as a contestant."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from lmtool.bench.peers.lmtool_peer import Peer
from tests.bench.peers.conftest import OUTPUT, PROMPTS


def test_its_greedy_ids_are_transformers_own(settings: dict[str, Any], right: list[list[int]]) -> None:
    """Of several prompts at once, again with another length, and of one alone."""
    with contextlib.closing(Peer(settings)) as peer:
        assert peer.about()["dtype"] == "float32"
        assert peer.generate(PROMPTS, OUTPUT) == right
        assert peer.generate(PROMPTS[1:2], 2) == [right[1][:2]]


def test_a_stream_that_fails_is_an_error(settings: dict[str, Any]) -> None:
    """The engine's own sentence."""
    with contextlib.closing(Peer(settings)) as peer, pytest.raises(RuntimeError, match="not in the vocabulary"):
        peer.generate([[1_000_000]], 2)
