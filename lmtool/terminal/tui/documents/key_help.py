"""What the keys do: the footer, or a message in its place; the help of a pane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmtool.core.logprobs.heat import legend
from lmtool.terminal.tui.documents.glossary import words_of
from lmtool.terminal.tui.documents.list import broken
from lmtool.terminal.tui.runs import Run, cut, visible, width

if TYPE_CHECKING:
    from lmtool.core.logprobs.heat import HeatMode
    from lmtool.terminal.tui.action import Action, Keymap
    from lmtool.terminal.tui.runs import Line

MESSAGE_LINES = 3
_ABOUT = {
    "streams": ("Streams: one line a request; a click on the name of a column explains it.",),
    "tokens": (
        "Tokens: streams side by side (split), one token a line as they arrived (interleaved), one stream, a table.",
        "The colour of a token is its heat; the scale is below it.",
        "A character that takes several tokens belongs to its last one.",
    ),
    "detail": (
        "Token: the one under the cursor, and its alternatives.",
        "Bars are probabilities; beside each stands the sum down to it, as long as none is left out.",
    ),
    "frames": (
        "Frames: everything that went over the wires.",
        "The frame that brought the token under the cursor is marked, and the other way around.",
    ),
    "time": ("Time: gaps between frames that brought tokens, of the stream under the cursor, then of all.",),
}
_HEATS = {
    "prob": "probability of the token",
    "surprisal": "surprisal of the token in bits: -log2 p",
    "entropy": "entropy of the alternatives in bits, the upper bound",
    "rank": "place of the token in its distribution, or the least that it can be",
    "gap": "milliseconds since the stream's token before",
    "stream": "a colour for each stream",
}


def keys_line(keys: Keymap[Any], pane: str, columns: int) -> Line:
    """As many keys as there is room for, always with help and quit; a target is the number of an action."""
    offered = keys.footer(pane)
    ending = [run for action in offered if action.id in ("help", "quit") for run in _hint(keys, action)]
    left = columns - sum(width(run.text) for run in ending)
    line: Line = []
    for action in offered:
        if action.id in ("help", "quit"):
            continue
        part = _hint(keys, action)
        left -= sum(width(run.text) for run in part)
        if left < 0:
            break
        line += part
    return [*line, *ending]


def _hint(keys: Keymap[Any], action: Action[Any]) -> Line:
    number = keys.actions.index(action)
    return [Run(f" {keys.sign(action.id)} ", "key", number), Run(f"{action.short} ", "", number)]


def message_lines(text: str, columns: int, *, warning: bool) -> list[Line]:
    """A message in at most `MESSAGE_LINES` lines; what is longer is cut with a sign."""
    style = "error" if warning else "accent"
    room = max(8, columns - 2)
    sentence = Run(" ".join(visible(text).split()))
    lines = ["".join(run.text for run in line).rstrip() for line in broken([sentence], room)]
    if len(lines) > MESSAGE_LINES:
        lines = [*lines[: MESSAGE_LINES - 1], " ".join(lines[MESSAGE_LINES - 1 :])]
    return [[Run(f" {cut(line, room)} ", style)] for line in lines]


def help_lines(keys: Keymap[Any], pane: str, heat: HeatMode) -> list[Line]:
    """What the pane shows, its keys, what the colours mean, then all other keys."""
    title, *about = _ABOUT[pane]
    lines: list[Line] = [[Run(title, "title")], *([Run(sentence)] for sentence in about)]
    lines += [[Run(f"{word.name}: ", "bold"), Run(word.sentence)] for word in words_of(pane)]
    lines.append([])
    own = keys.of_pane(pane)
    lines += [_explained(keys, action) for action in own]
    lines += [[], [Run(f"Heat: {_HEATS[heat]}", "title")]]
    for label, step in legend(heat):
        word = {0: "  expected", 7: "  surprising"}.get(step, "")
        lines.append([Run(f" {label:7}", f"heat{step}"), Run(word, "dim")])
    lines += [[], [Run("All other keys", "title")]]
    return lines + [_explained(keys, action) for action in keys.actions if action not in own]


def _explained(keys: Keymap[Any], action: Action[Any]) -> Line:
    return [Run(f"{keys.signs(action.id) or '(palette)':>12}  ", "key"), Run(action.sentence)]
