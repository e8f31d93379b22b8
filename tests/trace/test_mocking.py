"""Recordings played to clients."""

from __future__ import annotations

from typing import Any

import pytest

from lmtool.trace import replaying
from lmtool.trace.events import Drop, Event, Frame, JsonText
from lmtool.trace.exchanges import exchanges
from lmtool.trace.replaying import replay_to_mock
from tests.trace.conftest import generate, token, tokens


def message(**entry: Any) -> Frame:
    """One MSG."""
    return Frame(3, "<", 1, JsonText("MSG", [entry], "py"))


TOP = {"top_logprobs": {"7": -0.5}}
RECORDED: list[Event] = [
    generate(0, 1, max_tokens=3),
    generate(0, 2),
    tokens(1, token(7, 1, **TOP), token(7, 2, **TOP)),
    tokens(2, token(7, 1, **TOP) | {"finish_reason": "length"}),
    tokens(2, {"stream_id": 2, "error": "no more"}),
    Frame(2, ">", 1, JsonText("MODEL_INFO", {"model": "m", "stream_id": 3}, "py")),
    message(stream_id=3, model_info={"model": "m", "constructor": "x"}),
    Frame(4, ">", 1, "GENERATE nonsense"),
    Frame(5, "<", 1, JsonText("MSG", [{"stream_id": None, "error": "nonsense"}], "py")),
    generate(6, 5, max_tokens=100),
    tokens(7, token(7, 5, **TOP)),
    Drop(8, 1, {"by": "client"}),
]


async def test_both_clients_get_what_was_recorded() -> None:
    """Raw frames are answered byte for byte; our client hands over each token, error, answer and loss."""
    made, came = await replay_to_mock(RECORDED)
    assert [(one.kind, one.verdict) for one in made] == [
        ("GENERATE", "pass"),
        ("GENERATE", "pass"),
        ("MODEL_INFO", "pass"),
        ("", "pass"),
        ("GENERATE", "pass"),
        ("GENERATE by lmtool", "pass"),
        ("GENERATE by lmtool", "pass"),
        ("MODEL_INFO by lmtool", "pass"),
        ("GENERATE by lmtool", "pass"),
    ]
    assert isinstance(came[-1], Drop)


async def test_recorded_faults_are_repeated_not_blamed() -> None:
    """What is wrong in a recording is no fault of the mock server."""
    recorded: list[Event] = [generate(0), tokens(1, token(7) | {"finish_reason": "odd"})]
    made, _ = await replay_to_mock(recorded)
    assert made[0].verdict == "pass"


async def test_a_client_that_reads_otherwise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each output is compared with the recorded entry: another number in the recording is a failure with its place."""
    recorded = exchanges(
        [generate(0), tokens(1, token(7, **TOP)), tokens(2, token(8, **TOP) | {"finish_reason": "stop"})]
    )
    original = replaying._entry_facts
    monkeypatch.setattr(
        replaying, "_entry_facts", lambda entry: original(entry) | ({"token": 9} if entry["token"] == 8 else {})
    )
    (found,) = await replaying._ask_with_our_client(recorded, 5.0)
    assert str(found.findings[0]) == "fail (ids) stream 1/1 token 1: expected token 9, got 8"
