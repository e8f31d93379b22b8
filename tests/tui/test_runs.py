"""Text as it can be drawn: harmless, and as wide as it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from lmtool.tui.runs import Run, cut, cut_left, fitted, length, pad, visible, width

texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(list("日🙂é a\u200d\ufe0f")), max_size=12)


@given(texts)
def test_what_is_shown_cannot_steer_a_terminal(text: str) -> None:
    """No control character is left, whatever a model writes."""
    for shown in (visible(text), visible(text, blanks=True)):
        assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)
        assert "\u202e" not in shown


@pytest.mark.parametrize(
    ("text", "shown", "with_blanks"),
    [
        ("a b", "a b", "a·b"),
        ("\x07", "⟨07⟩", "⟨07⟩"),
        ("\x1b[31mred", "⟨1b⟩[31mred", "⟨1b⟩[31mred"),
        ("\n\t", "⏎→", "⏎→"),
        ("\u202eabc", "⟨202e⟩abc", "⟨202e⟩abc"),
        ("日本🙂", "日本🙂", "日本🙂"),
        ("👨\u200d👩", "👨\u200d👩", "👨\u200d👩"),
        ("[b]x[/b]", "[b]x[/b]", "[b]x[/b]"),
        ("", "", ""),
    ],
)
def test_signs(text: str, shown: str, with_blanks: str) -> None:
    """Controls by their number, line feeds and tabs by a sign, blanks on request; everything else as it is."""
    assert (visible(text), visible(text, blanks=True)) == (shown, with_blanks)


@given(texts)
def test_width_is_that_of_the_terminal(text: str) -> None:
    """What is drawn takes as many columns as the library that draws it thinks."""
    assert width(visible(text)) == cell_len(visible(text))


@given(texts, st.integers(0, 12))
def test_cutting(text: str, columns: int) -> None:
    """What is cut fits, and says that it was cut; what fits is left alone."""
    text = visible(text)
    for made, sign in ((cut(text, columns), str.endswith), (cut_left(text, columns), str.startswith)):
        assert width(made) <= columns
        if width(text) <= columns:
            assert made == text
        elif columns:
            assert sign(made, "…")
    for padded in (pad(text, columns), pad(text, columns, right=True)):
        assert width(padded) == columns


@given(st.lists(texts, max_size=4), st.integers(1, 12))
def test_fitting_a_line(parts: list[str], columns: int) -> None:
    """A line never takes more than it may; nothing is lost without a sign."""
    line = [Run(visible(part), str(i), i) for i, part in enumerate(parts)]
    made = fitted(line, columns)
    assert length(made) <= columns
    if length(line) <= columns:
        assert "".join(run.text for run in made).rstrip() == "".join(run.text for run in line).rstrip()
    else:
        assert made[-1].text.rstrip().endswith("…")
    assert [run.style for run in made] == [str(i) for i in range(len(made))]


def test_long_texts() -> None:
    """A line of ten thousand characters is shown as any other."""
    text = visible("日" * 10_000 + "\x1b")
    assert width(text) == 20_004
    assert width(cut(text, 79)) <= 79
