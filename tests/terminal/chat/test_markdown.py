"""Markdown drawn as it arrives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.terminal.chat.heat import Depth
from lmtool.terminal.chat.interleave import Piece
from lmtool.terminal.chat.markdown import CODE, MarkdownStyler

CODE_STYLE = CODE["16"]


def drawn(text: str, *, step: int | None = None, depth: Depth = "16") -> list[Piece]:
    """The pieces of a text that comes `step` characters at a time; neighbours of one style are joined."""
    styler = MarkdownStyler(depth)
    pieces: list[Piece] = []
    size = step or max(1, len(text))
    for part in [*(styler.push(text[i : i + size]) for i in range(0, len(text), size)), styler.close()]:
        for piece in part:
            if pieces and pieces[-1][1] == piece[1]:
                pieces[-1] = (pieces[-1][0] + piece[0], piece[1])
            elif piece[0]:
                pieces.append(piece)
    return pieces


CASES = {
    "plain text": [("plain text", "")],
    "# Title\ntext": [("Title", "1;4"), ("\ntext", "")],
    "### Part\n": [("Part", "1"), ("\n", "")],
    "#hash": [("#hash", "")],
    "a **bold** word": [("a ", ""), ("bold", "1"), (" word", "")],
    "an *italic* and _another_ word": [
        ("an ", ""),
        ("italic", "3"),
        (" and ", ""),
        ("another", "3"),
        (" word", ""),
    ],
    "***both***": [("both", "1;3")],
    "**bold with `code`**": [("bold with ", "1"), ("code", f"1;{CODE_STYLE}")],
    "2 * 3 * 4 = 5*6": [("2 * 3 * 4 = 5*6", "")],
    "snake_case_name and __init__": [("snake_case_name and ", ""), ("init", "1")],
    "`a*b*c` and ``x`y``": [("a*b*c", CODE_STYLE), (" and ", ""), ("x`y", CODE_STYLE)],
    "\\*not\\* \\d": [("*not* \\d", "")],
    "a lone *star\nnext": [("a lone ", ""), ("star", "3"), ("\nnext", "")],
    "- one\n  * two\n+ three": [("• one\n  • two\n• three", "")],
    "-5 degrees": [("-5 degrees", "")],
    "1. one\n2. two": [("1. one\n2. two", "")],
    "> quoted\n": [("│ ", "2"), ("quoted", "3"), ("\n", "")],
    "a\n---\nb": [("a\n", ""), ("─" * 24, "2"), ("\nb", "")],
    "```py\nx = 2 ** 3  # *no*\n```\nafter": [
        ("```py", "2"),
        ("\n", ""),
        ("x = 2 ** 3  # *no*", CODE_STYLE),
        ("\n", ""),
        ("```", "2"),
        ("\nafter", ""),
    ],
    "~~~\n```\n~~~": [("~~~", "2"), ("\n", ""), ("```", CODE_STYLE), ("\n", ""), ("~~~", "2")],
    "| a | b |\n|---|---|": [("| a | b |\n|---|---|", "")],
    "[text](https://example.org/a_b_c)": [("[text](https://example.org/a_b_c)", "")],
}


@pytest.mark.parametrize("step", [None, 1, 3])
@pytest.mark.parametrize(("text", "pieces"), CASES.items(), ids=range(len(CASES)))
def test_drawn(text: str, pieces: list[Piece], step: int | None) -> None:
    """Marks become styles, however the text is cut into tokens; what is no Markdown stays as it is."""
    assert drawn(text, step=step) == pieces


def test_without_colours() -> None:
    """Where code has no colour, its backticks are shown."""
    assert drawn("use `x` **now**", depth="attributes") == [("use `x` ", ""), ("now", "1")]


@settings(max_examples=400)
@given(
    st.lists(st.sampled_from([*"ab *_`#->~\\\n1.", "```\n", "**", "\n- ", "\n> "]), max_size=30).map("".join),
    st.integers(1, 7),
)
def test_cuts_change_nothing(text: str, step: int) -> None:
    """The same pieces come of a text however it is cut, and no letter is lost."""
    assert drawn(text, step=step) == drawn(text)
    shown = "".join(piece for piece, _ in drawn(text))
    assert [c for c in shown if c in "ab1.\n"] == [c for c in text if c in "ab1.\n"]


def test_nothing_is_held_back_for_long() -> None:
    """A word is drawn when it comes, and only marks wait for the next character."""
    styler = MarkdownStyler("16")
    assert styler.push("One ") == [("One ", "")]
    assert styler.push("**") == []
    assert styler.push("two") == [("two", "1")]
    assert styler.push("**") == []
    assert styler.close() == []
