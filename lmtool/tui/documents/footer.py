"""The lines at the bottom: what the keys do, or a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.tui.keys import ACTIONS
from lmtool.tui.runs import Run, cut, visible, width

if TYPE_CHECKING:
    from lmtool.tui.keys import Keys
    from lmtool.tui.runs import Line

MOST = 3
"""Lines of a message."""
_NUMBERS = {action.id: number for number, action in enumerate(ACTIONS)}


def keys_line(keys: Keys, pane: str, columns: int) -> Line:
    """As many keys as there is room for, always with help and quit; a target is the number of an action."""
    last = [action for action in keys.line(pane) if action.id in ("help", "quit")]
    first = [action for action in keys.line(pane) if action not in last]
    ending = [run for action in last for run in _key(keys, action.id, action.short)]
    left = columns - sum(width(run.text) for run in ending)
    line: Line = []
    for action in first:
        part = _key(keys, action.id, action.short)
        left -= sum(width(run.text) for run in part)
        if left < 0:
            break
        line += part
    return [*line, *ending]


def _key(keys: Keys, action: str, short: str) -> Line:
    return [Run(f" {keys.sign(action)} ", "key", _NUMBERS[action]), Run(f"{short} ", "", _NUMBERS[action])]


def action_at(target: int) -> str:
    """The action that a click on the line of keys means."""
    return ACTIONS[target].id


def message_lines(text: str, columns: int, *, warning: bool) -> list[Line]:
    """A message in at most `MOST` lines; what is longer is cut with a sign."""
    style = "error" if warning else "accent"
    room = max(8, columns - 2)
    lines: list[str] = []
    for word in visible(text).split():
        if lines and width(lines[-1]) + 1 + width(word) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    if len(lines) > MOST:
        lines = [*lines[: MOST - 1], " ".join(lines[MOST - 1 :])]
    return [[Run(f" {cut(line, room)} ", style)] for line in lines or [""]]
