"""The tour as data: its steps, their texts with the user's keys, and the position kept between runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import FileError
from lmtool.core.logprobs.distribution import probability
from lmtool.core.logprobs.numbers import format_probability
from lmtool.settings.data_folder import data_folder
from lmtool.terminal.tui.actions.context import ActionContext
from lmtool.terminal.tui.documents.comparison import ComparisonDocument
from lmtool.terminal.tui.runs import Run, cut, length
from lmtool.terminal.tui.screens.dialogs import ReadingScreen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from lmtool.terminal.tui.runs import Line

_TOKEN_COLUMNS = 16
"""Columns of a token in a sentence."""


def facts(app: ActionContext) -> dict[str, str]:
    """Facts that a sentence may name in addition to keys: signs, the current token, the current alternative."""
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
    """A sentence word by word, with `{name}` replaced by a fact or by the key of an action."""
    known = facts(app)
    for word in sentence.split():
        parts = filter(None, re.split(r"(\{\w+\})", word))
        yield [_named(app, part[1:-1], known) if part.startswith("{") else Run(part) for part in parts]


def _named(app: ActionContext, name: str, known: dict[str, str]) -> Run:
    if name in known:
        return Run(cut(known[name], _TOKEN_COLUMNS), "key" if name == "esc" else "bold")
    return Run(key_of(app, name), "key")


def key_of(app: ActionContext, name: str) -> str:
    """The key of an action; without a key, the way to find it in the list of actions."""
    return app.keys.sign(name) or f"{app.keys.sign('help')} {app.keys.by_id(name).short}".strip()


def wrapped(text: Iterable[Line], columns: int) -> list[Line]:
    """Words in lines of these columns, a blank between them."""
    lines: list[Line] = [[]]
    for word in text:
        if lines[-1] and length(lines[-1]) + 1 + length(word) > columns:
            lines.append([])
        lines[-1] += [Run(" "), *word] if lines[-1] else word
    return lines


ENOUGH_TOKENS, ENOUGH_OF_A_BRANCH = 8, 64
"""Tokens of a running stream before its least likely one is chosen; of a branch before it is compared."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the tour. In its texts `{name}` is replaced by a fact or by the key of an action."""

    id: str
    """Stable id, written to the file of the position."""
    title: str
    text: str
    """One or two sentences: what is on the screen, which key to press."""
    actions: tuple[str, ...]
    """Ids of the actions that the tour waits for; one is enough."""
    done: Callable[[ActionContext], bool]
    """Returns True once it was done, by a key, the list of actions, or the mouse."""
    perform: Callable[[ActionContext], bool] | None = None
    """Performs a step that was skipped or done earlier; returns False until that is possible. None: not needed."""
    allowed: tuple[str, ...] = ()
    """Other actions that are no mistake in this step."""
    other_text: Callable[[ActionContext], str] = lambda _: ""
    """Replaces `text` if it is not empty."""
    kept_as: str = ""
    """Id of the step to return to, if the state of this one cannot be kept."""
    begin: Callable[[ActionContext], object] = lambda _: None
    """Called when the step begins."""


# When a step is done.


def _on_least_likely(app: ActionContext) -> bool:
    stream, row = app.view.current, app.view.row
    if stream is None or row is None:
        return False
    logprobs = app.view.state.tokens.logprobs
    return row == min(stream.rows[: stream.count(app.view.token_count)], key=lambda one: logprobs[one])


def _on_drawn(app: ActionContext) -> bool:
    """True if the alternative under the cursor is the token that was drawn."""
    row = app.view.token
    top = () if row is None else app.view.measures.alternatives(row)
    return row is None or app.view.bar >= len(top) or top[app.view.bar][0] == app.view.measures.name(row)


def _branched(app: ActionContext) -> bool:
    streams = (app.view.state.find(branch.child) for branch in app.branches.branches)
    return any(one is not None and (one.ended is not None or len(one.rows) >= ENOUGH_OF_A_BRANCH) for one in streams)


def _compared(app: ActionContext) -> bool:
    screen = app.top_screen
    return isinstance(screen, ReadingScreen) and isinstance(screen.document, ComparisonDocument)


# How the tour does it.


def _do(app: ActionContext, name: str) -> bool:
    ActionContext.do(app, app.keys.by_id(name))  # not the tour's own, which asks whether it was the right one
    return True


def _jump(app: ActionContext) -> bool:
    stream = app.view.current
    if stream is None or (stream.ended is None and len(stream.rows) < ENOUGH_TOKENS) or not stream.rows:
        return False
    app.view.uncertainty = "surprisal"
    return _do(app, "least_likely")


def _choose(app: ActionContext) -> bool:
    app.view.bar = 1 if app.view.bar == 0 else 0
    return True


def _begin_on_drawn(app: ActionContext) -> None:
    row = app.view.token
    names = [] if row is None else [name for name, _ in app.view.measures.alternatives(row)]
    if row is not None and (drawn := app.view.measures.name(row)) in names:
        app.view.bar = names.index(drawn)


# Texts that depend on what is there.


def _loading(app: ActionContext) -> str:
    ready = app.source is not None and app.source.takes_requests
    return "" if ready else "The model that comes with lmtool is being loaded into this process: a few seconds."


