"""The tour's sentences as they are drawn: with the user's keys, signs of the screen, and the token under the cursor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lmtool.core.logprobs.distribution import probability
from lmtool.core.logprobs.numbers import format_probability
from lmtool.terminal.tui.runs import Run, cut, length

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lmtool.terminal.tui.actions.context import ActionContext
    from lmtool.terminal.tui.runs import Line

_TOKEN_COLUMNS = 16
"""For a token in a sentence."""


def facts(app: ActionContext) -> dict[str, str]:
    """What a sentence may name beside keys: signs of the screen, the token under the cursor, the alternative."""
    view, row, glyphs = app.view, app.view.token, app.glyphs
    known = {"cursor": glyphs.cursor, "drawn": glyphs.chosen, "esc": "esc", "token": "-", "p": "?", "q": "?"}
    known["other"] = known["token"]
    if row is None:
        return known
    known["token"], logprob = view.measures.quote_token(row), view.state.tokens.logprob(row)
    known |= {} if logprob is None else {"p": format_probability(probability(logprob))}
    if top := view.measures.alternatives(row):
        one, logprob = top[min(view.bar, len(top) - 1)]
        known |= {"other": view.measures.quote(one), "q": format_probability(probability(logprob))}
    return known


def words(app: ActionContext, sentence: str) -> Iterator[Line]:
    """A sentence word by word. What is between braces is a fact, or an action's id, which stands for its key."""
    known = facts(app)
    for word in sentence.split():
        parts = filter(None, re.split(r"(\{\w+\})", word))
        yield [_named(app, part[1:-1], known) if part.startswith("{") else Run(part) for part in parts]


def _named(app: ActionContext, name: str, known: dict[str, str]) -> Run:
    if name in known:
        return Run(cut(known[name], _TOKEN_COLUMNS), "key" if name == "esc" else "bold")
    return Run(key_of(app, name), "key")


def key_of(app: ActionContext, name: str) -> str:
    """The key of an action; where the settings left it none, its name in the list of all."""
    return app.keys.sign(name) or f"{app.keys.sign('help')} {app.keys.by_id(name).short}".strip()


def wrapped(text: Iterable[Line], columns: int) -> list[Line]:
    """Words in lines of these columns, a blank between them."""
    lines: list[Line] = [[]]
    for word in text:
        if lines[-1] and length(lines[-1]) + 1 + length(word) > columns:
            lines.append([])
        lines[-1] += [Run(" "), *word] if lines[-1] else word
    return lines
