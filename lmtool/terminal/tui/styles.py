"""Looks: signs, colours of a theme and a heat palette, or attributes if there are no colours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.color import Color
from rich.color_triplet import ColorTriplet
from rich.style import Style

from lmtool.core.logprobs import heat
from lmtool.core.logprobs.heat import ATTRIBUTES, COLORS, LIGHT_COLORS, STREAM_COLORS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.core.logprobs.heat import Palette


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs; each takes one column."""

    live: str = "⬤"
    paused: str = "‖"
    over: str = "■"
    cursor: str = "▸"
    dot: str = "●"
    running: str = "▶"
    waiting: str = "·"
    stop: str = "✓"
    error: str = "✗"
    cut: str = "…"
    bar: str = "▏"
    open: str = "▕"
    close: str = "▏"
    blocks: str = " ▏▎▍▌▋▊▉█"
    spark: str = "▁▂▃▄▅▆▇█"
    line: str = "━"
    knob: str = "●"
    mark: str = "▲"
    chosen: str = "◀"
    down: str = "↓"
    up: str = "↑"
    between: str = "·"
    rule: str = "─"
    wall: str = "│"
    arrow: str = "→"


UNICODE = Glyphs()
ASCII = Glyphs(
    live="*",
    paused="=",
    over="#",
    cursor=">",
    dot="*",
    running=">",
    waiting=".",
    stop="+",
    error="x",
    cut="~",
    bar="|",
    open="[",
    close="]",
    blocks="        #",
    spark="._-=+*%#",
    line="-",
    knob="O",
    mark="^",
    chosen="<",
    down="v",
    up="^",
    between="-",
    rule="-",
    wall="|",
    arrow=">",
)

TO_ASCII = str.maketrans("…⟨⟩⏎·→\u2013⇧\u00d7≥≤─│", "~<>$.>-^x><-|")
"""ASCII replacements for other signs in texts, of the same width."""

_NAMED = {
    "accent": ("accent", True),
    "title": ("foreground", True),
    "error": ("text-error", True),
    "ok": ("text-success", False),
    "live": ("text-success", True),
    "spark": ("text-primary", False),
    "bar": ("primary", False),
    "chosen": ("accent", True),
    "out": ("text-accent", False),
}
"""Name of a style to a variable of Textual's themes, and True if bold."""

_ATTRIBUTES = {
    "dim": Style(dim=True),
    "rule": Style(dim=True),
    "bold": Style(bold=True),
    "title": Style(bold=True),
    "accent": Style(bold=True),
    "error": Style(bold=True),
    "live": Style(bold=True),
    "chosen": Style(bold=True),
    "cursor": Style(bold=True),
    "here": Style(bold=True),
    "key": Style(bold=True),
    "thought": Style(dim=True, italic=True),
}

_SIXTEEN = ("black on blue", "white on blue", "black on cyan", "black on white", "black on white", "black on yellow",
            "black on bright_yellow", "bold black on bright_yellow")  # fmt: skip
"""Steps of the default palette for terminals of sixteen colours, by hand: they have no orange."""
_SIXTEEN_RED = ("white on green", "white on green", "black on green", "black on green", "black on yellow",
                "black on yellow", "white on red", "bold white on red")  # fmt: skip
_SIXTEEN_THOUGHTS = (*["white on magenta"] * 4, *["black on bright_magenta"] * 3, "bold black on bright_magenta")
_SIXTEEN_STREAMS = ("bright_blue", "yellow", "green", "magenta", "cyan", "red", "bright_cyan", "bright_yellow",
                    "bright_green", "bright_magenta", "blue", "bright_red")  # fmt: skip

_LIGHT_STREAMS = (25, 130, 28, 90, 94, 55, 30, 124, 64, 95, 61, 125)
"""`STREAM_COLORS` for light grounds."""


class Styles:
    """Looks up styles by name: `heat3 cursor` is both together."""

    def __init__(self, *, ascii: bool = False) -> None:  # noqa: A002 - as the option is called
        """Begin without any look: every name is plain until `change`. ascii: draw with ASCII only."""
        self.ascii = ascii
        self.version = 0
        """Incremented with every change; lines of older versions must be drawn again."""
        self.color = True
        """False if there are no colours: the heat is then dim, bold and underlined."""
        self._table: dict[str, Style] = {}
        self.of = lru_cache(maxsize=4096)(self._of)

    def change(
        self,
        variables: Mapping[str, str],
        palette: Palette,
        *,
        color: bool = True,
        dark: bool = True,
        sixteen: bool = False,
    ) -> None:
        """Use these looks from now on.

        variables: of Textual's theme, names to `#rrggbb`. sixteen: the terminal knows sixteen colours only.
        """
        self.color = color
        if color:
            self._table = _colored(variables, palette, dark=dark, sixteen=sixteen)
        else:
            steps = {f"heat{i}": Style.parse(name) for i, name in enumerate(ATTRIBUTES)}
            thoughts = {f"thought{i}": Style.parse(f"{name} italic") for i, name in enumerate(ATTRIBUTES)}
            self._table = _ATTRIBUTES | steps | thoughts
        self.of.cache_clear()
        self.version += 1

    def _of(self, names: str) -> Style:
        return sum((self._table.get(name, Style.null()) for name in names.split()), Style.null())


