"""Typed lines as requests."""

from __future__ import annotations

import pytest

from lmtool.errors import UsageError
from lmtool.tui.prompting import request_of, score_of


def test_parameters_at_the_end() -> None:
    """Trailing `name=value` words set parameters; in running text they stay text."""
    asked = request_of("let x=1 and seed=3 be temperature=.8 max_tokens=5")
    assert asked.prompt == "let x=1 and seed=3 be"
    assert (asked.sampling.temperature, asked.sampling.max_tokens, asked.sampling.seed) == (0.8, 5, None)


def test_alternatives_are_asked_for() -> None:
    """Five a token, unless the line says otherwise."""
    assert request_of("Hi").sampling.top_logprobs == 5
    assert request_of("Hi top_logprobs=20").sampling.top_logprobs == 20


@pytest.mark.parametrize("word", ["max_tokens=many", "top_k=1.5", "temperature=true", "seed=[1]"])
def test_values_that_are_none(word: str) -> None:
    """The name and the value are told, and what was expected."""
    with pytest.raises(UsageError, match="expected a"):
        request_of(f"Hi {word}")


def test_scores() -> None:
    """An arrow parts prompt and text; without one all of it is scored."""
    assert (score_of("The capital is => Paris").prompt, score_of("a => b").text) == ("The capital is", " b")
    assert (score_of("all of it").prompt, score_of("all of it").text) == ("", "all of it")
    assert (score_of("a => b").whole, score_of("a => b").before) == (" b", ())