def _all_ended(app: ActionContext) -> str:
    if any(stream.ended is None for stream in app.view.state.streams):
        return ""
    return "All answers have ended. {demo} sends the prompts again; press {pause} while they run."


def _drawn_again(app: ActionContext) -> str:
    if app.branches.branches or not _on_drawn(app):
        return ""
    return "{drawn} marks the token that was drawn. {down} and {up} go to another one; {branch} goes on from there."


STEPS = (
    Step(
        "run", "Run",
        "This is the inspector, still empty. Press {demo}: four prompts go to the small model that runs in this "
        "process.",
        ("demo",), lambda app: len(app.view.state.tokens) > 0, lambda app: not _loading(app) and _do(app, "demo"),
        ("prompt",), _loading,
    ),
    Step(
        "pause", "Pause",
        "Four answers, token by token. The more a token stands out, the less likely it was. Press {pause} to stop the "
        "screen.",
        ("pause",), lambda app: app.view.paused, None, ("demo", "prompt"), _all_ended,
    ),
    Step(
        "go_on", "Go on",
        "Only the screen stands still: the top line counts what arrives meanwhile. Press {pause} again to go on.",
        ("pause",), lambda app: not app.view.paused, lambda app: not app.view.paused or _do(app, "pause"),
        kept_as="pause",
    ),
    Step(
        "jump", "Jump",
        "Nothing was lost. Press {least_likely}: the cursor jumps to the least likely token of its stream, the one "
        "with {cursor} in the table.",
        ("least_likely",), _on_least_likely, _jump,
    ),
    Step(
        "alternatives", "Alternatives",
        "The cursor is on {token}, to which the model gave p {p}. Press {pane_3} to see what else could have stood "
        "there.",
        ("pane_3",), lambda app: app.main.pane_name == "detail", lambda app: _do(app, "pane_3"),
    ),
    Step(
        "choose", "Another token",
        "Each bar is a token that was possible; {drawn} marks the one that was drawn. Press {down} or {up} to put the "
        "cursor {cursor} on another one.",
        ("down", "up"), lambda app: not _on_drawn(app) or _branched(app), _choose, ("branch",), begin=_begin_on_drawn,
    ),
    Step(
        "branch", "Branch",
        "{other} could have stood there, with p {q}. Press {branch}: a new stream goes on from it.",
        ("branch",), _branched, lambda app: _do(app, "branch"), ("down", "up"),
        _drawn_again,
    ),
    Step(
        "compare", "Compare",
        "The new stream begins like the old one, takes your token, and goes its own way. Press {compare} to see both "
        "side by side.",
        ("compare",), _compared,
    ),
    Step(
        "look", "Parting",
        "At the top how much is equal, below it both texts, dim as far as they are equal. Press {esc} to close this.",
        (), lambda app: app.top_screen is app.main, kept_as="compare",
    ),
)  # fmt: skip
"""The steps in order."""
WHILE_RUNNING = 3
"""Steps before this one need streams that run."""

THE_END = (
    "That was the tour. {help} lists every action and every word of the screen, {what_if} asks what if. Look around; "
    "{quit} leaves."
)
"""Text after the last step."""


_LONGEST = 100
"""Bytes of the file that are read."""


def tour_file() -> Path:
    """File of the position in the tour."""
    return data_folder() / "tour"


class Progress:
    """Position in the tour. The tour performs steps before `target` itself: they were done or skipped."""

    def __init__(self, file: Path, *, restart: bool = False) -> None:
        """Continue at the position in the file, or at the beginning with `restart`. Raises `FileError`."""
        self._file = file
        self.index = 0
        self.target = 0 if restart else _kept(file)
        self.is_return = self.target > 0
        """True while the tour returns to the position where it was left."""
        if restart:
            self._keep()

    @property
    def step(self) -> Step | None:
        """The current step; None at the end."""
        return STEPS[self.index] if self.index < len(STEPS) else None

    @property
    def is_performing(self) -> bool:
        """True if the tour performs this step itself."""
        return self.index < self.target

    def skip(self) -> None:
        """Have this step done by the tour; one that it is doing already is left out."""
        if self.is_performing:
            self.advance()
        else:
            self.target = self.index + 1

    def advance(self) -> None:
        """Go to the next step. Raises `FileError` if the position cannot be kept; the step has changed nevertheless."""
        self.index += 1
        if self.index >= self.target:
            self.is_return = False
            self.target = self.index
            self._keep()

    def _keep(self) -> None:
        step = self.step
        try:
            if step is None or not self.index:
                self._file.unlink(missing_ok=True)
                return
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file.write_text(f"{step.kept_as or step.id}\n", encoding="utf-8")
        except OSError as error:
            raise FileError(f"where the tour is cannot be kept in {self._file}: {error.strerror}") from None


def _kept(file: Path) -> int:
    """The position in a file; 0 if there is no file, or for an unknown step."""
    try:
        with file.open("rb") as opened:
            name = opened.read(_LONGEST).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror}", "remove it, or:  lmtool tour --restart") from None
    return next((place for place, step in enumerate(STEPS) if step.id == name), 0)
