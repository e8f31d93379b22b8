"""Requests and outputs that a filter lets through while a trace is read."""

from __future__ import annotations

import pytest

from lmtool.trace.conversation import Conversation
from lmtool.trace.events import Event, Frame, Parsed, Vocab
from lmtool.trace.filter import parse
from lmtool.trace.selection import Selection
from tests.trace.conftest import generate, token, tokens

EVENTS: tuple[Event, ...] = (
    Vocab(0.0, 0, {11: " the", 12: "x"}),
    generate(0.0),
    tokens(0.1, token(11, logprob=-0.1, top_logprobs={"11": -0.1, "12": -3.0})),
    tokens(0.2, token(12, logprob=-3.0, top_logprobs={"11": -0.1, "12": -3.0})),
    tokens(0.9, token(11, logprob=-0.1) | {"finish_reason": "stop"}),
    generate(1.0, 2, connection=2),
    Frame(1.1, "<", 2, Parsed("TOKEN", [{"stream_id": 2, "error": "no"}], "py")),
)


def chosen(expression: str) -> list[float]:
    conversation = Conversation()
    selection = Selection(parse(expression), conversation)
    return [step.time for event in EVENTS for step in conversation.follow(event) if selection.wants(step)]


@pytest.mark.parametrize(
    ("expression", "times"),
    [
        ("", [0.0, 0.1, 0.2, 0.9, 1.0, 1.1]),
        ("p<.1", [0.2]),
        ("rank>1", [0.2]),
        ("gap>500ms", [0.9]),
        ("tok:11", [0.1, 0.9]),
        ('"the"', [0.1, 0.9]),
        ("conn:2", [1.0, 1.1]),
        ("sid:1/1", [0.0, 0.1, 0.2, 0.9]),
        ("err", [1.1]),
        ("state:stop | state:waiting", [0.0, 0.9, 1.0]),
        ("bits>4 !tok:11", [0.2]),
        ("kind:gen model:m", [0.0, 0.1, 0.2, 0.9, 1.0, 1.1]),
    ],
)
def test_what_is_chosen(expression: str, times: list[float]) -> None:
    """Each term looks at what it names; tokens' facts hold for no request."""
    assert chosen(expression) == times


def test_outputs_without_a_request() -> None:
    """A recording may begin in the middle: its tokens can be chosen all the same."""
    conversation = Conversation()
    selection = Selection(parse("tok:11"), conversation)
    (step,) = conversation.follow(tokens(0.1, token(11), connection=7))
    assert selection.wants(step)
