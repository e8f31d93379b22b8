"""Phrases in lines: a phrase that does not fit goes to the next line, so that nothing is cut that can be whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.tui.runs import Run, fitted, width

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.tui.runs import Line

_GAP = "  "


def flow(phrases: Iterable[Run], columns: int) -> list[Line]:
    """Lines of at most so many columns with two blanks between phrases; empty phrases are left out."""
    lines: list[Line] = []
    used = 0
    for phrase in phrases:
        if not phrase.text:
            continue
        size = width(phrase.text)
        if lines and used + len(_GAP) + size <= columns:
            lines[-1] += [Run(_GAP), phrase]
            used += len(_GAP) + size
        else:
            lines.append(fitted([phrase], columns))
            used = size
    return lines
