"""Editing by characters as people see them: cursor keys over whole emoji, and widths that all terminals agree on."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from prompt_toolkit.formatted_text.utils import fragment_list_to_text
from prompt_toolkit.layout.processors import Processor, Transformation
from prompt_toolkit.layout.utils import explode_text_fragments
from wcwidth import iter_graphemes, wcwidth

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prompt_toolkit.document import Document
    from prompt_toolkit.layout.processors import TransformationInput

_LOOKED_AT = 128
"""Characters before and after the cursor among which one is sought."""
_FLAGS, _SKIN_TONES, _TAGS = range(0x1F1E6, 0x1F200), range(0x1F3FB, 0x1F400), range(0xE0020, 0xE0080)


def length_before(document: Document) -> int:
    """Code points of the character before the cursor; 0 at the beginning."""
    return len(["", *iter_graphemes(document.text_before_cursor[-_LOOKED_AT:])][-1])


def length_after(document: Document) -> int:
    """Code points of the character after the cursor; 0 at the end."""
    return len(next(iter_graphemes(document.text_after_cursor[:_LOOKED_AT]), ""))


class PlainEmoji(Processor):
    """Draws each emoji of a sequence on its own: some terminals take two columns for a family, others six."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """Draw joiners, selectors and skin tones as nothing, and flags as their letters."""
        fragments = explode_text_fragments(transformation_input.fragments)
        drawn = list(_drawn(fragment_list_to_text(fragments)))
        places = list(accumulate(map(len, drawn), initial=0))
        return Transformation(
            [(fragment[0], text) for fragment, text in zip(fragments, drawn, strict=True)],
            source_to_display=lambda at: places[min(at, len(drawn))] + max(0, at - len(drawn)),
            display_to_source=lambda at: bisect_right(places, at) - 1,
        )


def _drawn(text: str) -> Iterator[str]:
    before = ""
    for character, after in zip(text, f"{text[1:]} ", strict=False):
        code = ord(character)
        joins = character == "\u200d" and wcwidth(after) == 2
        if joins or character in "\ufe0e\ufe0f" or code in _TAGS or (code in _SKIN_TONES and before):
            yield ""
            continue
        yield chr(ord("A") + code - _FLAGS.start) if code in _FLAGS else character
        before = character
