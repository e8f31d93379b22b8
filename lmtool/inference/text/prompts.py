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
"""Possible continuations of a text: a tokenizer may encode its end differently before each."""
_WORD = 32
"""Longest last word, in characters, that is left out because a continuation may change it."""


def beginning_ids(tokenizer: Tokenizer, prompt: Prompt, *, closed: bool = False) -> tuple[int, ...]:
    """Token ids that `prompt` starts with under any continuation; possibly none. A conversation needs a message.

    closed: the last turn of a conversation is complete; otherwise its text may continue.

    The ids are the common prefix of several continuations without the last word, so nothing is assumed about tokenizer
    or template. A token that may extend past the end of a text is left out, and so is the text of a template after a
    turn that may continue. For a continuation unlike all of them the last ids may differ. Raises `RequestError` if no
    continuation can be encoded.
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
    """Continuations of a text without its last word, which may be part of a longer one."""
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
"""Special token in a prompt given as ids: its name between NULs, which no prompt text contains."""
_TURN = re.compile(
    rf"(?:{_SPECIAL}|<\|im_start\|>|<\|start_header_id\|>|<\|header_start\|>|<start_of_turn>|<\|start\|>)"
    rf"(?P<role>{_ROLES})(?:{_SPECIAL}|<\|end_header_id\|>|<\|header_end\|>|<\|message\|>|<\|im_sep\|>)?(?:\n\n?|$)"
    rf"|<\|(?P<tag>{_ROLES})\|>\n?"
)
"""Start of a turn in common chat templates."""
_ENDS = re.compile(rf"\s*(?:{_SPECIAL}|<\|im_end\|>|<\|eot_id\|>|<\|eot\|>|<end_of_turn>|<\|end\|>|</s>)?\s*$")
"""End of a turn in common chat templates."""


class PromptTurn(NamedTuple):
    """A turn, or the text before the first turn."""

    role: str
    """Empty if the prompt was not rendered by a template."""
    text: str


def split_turns(text: str) -> list[PromptTurn]:
    """Split a prompt's text, with special tokens between NULs, into turns; empty for an empty text."""
    parts: list[PromptTurn] = []
    role, place = "", 0
    for match in _TURN.finditer(text):
        before = _ENDS.sub("", text[place : match.start()])
        if before or role:
            parts.append(PromptTurn(role, before.replace("\x00", "")))
        role, place = match["role"] or match["tag"], match.end()
    rest = text[place:].replace("\x00", "")
    return [*parts, PromptTurn(role, rest)] if rest or role else parts
