"""The signs that the inspector draws with, and their plain twins for `--ascii`."""

from __future__ import annotations

from dataclasses import dataclass


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

TO_ASCII = str.maketrans("…⟨⟩⏎·→\u2013⇧\u00d7≥≤", "~<>$.>-^x><")
"""For what slips into texts beside the glyphs; each stands for one column as before."""
