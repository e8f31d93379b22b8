"""A prompt's text in the turns that a chat template made of it: roles apart from texts, marks left out."""

from __future__ import annotations

import re
from typing import NamedTuple

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
