"""Words of a prompt that are parameters."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import UsageError
from lmtool.core.types import SamplingParams
from lmtool.settings.prompt_parameters import (
    TYPED_PARAMETERS,
    check_typed,
    parse_option,
    parse_options,
    split_prompt,
)


@pytest.mark.parametrize(
    ("typed", "text", "values"),
    [
        ("Hello there max_tokens=5", "Hello there", {"max_tokens": 5}),
        ("Hello there temperature=1.2 max_tokens=5", "Hello there", {"temperature": 1.2, "max_tokens": 5}),
        ("Hello there", "Hello there", {}),
        ("solve x=1", "solve x=1", {}),
        ("max_tokens=5 is a parameter", "max_tokens=5 is a parameter", {}),
        ("a x=1 seed=3", "a x=1", {"seed": 3}),
        ("seed=3", "", {"seed": 3}),
        ("", "", {}),
        ("a  b   seed=3", "a  b", {"seed": 3}),
        ("two\nlines\nseed=3\n", "two\nlines", {"seed": 3}),
        ("keeps its line feed\n", "keeps its line feed\n", {}),
        ("a seed=1 seed=2", "a", {"seed": 2}),
        ("a temperature=1", "a", {"temperature": 1.0}),
        ("a temperature=.8", "a", {"temperature": 0.8}),
        ("a stop=.8", "a", {"stop": (".8",)}),
        ("a max_tokens=5.0", "a", {"max_tokens": 5}),
        ("a stop=END", "a", {"stop": ("END",)}),
        ("a stop=5", "a", {"stop": ("5",)}),
        ('a stop=["\\n","."]', "a", {"stop": ("\n", ".")}),
        ("a stop==", "a", {"stop": ("=",)}),
        ("a stop_token_ids=13", "a", {"stop_token_ids": (13,)}),
        ("a stop_token_ids=[13,14]", "a", {"stop_token_ids": (13, 14)}),
        ('a logit_bias={"11":-100}', "a", {"logit_bias": {11: -100.0}}),
        ("a ignore_eos=true", "a", {"ignore_eos": True}),
        ("a logprobs_mode=raw", "a", {"logprobs_mode": "raw"}),
        ("a https://h/?max_tokens=5", "a https://h/?max_tokens=5", {}),
    ],
)
def test_only_trailing_known_words_are_parameters(typed: str, text: str, values: dict[str, Any]) -> None:
    """Only trailing words `name=value` whose name is a known parameter are taken; the rest is the text as typed."""
    found = split_prompt(typed)
    assert (found.text, dict(found.values)) == (text, values)


def test_compatible_space() -> None:
    """`Hello there max_tokens=5` loses the space that LMQL's client leaves; `compat_space` keeps just that one."""
    assert split_prompt("Hello there  max_tokens=5").text == "Hello there"
    assert split_prompt("Hello there  max_tokens=5", compat_space=True).text == "Hello there "
    assert split_prompt("Hello there", compat_space=True).text == "Hello there "


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("a max_token=5", "did you mean max_tokens=5?"),
        ("a max-tokens=5", "did you mean max_tokens=5?"),
        ("a Temperature=1 seed=2", "did you mean temperature=1?"),
        ("a x=1", None),
        ("what is 2+2=4", None),
    ],
)
def test_hint_on_near_misses(typed: str, hint: str | None) -> None:
    """An unknown name close to a known one stays text, and a question is asked."""
    found = split_prompt(typed)
    assert found.hint == hint
    assert found.text == typed.removesuffix(" seed=2")


@pytest.mark.parametrize(
    "word",
    [
        *["max_tokens=abc", "max_tokens=", "max_tokens=-1", "max_tokens=true", "max_tokens=1.5", "max_tokens=NaN"],
        *[
            "temperature=hot",
            "temperature=Infinity",
            'temperature="1"',
            "stop=",
            "stop=[1]",
            "ignore_eos=1",
            "seed=[1]",
        ],
        *["temperature=1e999", "logit_bias=3", 'logit_bias={"a":1}', 'logit_bias={"1":"x"}', "logprobs_mode=best"],
        *["max_tokens=0", "temperature=-1", "top_p=0", "top_p=1.5", "min_p=2", "repetition_penalty=0", f"seed={2**63}"],
        *["stop_token_ids=[-1]", "max_tokens=__import__('os')", "top_k=1e400", "max_tokens=1e999", f"seed={10**400}"],
    ],
)
def test_bad_value_is_an_error(word: str) -> None:
    """A known name with a value of the wrong type is refused, with the word and what was expected."""
    with pytest.raises(UsageError, match="expected") as caught:
        split_prompt(f"Hello {word}")
    name, value = word.split("=", 1)
    assert caught.value.message.startswith(f"{name} is {value or 'empty'}; expected ")


@given(st.text())
def test_nothing_is_lost(text: str) -> None:
    """Whatever is typed either stays text or becomes a value; no input breaks the scan."""
    try:
        found = split_prompt(text)
    except UsageError:
        return
    assert text.startswith(found.text)
    if not found.values:
        assert found.text == text.rstrip(" ")


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.integers(1, 10**6), st.floats(0, 9))
def test_parameters_behind_any_text(text: str, count: int, number: float) -> None:
    """Two parameters behind any text come off it."""
    found = split_prompt(f"{text}x max_tokens={count} temperature={number}")
    assert found.text == f"{text}x"
    assert dict(found.values) == {"max_tokens": count, "temperature": number}


def test_every_field_can_be_said() -> None:
    """The known parameters are the fields of `SamplingParams`."""
    assert set(TYPED_PARAMETERS) == {f.name for f in fields(SamplingParams)} | {"deadline"}


def test_option_form() -> None:
    """`-o` takes the same values, with dashes too, and refuses unknown names."""
    assert parse_option("max-tokens=5") == ("max_tokens", 5)
    assert parse_options(["seed=1", "stop=a b", "seed=2"]) == {"seed": 2, "stop": ("a b",)}
    with pytest.raises(UsageError, match="no parameter is called 'tempo'"):
        parse_option("tempo=1")
    with pytest.raises(UsageError, match="-o temprature=1") as caught:
        parse_option("temprature=1")
    assert caught.value.hints[0] == "did you mean temperature=1?"
    with pytest.raises(UsageError, match="expected name=value"):
        parse_option("word")


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", -1.0), ("max_tokens", 0), ("top_p", 0.0), ("seed", 2**64), ("stop", ("a", ""))]
)
def test_options_of_their_own(name: str, value: Any) -> None:
    """What cannot be is refused by the option's name before anything is sent."""
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} is .*; expected "):
        check_typed(name, value)
    assert check_typed("top_p", 0.5) == 0.5
