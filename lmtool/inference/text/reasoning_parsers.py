"""Reasoning parsers by name, the parser that a chat template implies, and opening marks before resent answers."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from lmtool.core.errors import UsageError
from lmtool.core.reasoning import SWITCHES
from lmtool.inference.text.harmony import CHANNEL, HarmonyChannels
from lmtool.inference.text.reasoning_parser import GROUP, ReasoningParser
from lmtool.inference.text.thought_reader import MarkedThoughts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.core.types import ChatPrompt


NONE = "none"
"""Name for no parser: thoughts stay in the answer's text."""

_OWN: Mapping[str, ReasoningParser] = {
    parser.name: parser
    for parser in (
        MarkedThoughts("think"),
        MarkedThoughts("qwen3"),
        MarkedThoughts("deepseek_r1", implicit=True),
        MarkedThoughts("deepseek_v3"),
        MarkedThoughts("glm45", separator="\n"),
        MarkedThoughts("kimi_k2"),
        MarkedThoughts("minimax_m2"),
        MarkedThoughts("olmo3", implicit=True),
        MarkedThoughts("mistral", "[THINK]", "[/THINK]", ""),
        MarkedThoughts("seed_oss", "<seed:think>", "</seed:think>", ""),
        MarkedThoughts("granite", "Here is my thought process:", "Here is my response:", " "),
        HarmonyChannels(),
    )
}
"""Parsers by the names of vLLM; `think` fits any model with these two marks."""


def installed() -> tuple[str, ...]:
    """Names of the built-in parsers, of those of installed packages, and `none`."""
    return (*sorted({*_OWN, *entry_points(group=GROUP).names}), NONE)


@lru_cache(maxsize=64)
def find_parser(name: str) -> ReasoningParser | None:
    """Return the parser of this name; None for `none`. Raises `UsageError` if it is not installed or not a parser.

    Installed packages add parsers by entry points of `reasoning_parser.GROUP`.
    """
    if name == NONE:
        return None
    if name in _OWN:
        return _OWN[name]
    entries = entry_points(group=GROUP)
    if name not in entries.names:
        raise UsageError(f"--reasoning-parser {name!r} is unknown", f"known: {', '.join(installed())}")
    try:
        loaded = entries[name].load()
        parser = loaded if isinstance(loaded, ReasoningParser) and not isinstance(loaded, type) else loaded()
    except Exception as problem:  # foreign code: whatever it raises is about this name only
        raise UsageError(f"the reasoning parser {name} cannot be loaded: {problem}", f"of {GROUP}") from problem
    if not isinstance(parser, ReasoningParser):
        raise UsageError(f"the reasoning parser {name} is {type(parser).__name__}, which is none", f"see {GROUP}")
    return parser


def parser_of(template: str) -> str:
    """Return the name of the parser that matches a chat template's thought marks, or `none`.

    A template that only removes thoughts from earlier turns, such as the first one of DeepSeek-R1, has the closing mark
    alone: the model begins its thought without a mark.
    """
    if CHANNEL in template and "analysis" in template:
        return "openai_gptoss"
    for mark, name in _MARKS.items():
        if mark in template:
            return name
    return NONE


_MARKS = {"[THINK]": "mistral", "<seed:think>": "seed_oss", "<think>": "think", "</think>": "deepseek_r1"}
"""Mark in a template to the parser's name; the first match counts."""


Parts = tuple["str | tuple[int, ...]", ...]


def with_openings(
    parts: Parts, chat: ChatPrompt, parser: str, render: Callable[[ChatPrompt], str], spell: Callable[[int], bytes]
) -> Parts:
    """Add the opening mark before token ids that close a thought without opening it.

    A template that opens thoughts writes the mark after the header of the next answer, but not after those of earlier
    answers, whose texts have their own marks. parser: name of the reasoning parser. render: renders a conversation.
    spell: returns the bytes of a token, and the name of a special one.
    """
    form = find_parser(parser)
    if not isinstance(form, MarkedThoughts) or all(isinstance(part, str) for part in parts):
        return parts
    start, end = form.start.encode(), form.end.encode()
    closing = [not isinstance(part, str) and _closes(part, start, end, spell) for part in parts]
    if not any(closing):
        return parts
    opening = _opening(chat, form, render)
    behind = [*closing[1:], False]
    return tuple(
        part + opening if isinstance(part, str) and closes and not part.rstrip().endswith(form.start) else part
        for part, closes in zip(parts, behind, strict=True)
    )


def _closes(ids: Sequence[int], start: bytes, end: bytes, spell: Callable[[int], bytes]) -> bool:
    """True if an answer ends a thought that was opened before it."""
    before, mark, _ = b"".join(map(spell, ids)).partition(end)
    return bool(mark) and start not in before


def _opening(chat: ChatPrompt, form: MarkedThoughts, render: Callable[[ChatPrompt], str]) -> str:
    """Text with which the template opens a thought; empty if it does not."""
    variables = {**chat.chat_template_kwargs, **dict.fromkeys(SWITCHES, True), "add_generation_prompt": True}
    text = render(replace(chat, chat_template_kwargs=variables))
    return text[text.rindex(form.start) :] if text.rstrip().endswith(form.start) else ""
