"""The form that answers of all APIs have in common."""

from __future__ import annotations

import pytest

from lmtool.providers.answer_events import ChunkToken


@pytest.mark.parametrize(
    ("token", "piece"),
    [
        (ChunkToken(" the"), " the"),
        (ChunkToken("é", data="é".encode()), "é"),
        (ChunkToken("\ufffd", data=b"\xf0\x9f"), b"\xf0\x9f"),
    ],
)
def test_pieces(token: ChunkToken, piece: str | bytes) -> None:
    """A token is its text, or its bytes where these are no text on their own."""
    assert token.piece == piece
