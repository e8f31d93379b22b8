"""Characters as people see them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text.utils import fragment_list_to_text
from prompt_toolkit.layout.controls import BufferControl
from prompt_toolkit.layout.processors import Transformation, TransformationInput

from lmtool.terminal.chat.graphemes import PlainEmoji, length_after, length_before

LETTERS = st.text(st.sampled_from("ab👩👧\u200d\ufe0f🇩🇪🏽e\u0301\U000e0067 日\u0915\u094d"), max_size=12)


def drawn(text: str) -> Transformation:
    """How a line is drawn."""
    document = Document(text)
    control = BufferControl(Buffer(document=document))
    return PlainEmoji().apply_transformation(
        TransformationInput(control, document, 0, lambda at: at, [("", text)], 80, 24)
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("ab 日", "ab 日"),
        ("👩\u200d👩\u200d👧!", "👩👩👧!"),
        ("🇩🇪", "DE"),
        ("👍🏽", "👍"),
        ("🏽", "🏽"),
        ("❤\ufe0f", "❤"),
        ("e\u0301", "e\u0301"),
        ("\u0915\u094d\u200d\u0937", "\u0915\u094d\u200d\u0937"),
    ],
)
def test_widths_without_doubt(text: str, shown: str) -> None:
    """Emoji of a sequence stand one by one, flags as letters; accents and joiners of scripts are left alone."""
    assert fragment_list_to_text(drawn(text).fragments) == shown


@given(LETTERS)
def test_places(text: str) -> None:
    """Each place of the text is drawn where what stands before it ends, and found again there."""
    made = drawn(text)
    shown = fragment_list_to_text(made.fragments)
    assert [made.source_to_display(0), made.source_to_display(len(text))] == [0, len(shown)]
    for at in range(len(text)):
        assert made.source_to_display(at) <= made.source_to_display(at + 1)
        assert made.source_to_display(made.display_to_source(made.source_to_display(at))) == made.source_to_display(at)
    assert made.source_to_display(len(text) + 2) == len(shown) + 2


@given(LETTERS)
def test_one_character_at_a_time(text: str) -> None:
    """From either end the cursor passes whole characters, and reaches the other end."""
    forward, backward = [0], [len(text)]
    while length := length_after(Document(text, forward[-1])):
        forward.append(forward[-1] + length)
    while length := length_before(Document(text, backward[-1])):
        backward.append(backward[-1] - length)
    assert forward == backward[::-1]
    assert forward[-1] == len(text)
