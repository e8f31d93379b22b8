"""A run of a client."""

from __future__ import annotations

from lmtool.conformance.ran import Ran
from lmtool.conformance.seen import Message


def test_requests() -> None:
    """Frames that the client sent, by command."""
    ran = Ran()
    for way, frame in ((">", "GENERATE {}"), ("<", "TOKEN []"), (">", "CANCEL {}")):
        ran.seen.add(Message.of(0.0, "1", way, frame))
    assert [message.command for message in ran.requests("GENERATE", "SCORE")] == ["GENERATE"]
