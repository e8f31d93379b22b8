"""Names of styles."""

from __future__ import annotations

import pytest

from lmtool.tui.heat import COLORS, STREAM_COLORS
from lmtool.tui.styles import Styles

THEME = {"foreground": "#e0e0e0", "accent": "#fea62b", "text-error": "#d17e92", "surface-lighten-2": "#3e3e3e"}


@pytest.mark.parametrize("palette", list(COLORS))
@pytest.mark.parametrize("sixteen", [False, True])
def test_steps_look_different(palette: str, sixteen: bool) -> None:
    """Every step of the heat has colours, every stream too; with 256 colours no two steps are alike."""
    styles = Styles()
    styles.change(THEME, palette, sixteen=sixteen)
    steps = [styles.of(f"heat{i}") for i in range(8)]
    assert all(step.bgcolor is not None and step.color is not None for step in steps)
    assert sixteen or len({str(step) for step in steps}) == 8
    assert all(styles.of(f"stream{i}").color is not None for i in range(len(STREAM_COLORS)))


def test_without_colours_there_are_attributes_only() -> None:
    """The heat is dim, plain, bold, bold and underlined; nothing has a colour."""
    styles = Styles()
    styles.change(THEME, "blue-orange", color=False)
    assert styles.of("heat0").dim
    assert styles.of("heat7").bold
    assert styles.of("heat7").underline
    for name in ("heat0", "heat7", "accent", "error", "stream3", "cursor", "bar"):
        assert styles.of(name).color is None
        assert styles.of(name).bgcolor is None


def test_names_add_up() -> None:
    """Later names win; unknown ones change nothing; a change of looks is noticed."""
    styles = Styles()
    styles.change(THEME, "blue-orange")
    assert styles.of("heat3 bold").bold
    assert styles.of("heat3 bold").bgcolor == styles.of("heat3").bgcolor
    assert not styles.of("no such name")
    before = styles.version
    styles.change(THEME, "green-red")
    assert styles.version > before


def test_themes_with_the_terminals_own_colours() -> None:
    """`ansi_…` names are understood; a transparent one falls back."""
    styles = Styles()
    styles.change(
        {"accent": "ansi_green", "foreground": "ansi_default", "surface-lighten-2": "transparent"}, "blue-orange"
    )
    assert styles.of("accent").color is not None
    assert styles.of("accent").color.name == "green"
    assert styles.of("dim").dim
    assert styles.of("cursor").bgcolor is not None
