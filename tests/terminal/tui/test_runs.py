"""What is drawn, and how it looks."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.color import Color
from rich.color_triplet import ColorTriplet
from textual.theme import BUILTIN_THEMES

from lmtool.core.logprobs.heat import COLORS, STREAM_COLORS
from lmtool.terminal.tui.runs import Run, cut, cut_left, fitted, length, pad, visible, width
from lmtool.terminal.tui.styles import (
    ASCII,
    READABLE,
    TO_ASCII,
    UNICODE,
    Styles,
    chrome,
    contrast,
    luminance,
    readable,
)

if TYPE_CHECKING:
    from lmtool.core.logprobs.heat import Palette

texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(list("日🙂é a\u200d\ufe0f")), max_size=12)


THEME = {"foreground": "#e0e0e0", "accent": "#fea62b", "text-error": "#d17e92", "surface-lighten-2": "#3e3e3e"}


class TestRuns:
    """Text as it can be drawn: harmless, and as wide as it says."""

    @given(texts)
    def test_what_is_shown_cannot_steer_a_terminal(self, text: str) -> None:
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
            ("a\u200bb\u2028\U000e0041", "a⟨200b⟩b⟨2028⟩⟨e0041⟩", "a⟨200b⟩b⟨2028⟩⟨e0041⟩"),
            ("a\u200d\U000e0100", "a⟨200d⟩⟨e0100⟩", "a⟨200d⟩⟨e0100⟩"),
            ("👨\u200d👩", "👨\u200d👩", "👨\u200d👩"),
            ("[b]x[/b]", "[b]x[/b]", "[b]x[/b]"),
            ("", "", ""),
        ],
    )
    def test_signs(self, text: str, shown: str, with_blanks: str) -> None:
        """Controls by their number, line feeds and tabs by a sign, blanks on request; everything else as it is."""
        assert (visible(text), visible(text, blanks=True)) == (shown, with_blanks)

    @given(texts)
    def test_width_is_that_of_the_terminal(self, text: str) -> None:
        """What is drawn takes as many columns as the library that draws it thinks."""
        assert width(visible(text)) == cell_len(visible(text))

    @given(texts, st.integers(0, 12))
    def test_cutting(self, text: str, columns: int) -> None:
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
    def test_fitting_a_line(self, parts: list[str], columns: int) -> None:
        """A line never takes more than it may; nothing is lost without a sign."""
        line = [Run(visible(part), str(i), i) for i, part in enumerate(parts)]
        made = fitted(line, columns)
        assert length(made) <= columns
        if length(line) <= columns:
            assert "".join(run.text for run in made).rstrip() == "".join(run.text for run in line).rstrip()
        else:
            assert made[-1].text.rstrip().endswith("…")
        assert [run.style for run in made] == [str(i) for i in range(len(made))]

    def test_long_texts(self) -> None:
        """A line of ten thousand characters is shown as any other."""
        text = visible("日" * 10_000 + "\x1b")
        assert width(text) == 20_004
        assert width(cut(text, 79)) <= 79


class TestStyles:
    """Names of styles."""

    @pytest.mark.parametrize("palette", list(COLORS))
    @pytest.mark.parametrize("sixteen", [False, True])
    def test_steps_look_different(self, palette: str, sixteen: bool) -> None:
        """Every step of the heat has colours, every stream too; with 256 colours no two steps are alike."""
        styles = Styles()
        styles.change(THEME, palette, sixteen=sixteen)
        steps = [styles.of(f"heat{i}") for i in range(8)]
        assert all(step.bgcolor is not None and step.color is not None for step in steps)
        assert sixteen or len({str(step) for step in steps}) == 8
        assert all(styles.of(f"stream{i}").color is not None for i in range(len(STREAM_COLORS)))
        thoughts = [styles.of(f"thought{i}") for i in range(8)]
        assert all(one.italic and one.bgcolor is not None for one in (thoughts))
        assert not {one.bgcolor for one in thoughts} & {step.bgcolor for step in steps}
        assert sixteen or len({str(one) for one in thoughts}) == 8
        assert styles.of("thought").italic
        assert styles.of("thought").color is not None

    def test_without_colours_there_are_attributes_only(self) -> None:
        """The heat is dim, plain, bold, bold and underlined; nothing has a colour."""
        styles = Styles()
        styles.change(THEME, "blue-orange", color=False)
        assert styles.of("heat0").dim
        assert styles.of("heat7").bold
        assert styles.of("heat7").underline
        assert all(styles.of(f"thought{i}").italic for i in ("", *range(8)))
        assert styles.of("thought").dim
        assert styles.of("thought7").bold
        for name in ("heat0", "heat7", "accent", "error", "stream3", "cursor", "bar", "thought", "thought7"):
            assert styles.of(name).color is None
            assert styles.of(name).bgcolor is None

    def test_names_add_up(self) -> None:
        """Later names win; unknown ones change nothing; a change of looks is noticed."""
        styles = Styles()
        styles.change(THEME, "blue-orange")
        assert styles.of("heat3 bold").bold
        assert styles.of("heat3 bold").bgcolor == styles.of("heat3").bgcolor
        assert not styles.of("no such name")
        before = styles.version
        styles.change(THEME, "green-red")
        assert styles.version > before

    def test_themes_with_the_terminals_own_colours(self) -> None:
        """`ansi_…` names are understood; a transparent one falls back."""
        styles = Styles()
        styles.change(
            {"accent": "ansi_green", "foreground": "ansi_default", "surface-lighten-2": "transparent"}, "blue-orange"
        )
        assert styles.of("accent").color is not None
        assert styles.of("accent").color.name == "green"
        assert styles.of("dim").dim
        assert styles.of("cursor").bgcolor is not None


class TestGlyphs:
    """The signs that are drawn."""

    def test_each_takes_one_column_and_has_a_plain_twin(self) -> None:
        """Both sets have the same signs of the same width; the plain ones are ASCII."""
        for field in fields(UNICODE):
            fancy, plain = getattr(UNICODE, field.name), getattr(ASCII, field.name)
            assert cell_len(fancy) == len(fancy) == len(plain)
            assert plain.isascii()
        assert all(chr(plain).isascii() for plain in TO_ASCII.values())


class TestContrast:
    """Text can be read on the grounds of every theme, dark and light."""

    @pytest.mark.parametrize("theme", sorted(name for name in BUILTIN_THEMES if not name.startswith("ansi")))
    @pytest.mark.parametrize("palette", list(COLORS))
    def test_every_theme(self, theme: str, palette: Palette) -> None:
        """At least 4.5 to 1 (WCAG 2), heat on its own ground included; borders at least 2 to 1."""
        variables = BUILTIN_THEMES[theme].to_color_system().generate()
        styles = Styles()
        styles.change(variables, palette, dark=BUILTIN_THEMES[theme].dark)
        grounds = [Color.parse(variables[name][:7]).get_truecolor() for name in ("background", "surface")]
        for name in ("dim", "rule", "accent", "error", "ok", "live", "chosen", "out", "key", "thought"):
            color = styles.of(name).color
            assert color is not None
            assert min(contrast(color.get_truecolor(), ground) for ground in grounds) >= READABLE, name
        for i in range(len(STREAM_COLORS)):
            color = styles.of(f"stream{i}").color
            assert color is not None
            assert min(contrast(color.get_truecolor(), ground) for ground in grounds) >= READABLE
        steps = [styles.of(f"{name}{i}") for name in ("heat", "thought") for i in range(8)]
        for step in steps:
            assert step.color is not None
            assert step.bgcolor is not None
            assert contrast(step.color.get_truecolor(), step.bgcolor.get_truecolor()) >= READABLE
        shown = chrome(variables)
        for name, least in (("emphasis", READABLE), ("frame", 2.0)):
            assert min(contrast(Color.parse(shown[name]).get_truecolor(), ground) for ground in grounds) >= least

    @pytest.mark.parametrize("dark", [True, False])
    def test_the_order_is_told_by_lightness(self, dark: bool) -> None:
        """In the default palette it rises with every step on dark grounds, and falls on light ones."""
        styles = Styles()
        styles.change(THEME, "blue-orange", dark=dark)
        for name in ("heat", "thought"):
            grounds = [styles.of(f"{name}{i}").bgcolor for i in range(8)]
            lights = [luminance(ground.get_truecolor()) for ground in grounds if ground is not None]
            assert len(lights) == 8
            assert lights == sorted(lights, reverse=not dark)

    def test_no_change_without_need(self) -> None:
        """A colour that can be read stays as it is."""
        white, grey = Color.parse("#ffffff"), Color.parse("#777777")
        assert readable(white, [Color.parse("#000000")]) is white
        assert contrast(readable(grey, [Color.parse("#808080")]).get_truecolor(), ColorTriplet(128, 128, 128)) >= 4.5
