"""Why a WebSocket connection ended, for people."""

from __future__ import annotations

import pytest
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK
from websockets.frames import Close

from lmtool.net.websocket_closing import closing_words, cut_reason


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


@pytest.mark.parametrize(
    "reason", ["", "stop", "x" * 123, "x" * 124, "é" * 100, "x" * 122 + "é", "\ud800" * 200, "👩" * 40]
)
def test_reasons_fit_into_a_close_frame(reason: str) -> None:
    """Of any text so much is sent as 123 bytes hold, in whole characters (RFC 6455, 5.5)."""
    cut = cut_reason(reason)
    Close(1000, cut).check()
    assert len(Close(1000, cut).serialize()) <= 125
    assert cut == reason or len(cut.encode()) > 119
