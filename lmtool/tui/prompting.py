"""Lines that a person typed, as requests."""

from __future__ import annotations

import json
import re

from lmtool.errors import UsageError
from lmtool.tui.sources.source import TextToScore
from lmtool.types import GenerateRequest, SamplingParams

_WORD = re.compile(r"\s+(temperature|max_tokens|top_p|top_k|min_p|seed|top_logprobs)=(\S+)\s*$")
_WHOLE = ("max_tokens", "top_k", "seed", "top_logprobs")
TOP = 5
"""Alternatives a token, where a line does not say."""


def request_of(text: str) -> GenerateRequest:
    """The prompt without the parameters behind it. Raises `UsageError`."""
    chosen: dict[str, int | float] = {}
    while (found := _WORD.search(text)) is not None:
        chosen.setdefault(found[1], _number(found[1], found[2]))
        text = text[: found.start()]
    sampling = {"max_tokens": 128, "top_logprobs": TOP, **chosen}
    return GenerateRequest(0, text, SamplingParams(**sampling))  # type: ignore[arg-type] # numbers of the right kinds


def score_of(text: str) -> TextToScore:
    """`PROMPT => TEXT`; without an arrow everything is scored after an empty prompt."""
    prompt, arrow, scored = text.partition("=>")
    if not arrow:
        return TextToScore("", (), text, whole=text)
    continued = f" {scored.strip()}"
    return TextToScore(prompt.rstrip(), (), continued, whole=continued)


def _number(name: str, word: str) -> int | float:
    try:
        value = json.loads(f"0{word}" if word.startswith(".") else word)
    except ValueError:
        value = None
    whole = name in _WHOLE
    if type(value) is not int and (whole or type(value) is not float):
        raise UsageError(f"{name} is {word!r}; expected a {'whole ' if whole else ''}number")
    assert isinstance(value, int | float)
    return value
