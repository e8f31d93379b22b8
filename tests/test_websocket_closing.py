"""Why a WebSocket connection ended, for people."""

from __future__ import annotations

import pytest
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK
from websockets.frames import Close

from lmtool.websocket_closing import closing_words


@pytest.mark.parametrize(
    ("closed", "words"),
    [
        (ConnectionClosedOK(Close(1000, ""), Close(1000, ""), rcvd_then_sent=True), "the server closed it"),
        (ConnectionClosedError(Close(1001, ""), None), "the server is shutting down"),
        (ConnectionClosedError(Close(1011, "3 pings"), None), "the server gave it up (3 pings)"),
        (ConnectionClosedError(Close(4321, ""), None), "it was closed with code 4321"),
        (ConnectionClosedError(None, None), "it broke off"),
    ],
)
def test_words(closed: Exception, words: str) -> None:
    """A code is no sentence: what it means is said, and the reason that came with it."""
    assert closing_words(closed) == words