def _colored(variables: Mapping[str, str], palette: Palette, *, dark: bool, sixteen: bool) -> dict[str, Style]:
    table = {"dim": _dim(variables, dark=dark), "bold": Style(bold=True)}
    for name, (variable, bold) in _NAMED.items():
        table[name] = Style(color=_on_ground(_parse(variables.get(variable, "")), variables), bold=bold)
    table["key"] = table["accent"]
    table["rule"] = table["dim"]
    table["here"] = Style(bold=True, reverse=True)  # keeps the token's own colours
    table["cursor"] = Style(bgcolor=_parse(variables.get("surface-lighten-2", "")) or Color.from_ansi(238), bold=True)
    table |= _thoughts(variables, dark=dark, sixteen=sixteen)
    if sixteen:
        steps = _SIXTEEN if palette == "blue-orange" else _SIXTEEN_RED
        table |= {f"heat{i}": Style.parse(name) for i, name in enumerate(steps)}
        table |= {f"stream{i}": Style.parse(name) for i, name in enumerate(_SIXTEEN_STREAMS)}
        table["cursor"] = Style(reverse=True)
        return table
    for i, (text, ground) in enumerate((COLORS if dark else LIGHT_COLORS)[palette]):
        table[f"heat{i}"] = Style(color=Color.from_ansi(text), bgcolor=Color.from_ansi(ground))
    for i, number in enumerate(STREAM_COLORS if dark else _LIGHT_STREAMS):
        table[f"stream{i}"] = Style(color=_on_ground(Color.from_ansi(number), variables))
    return table


def _thoughts(variables: Mapping[str, str], *, dark: bool, sixteen: bool) -> dict[str, Style]:
    """Styles of thoughts: italic and purple, with a background for each step of the heat."""
    italic = Style(italic=True)
    if sixteen:
        steps = {f"thought{i}": italic + Style.parse(name) for i, name in enumerate(_SIXTEEN_THOUGHTS)}
        return {**steps, "thought": italic + Style(color="magenta")}
    colors, ink = heat.THOUGHT_COLORS, heat.THOUGHT_INK
    if not dark:
        colors, ink = heat.LIGHT_THOUGHT_COLORS, heat.LIGHT_THOUGHT_INK
    table = {"thought": italic + Style(color=_on_ground(Color.from_ansi(ink), variables))}
    for i, (text, ground) in enumerate(colors):
        table[f"thought{i}"] = italic + Style(color=Color.from_ansi(text), bgcolor=Color.from_ansi(ground))
    return table


READABLE = 4.5
"""Least contrast of text, as WCAG 2 has it (1.4.3)."""
_STEPS = 16
"""Steps from a colour to black or white."""


def _on_ground(color: Color | None, variables: Mapping[str, str]) -> Color | None:
    """The colour, or as little darker or lighter as it must be to be read on the theme's grounds."""
    grounds = [one for name in ("background", "surface") if (one := _parse(variables.get(name, ""))) is not None]
    if color is None or not grounds or any(one.triplet is None for one in grounds):
        return color
    return readable(color, grounds)


def readable(color: Color, grounds: Sequence[Color], least: float = READABLE) -> Color:
    """The nearest colour on the way to black or white that has this contrast on all of these grounds."""
    own = color.get_truecolor()
    light = sum(luminance(one.get_truecolor()) for one in grounds) / len(grounds)
    end = 0 if light > _MIDDLE else 255
    for step in range(_STEPS + 1):
        mixed = ColorTriplet(*(round(one + (end - one) * step / _STEPS) for one in own))
        if min(contrast(mixed, one.get_truecolor()) for one in grounds) >= least:
            break
    return Color.from_triplet(mixed) if step else color


_MIDDLE = 0.18
"""Luminance above which black has more contrast than white."""


def contrast(a: ColorTriplet, b: ColorTriplet) -> float:
    """Contrast of two colours, 1 to 21 (WCAG 2)."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def luminance(color: ColorTriplet) -> float:
    """Relative luminance, 0 to 1 (WCAG 2)."""
    red, green, blue = (_linear(one / 255) for one in color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def _dim(variables: Mapping[str, str], *, dark: bool) -> Style:
    """A readable grey; the terminal's dimming for themes with the terminal's colours."""
    if not variables.get("foreground", "").startswith("#"):
        return Style(dim=True)
    return Style(color=_on_ground(Color.from_ansi(246 if dark else 242), variables))


def chrome(variables: Mapping[str, str]) -> dict[str, str]:
    """Colours of borders and titles for the style sheet: `emphasis` can be read, `frame` can be seen."""
    grounds = [Color.parse(variables[name][:7]) for name in ("background", "surface") if _is_rgb(variables, name)]
    colors = {"emphasis": ("accent", READABLE), "frame": ("panel-lighten-2", _SEEN)}
    return {
        name: readable(Color.parse(variables[base][:7]), grounds, least).get_truecolor().hex
        if grounds and _is_rgb(variables, base)
        else variables.get(base, "gray")
        for name, (base, least) in colors.items()
    }


_SEEN = 2.0
"""Least contrast of a border."""


def _is_rgb(variables: Mapping[str, str], name: str) -> bool:
    return variables.get(name, "").startswith("#")


def _parse(value: str) -> Color | None:
    """A colour of a theme: `#rrggbb`, or `ansi_red` of the themes with the terminal's own; None for anything else."""
    if value.startswith("#"):
        return Color.parse(value[:7])
    if value.startswith("ansi_") and value != "ansi_default":
        return Color.parse(value.removeprefix("ansi_"))
    return None
