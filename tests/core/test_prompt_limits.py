"""What is too much for a context, at a glance."""

from __future__ import annotations

import re

import pytest

from lmtool.core.errors import ContextOverflowError
from lmtool.core.prompt_limits import PromptLimits, limits_of, widest
from lmtool.core.types import ChatMessage, ChatPrompt, GenerateRequest, ModelInfo, Prompt, ScoreRequest, ToolCall

LIMITS = PromptLimits("m", 10, 100)
LENGTH = r"this model's maximum context length is 10 tokens \(m\)"


def test_of_a_model() -> None:
    """A model without a known context has none; a token of a text may come from four times its own bytes."""
    assert PromptLimits.of(ModelInfo("m", "", "b")) is None
    own = PromptLimits.of(ModelInfo("m", "", "b", context_length=10))
    assert own == PromptLimits("m", 10)
    assert own.with_text_limit(5) == PromptLimits("m", 10, 200)


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ((1,) * 9, None),
        ((1,) * 10, f"too long: 10 tokens > 9 maximum; {LENGTH}; shorten"),
        ((), None),
        ("x" * 100, None),
        ("x" * 101, f"too long: at least 11 tokens > 10 maximum; {LENGTH}"),
        ("é" * 51, f"too long: at least 11 tokens > 10 maximum; {LENGTH}"),
        (ChatPrompt((ChatMessage("user", "x" * 100),)), None),
        (ChatPrompt((ChatMessage("user", "é" * 51),)), f"too long: at least 11 tokens > 10 maximum; {LENGTH}"),
        (
            ChatPrompt((ChatMessage("user", "x" * 60), ChatMessage("assistant", "", (ToolCall("1", "f", "x" * 40),)))),
            f"too long: at least 11 tokens > 10 maximum; {LENGTH}",
        ),
        (ChatPrompt((ChatMessage("user", ""),) * 10), None),
        (
            ChatPrompt((ChatMessage("user", ""),) * 11),
            f"too long: at least 11 tokens > 10 maximum; {LENGTH}; leave out the oldest of 11 messages",
        ),
    ],
)
def test_prompts(prompt: Prompt, told: str | None) -> None:
    """Ids are counted, texts and messages measured in UTF-8; every message is a token at least."""
    if told is None:
        LIMITS.check(GenerateRequest(1, prompt))
        return
    with pytest.raises(ContextOverflowError, match="prompt is ") as raised:
        LIMITS.check(GenerateRequest(1, prompt))
    assert re.search(told, raised.value.sentence)
    assert raised.value.hints


@pytest.mark.parametrize(("prompt", "most"), [((1,) * 4, 6), ("x" * 40, 10), ((), 10)])
def test_generated(prompt: Prompt, most: int) -> None:
    """What counts as generated is counted with the ids of the prompt, and alone behind a text."""
    LIMITS.check(GenerateRequest(1, prompt, generated=(1,) * most))
    with pytest.raises(ContextOverflowError, match=f"generated has {most + 1} ids, which do not fit behind the prompt"):
        LIMITS.check(GenerateRequest(1, prompt, generated=(1,) * (most + 1)))


def test_without_a_tokenizer() -> None:
    """Texts are refused elsewhere; ids are counted here."""
    own = PromptLimits("m", 10)
    own.check_prompt("x" * 1000)
    own.check_prompt(ChatPrompt((ChatMessage("user", "x" * 1000),)))
    with pytest.raises(ContextOverflowError):
        own.check_prompt((1,) * 10)


@pytest.mark.parametrize(
    ("prompt", "scored", "told"),
    [
        ((1,) * 4, (1,) * 6, None),
        ((1,) * 4, (1,) * 7, f"too long: 11 tokens > 10 maximum; {LENGTH}, for 4 of prompt and 7 that are scored"),
        ((1,) * 10, "x", None),
        ((1,) * 11, "x", f"too long: 11 tokens > 10 maximum; {LENGTH}"),
        ("x", "x" * 101, f"too long: at least 11 tokens > 10 maximum; {LENGTH}"),
        ("x" * 101, "x", f"too long: at least 11 tokens > 10 maximum; {LENGTH}"),
    ],
)
def test_scores(prompt: Prompt, scored: tuple[int, ...] | str, told: str | None) -> None:
    """Prompt and scored text must fit together; no room for output is needed."""
    if told is None:
        LIMITS.check(ScoreRequest(1, prompt, scored))
        return
    with pytest.raises(ContextOverflowError, match=told):
        LIMITS.check(ScoreRequest(1, prompt, scored))


def test_beginnings() -> None:
    """A text whose beginning has twice as many tokens need not be read on; below that it is, and counted exactly."""
    LIMITS.check_beginning(20)
    with pytest.raises(ContextOverflowError, match=f"too long: at least 21 tokens > 10 maximum; {LENGTH}"):
        LIMITS.check_beginning(21)


def test_of_several_models() -> None:
    """By name, else what is refused by all."""
    small, large = PromptLimits("s", 10, 500), PromptLimits("l", 20, 400)
    limits = {"s": small, "l": large, None: widest([large, small])}
    assert limits_of("s", limits) is small
    assert limits_of("x", limits) == limits_of(None, limits) == PromptLimits("l", 20, 500)
    assert widest([small, PromptLimits("i", 5)]).text_bytes is None
    assert limits_of("x", {"s": small}) is None
