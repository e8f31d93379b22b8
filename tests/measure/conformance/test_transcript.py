"""What was said, as data."""

from __future__ import annotations

import pytest

from lmtool.measure.conformance.transcript import ClientRun, Message, same_id, short
from tests.measure.conformance.conftest import msg, said, token


@pytest.mark.parametrize(
    ("content", "command", "readable", "strict"),
    [
        ("TOKEN [1]", "TOKEN", True, True),
        ("TOKEN [-Infinity]", "TOKEN", True, False),
        ("TOKEN [", "TOKEN", False, False),
        ("TOKEN", None, False, False),
        (b"TOKEN []", None, False, False),
    ],
)
def test_messages_are_taken_apart(content: str | bytes, command: str | None, readable: bool, strict: bool) -> None:
    """As far as that goes: Python's `-Infinity` is read, and is not strict."""
    message = Message.of(0.0, "a", "<", content)
    assert (message.command, message.readable, message.strict()) == (command, readable, strict)


def test_streams_are_told_apart() -> None:
    """By connection, and by the id's JSON text: 1 is not 1.0."""
    transcript = said(token(7, 1), token(8, 1.0), token(9, "1"), msg(1, model_info="x"), msg(None, error="no"))
    assert (transcript.ids(1), transcript.ids(1.0), transcript.ids("1"), transcript.ids(1, "b")) == ([7], [8], [9], [])
    assert transcript.is_answered(1)
    assert not transcript.is_answered("1")
    assert transcript.replies(None) == [{"stream_id": None, "error": "no"}]
    assert same_id({"a": 1, "b": 2}, {"b": 2, "a": 1})


def test_a_stream_has_ended() -> None:
    """By a finish_reason, an error, or a MSG error."""
    assert not said(token()).has_ended(1)
    assert said(token(finish_reason="stop")).has_ended(1)
    assert said(token(error="no")).has_ended(1)
    assert said(msg(error="no")).has_ended(1)


def test_short() -> None:
    """Long values are cut."""
    assert short("a" * 200).endswith("a...")
    assert len(short(list(range(200)))) == 120


def test_requests_of_a_client() -> None:
    """Frames that the client sent, by command."""
    run = ClientRun()
    for direction, frame in ((">", "GENERATE {}"), ("<", "TOKEN []"), (">", "CANCEL {}")):
        run.transcript.add(Message.of(0.0, "1", direction, frame))
    assert [message.command for message in run.requests("GENERATE", "SCORE")] == ["GENERATE"]
