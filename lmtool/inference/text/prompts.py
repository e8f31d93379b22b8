"""Prompts: the token ids that a growing prompt certainly starts with, and the turns of a rendered prompt."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from lmtool.core.errors import RequestError
from lmtool.core.types import ChatMessage, ChatPrompt, MixedPrompt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.core.interfaces import Tokenizer
    from lmtool.core.types import Prompt


_NEXT = ("a", " a", "1", "\n")
"""Ways in which a text may go on: what a tokenizer makes of its end differs between them."""
_WORD = 32
"""Characters of a last word that may become another with what follows, and is left out."""


def beginning_ids(tokenizer: Tokenizer, prompt: Prompt, *, closed: bool = False) -> tuple[int, ...]:
    """The ids that `prompt` begins with, however it goes on; possibly none. A conversation has a message at least.

    closed: whether nothing more comes to the last turn of a conversation; otherwise its text may go on.

    They are what several continuations of it, without its last word, have in common; so nothing is assumed of the
    tokenizer or of the template. A token that may reach over the end of a text is left out, and so is what a template
    writes behind a turn that may go on. A prompt that goes on like none of them may differ in its last ids. Raises
    `RequestError` for what no continuation can be made of.
    """
    ids: list[int] | None = None
    problem: RequestError | None = None
    for longer in _continuations(prompt, closed=closed):
        try:
            encoded = tokenizer.encode_prompt(longer)
        except RequestError as error:  # a template may refuse one order of turns and take another
            problem = error
            continue
        ids = encoded if ids is None else _common(ids, encoded)
    if ids is None:
        raise problem or RequestError("the prompt has no continuation")
    return tuple(ids)


def _continuations(prompt: Prompt, *, closed: bool) -> Iterator[Prompt]:
    if isinstance(prompt, ChatPrompt):
        return _conversations(prompt, closed=closed)
    if isinstance(prompt, str):
        return iter(_longer(prompt))
    if isinstance(prompt, tuple):
        return iter([prompt])
    *before, last = prompt.parts
    if isinstance(last, str):
        return (MixedPrompt((*before, text)) for text in _longer(last))
    return (MixedPrompt((*prompt.parts, text)) for text in _NEXT)


def _conversations(chat: ChatPrompt, *, closed: bool) -> Iterator[ChatPrompt]:
    if chat.prefill:
        return (replace(chat, prefill=text) for text in _longer(chat.prefill))
    *before, last = chat.messages
    if not closed and last.tokens is None:
        turns = (replace(last, content=text) for text in _longer(last.content))
        return (replace(chat, messages=(*before, turn)) for turn in turns)
    role = "user" if last.role in ("assistant", "system", "developer") else "assistant"
    return (replace(chat, messages=(*chat.messages, ChatMessage(role, text))) for text in _NEXT)


def _longer(text: str) -> list[str]:
    """Continuations of a text, without its last word, which may be part of a longer one."""
    end = len(text)
    while end > max(0, len(text) - _WORD) and not text[end - 1].isspace():
        end -= 1
    whole_words = text[:end] if end == 0 or text[end - 1].isspace() else text
    return [whole_words + more for more in _NEXT]


def _common(first: list[int], other: list[int]) -> list[int]:
    pairs = zip(first, other, strict=False)
    return [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]


_ROLES = r"system|user|assistant|tool|developer|model|function|ipython"
_SPECIAL = "\x00[^\x00]*\x00"
"""A special token in a prompt of ids: its name between NULs, which no text of a prompt has."""
_TURN = re.compile(
    rf"(?:{_SPECIAL}|<\|im_start\|>|<\|start_header_id\|>|<\|header_start\|>|<start_of_turn>|<\|start\|>)"
    rf"(?P<role>{_ROLES})(?:{_SPECIAL}|<\|end_header_id\|>|<\|header_end\|>|<\|message\|>|<\|im_sep\|>)?(?:\n\n?|$)"
    rf"|<\|(?P<tag>{_ROLES})\|>\n?"
)
"""How the common templates begin a turn."""
_ENDS = re.compile(rf"\s*(?:{_SPECIAL}|<\|im_end\|>|<\|eot_id\|>|<\|eot\|>|<end_of_turn>|<\|end\|>|</s>)?\s*$")
"""How they end one."""


class PromptTurn(NamedTuple):
    """A turn, or what stands before the first."""

    role: str
    """Empty where no template made turns of the prompt."""
    text: str


def split_turns(text: str) -> list[PromptTurn]:
    """Turns of a prompt's text, special tokens between NULs; none for no text."""
    parts: list[PromptTurn] = []
    role, place = "", 0
    for match in _TURN.finditer(text):
        before = _ENDS.sub("", text[place : match.start()])
        if before or role:
            parts.append(PromptTurn(role, before.replace("\x00", "")))
        role, place = match["role"] or match["tag"], match.end()
    rest = text[place:].replace("\x00", "")
    return [*parts, PromptTurn(role, rest)] if rest or role else parts
