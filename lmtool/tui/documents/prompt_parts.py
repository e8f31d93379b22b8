"""A prompt in the turns that its chat template made of it: roles apart from texts, marks left out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from lmtool.tui.state import State
    from lmtool.tui.streams import Stream

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


class PromptPart(NamedTuple):
    """A turn, or what stands before the first."""

    role: str
    """Empty where no template made turns of the prompt."""
    text: str


def prompt_parts(state: State, stream: Stream) -> list[PromptPart]:
    """The end of a stream's prompt, as far as it is kept; special tokens within a turn by their names."""
    if stream.nodes is not None or isinstance(stream.prompt, str):
        return split_turns(state.prompt_text(stream).replace("\x00", "\ufffd"))
    data = bytearray()
    for token in (*stream.prompt, *stream.generated):
        name = state.texts.special_name(token)
        piece = state.texts.piece(token)
        data += f"\x00{name}\x00".encode() if name else piece if isinstance(piece, bytes) else piece.encode()
    return split_turns(data.decode(errors="replace"))


def split_turns(text: str) -> list[PromptPart]:
    """Turns of a prompt's text, special tokens between NULs; no part for no text."""
    parts: list[PromptPart] = []
    role, place = "", 0
    for match in _TURN.finditer(text):
        before = _ENDS.sub("", text[place : match.start()])
        if before or role:
            parts.append(PromptPart(role, before.replace("\x00", "")))
        role, place = match["role"] or match["tag"], match.end()
    rest = text[place:].replace("\x00", "")
    return [*parts, PromptPart(role, rest)] if rest or role else parts
