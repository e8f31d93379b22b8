"""The mark that opens a thought, where a template wrote it before an answer whose exact ids are sent back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.core.reasoning import SWITCHES
from lmtool.inference.text.reasoning_parsers import find_parser
from lmtool.inference.text.thought_reader import MarkedThoughts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.core.types import ChatPrompt

Parts = tuple["str | tuple[int, ...]", ...]


def with_openings(
    parts: Parts, chat: ChatPrompt, parser: str, render: Callable[[ChatPrompt], str], spell: Callable[[int], bytes]
) -> Parts:
    """The parts of a conversation with the opening mark before ids that close a thought which they do not open.

    A template that opens thoughts writes the mark behind the header of the answer that comes, and not behind those of
    earlier ones, whose texts have marks of their own. parser: name of the reasoning parser. render: makes a text of a
    conversation. spell: the bytes of a token, marks by their names.
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
    """Whether an answer ends a thought that was open before it."""
    before, mark, _ = b"".join(map(spell, ids)).partition(end)
    return bool(mark) and start not in before


def _opening(chat: ChatPrompt, form: MarkedThoughts, render: Callable[[ChatPrompt], str]) -> str:
    """What the template writes to open a thought; empty where it opens none."""
    variables = {**chat.chat_template_kwargs, **dict.fromkeys(SWITCHES, True), "add_generation_prompt": True}
    text = render(replace(chat, chat_template_kwargs=variables))
    return text[text.rindex(form.start) :] if text.rstrip().endswith(form.start) else ""
