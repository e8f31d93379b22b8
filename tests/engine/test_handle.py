"""What who submitted a stream holds of it."""

from __future__ import annotations

from lmtool.engine.handle import Handle


def test_wishes():
    """Each is told as it comes; the engine does it."""
    told = []
    handle = Handle(told.append)
    handle.pause()
    handle.resume()
    handle.cancel()
    assert told == ["pause", "resume", "cancel"]
