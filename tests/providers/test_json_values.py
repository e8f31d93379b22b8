"""JSON of a peer, read with tolerance."""

from __future__ import annotations

import math

import pytest

from lmtool.providers.answer_events import AnswerFailed, TokenUsage
from lmtool.providers.json_values import count_of, failure_of, list_of, load, logprob_of, object_of, text_of, usage_of


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b"[-Infinity]", [-math.inf]),
        (b'"\xff"', "\ufffd"),
        (b"[DONE]", None),
        (b"", None),
        (b"[" * 100_000, None),
    ],
)
def test_loading(data: bytes, value: object) -> None:
    """What Python's reader takes is read; what none takes is None."""
    assert load(data) == value


def test_other_types_count_as_absent() -> None:
    """Each reader of a member gives something of its type."""
    assert (object_of([1]), list_of({}), text_of(5)) == ({}, (), "")
    assert [count_of(one) for one in (3, -1, True, 1.0, None)] == [3, None, None, None, None]
    assert [logprob_of(one) for one in (-1, -0.5, True, "x", -math.inf, math.nan)] == [
        -1.0,
        -0.5,
        None,
        None,
        None,
        None,
    ]


def test_usage() -> None:
    """Counts have each API's own names; cached tokens stand in the details."""
    told = {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": "x"}
    assert usage_of(told, "input_tokens", "output_tokens") == TokenUsage(5, None, 2)


@pytest.mark.parametrize(
    ("value", "failure"),
    [
        (
            {"error": {"message": "no", "type": "invalid_request_error", "code": None}},
            AnswerFailed("no", "invalid_request_error"),
        ),
        ({"error": {"message": "no", "code": "model_not_found", "type": "x"}}, AnswerFailed("no", "model_not_found")),
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
            AnswerFailed("busy", "overloaded_error"),
        ),
        ({"error": "model 'x' not found"}, AnswerFailed("model 'x' not found")),
        (
            {"object": "error", "message": "too long", "type": "BadRequestError", "code": 400},
            AnswerFailed("too long", "BadRequestError"),
        ),
        ({"detail": "Not Found"}, AnswerFailed("Not Found")),
        ({"detail": [{"loc": ["body"]}]}, AnswerFailed('[{"loc": ["body"]}]')),
        ({"error": {"code": 7}}, AnswerFailed('{"code": 7}')),
        ({"error": None, "choices": []}, None),
        ({"choices": [], "detail": "x"}, None),
        ({}, None),
    ],
)
def test_failures(value: dict[str, object], failure: AnswerFailed | None) -> None:
    """Servers tell errors in several forms; each is found, and nothing else is."""
    assert failure_of(value) == failure
