"""Sampled streams as questions to SCORE."""

from __future__ import annotations

from typing import Any

from lmtool.trace.events import Event, Frame, Parsed
from lmtool.trace.exchanges import exchanges
from lmtool.trace.scoring import as_scores, unscored
from tests.trace.conftest import generate, token, tokens


def sampled(**more: Any) -> list[Event]:
    """A sampled stream of two tokens."""
    return [
        generate(0, 1, **{"temperature": 0.8, **more}),
        tokens(1, token(7, 1, -1.5)),
        tokens(2, token(8, 1, -2.5) | {"finish_reason": "length"}),
    ]


def test_what_was_drawn_is_scored() -> None:
    """The recorded tokens are scored after the recorded prompt; expected are the logprobs that they had."""
    (_, asked, *answers) = as_scores(exchanges(sampled()))
    assert isinstance(asked, Frame)
    assert asked.content == Parsed("SCORE", {"model": "m", "prompt": [5, 6, 7], "scored": [7, 8], "stream_id": 1}, "py")
    values = [one.content.value[0] for one in answers if isinstance(one, Frame) and isinstance(one.content, Parsed)]  # type: ignore[index]
    assert [(one["token"], one["logprob"], one["finish_reason"]) for one in values] == [
        (7, -1.5, None),
        (8, -2.5, "stop"),
    ]


def test_what_can_be_repeated_is_not_scored() -> None:
    """Greedy streams, and sampled ones with a seed, are compared token by token instead."""
    assert as_scores(exchanges(sampled(temperature=0))) == []
    assert as_scores(exchanges(sampled(seed=3))) == []


def test_what_cannot_be_scored_is_told() -> None:
    """Logprobs of another distribution than SCORE's, and prompts that are not there, are left out with the reason."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"logit_bias": {"1": 5}}, "biased"),
        ({"logprobs_mode": "processed", "temperature": 0.8}, "processed"),
        ({"constraint": {"regex": "a"}}, "biased"),
        ({"prompt": []}, "empty"),
        ({"prompt": {"$redacted": "prompt", "n": 3}}, "redacted"),
    ]
    for fields, word in cases:
        recorded = exchanges(sampled(**fields))
        assert as_scores(recorded) == []
        ((_, reason),) = unscored(recorded)
        assert word in reason


def test_a_text_prompt_stays_one() -> None:
    """A prompt that was a text is one again, and the entries are asked for without texts."""
    asked = as_scores(exchanges(sampled(prompt="Once")))[1]
    assert isinstance(asked, Frame)
    assert isinstance(asked.content, Parsed)
    assert asked.content.value == {"model": "m", "prompt": "Once", "scored": [7, 8], "stream_id": 1, "text": False}
