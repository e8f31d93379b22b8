"""The help of a pane: what it shows, its keys, what the colours mean, then all keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.tui.heat import legend
from lmtool.tui.keys import ACTIONS
from lmtool.tui.runs import Run

if TYPE_CHECKING:
    from lmtool.tui.heat import HeatMode
    from lmtool.tui.keys import Action, Keys
    from lmtool.tui.runs import Line

_ABOUT = {
    "streams": (
        "Streams: one line a request.",
        "tok/max: tokens so far and at most.",
        "tok/s: tokens a second.  ttft: time to first token.  ppl: perplexity of what was generated.",
        "p99: the gap between frames that 99 of 100 do not exceed.",
    ),
    "tokens": (
        "Tokens: as they came (interleaved), streams side by side (split), one stream's text, or a table.",
        "The colour of a token is its heat; the scale is below it.",
        "A character that takes several tokens belongs to its last one.",
    ),
    "detail": (
        "Token: the one under the cursor, and what else could have come.",
        "Bars are probabilities; beside each stands the sum down to it. `other` is what the server did not send.",
        "Rank >5: tokens that were not sent may be likelier. No sum stands beside a token with such a rank.",
        "Logprobs are raw (the model's own), biased (after logit_bias and constraint) or processed (as drawn from).",
        "Entropy is a range: the unseen rest in few large pieces, or spread over the whole vocabulary.",
    ),
    "frames": (
        "Frames: everything that went over the wires, > to the server, < from it.",
        "The frame that brought the token under the cursor is marked, and the other way around.",
    ),
    "time": (
        "Time: gaps between frames that brought tokens.",
        "Tokens of one frame came together, so there is no gap between them.",
        "A stall is over 50 ms and over four times the median gap.",
    ),
}
_HEATS = {
    "prob": "probability of the token",
    "surprisal": "surprisal of the token in bits: -log2 p",
    "entropy": "entropy of the alternatives in bits, the upper bound",
    "rank": "place of the token in its distribution, or the least that it can be",
    "gap": "milliseconds since the stream's token before",
    "stream": "a colour for each stream",
}


def help_lines(keys: Keys, pane: str, heat: HeatMode) -> list[Line]:
    """All of it."""
    title, *about = _ABOUT[pane]
    lines: list[Line] = [[Run(title, "title")], *([Run(sentence)] for sentence in about), []]
    own = keys.of_pane(pane)
    lines += [_key(keys, action) for action in own]
    lines += [[], [Run(f"Heat: {_HEATS[heat]}", "title")]]
    for label, step in legend(heat):
        word = {0: "  expected", 7: "  surprising"}.get(step, "")
        lines.append([Run(f" {label:7}", f"heat{step}"), Run(word, "dim")])
    lines += [[], [Run("All other keys", "title")]]
    return lines + [_key(keys, action) for action in ACTIONS if action not in own]


def _key(keys: Keys, action: Action) -> Line:
    return [Run(f"{keys.signs(action.id) or '(palette)':>12}  ", "key"), Run(action.sentence)]
