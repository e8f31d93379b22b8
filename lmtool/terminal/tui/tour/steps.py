"""The steps of the tour as data: what one sees, which key to press, when it is done, how the tour does it itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from lmtool.terminal.tui.actions.context import ActionContext
from lmtool.terminal.tui.documents.comparison import ComparisonDocument
from lmtool.terminal.tui.screens.dialogs import ReadingScreen

if TYPE_CHECKING:
    from collections.abc import Callable

    Performed: TypeAlias = Callable[[ActionContext], bool]

ENOUGH_TOKENS, ENOUGH_OF_A_BRANCH = 8, 64
"""Of a stream that goes on, before one of its tokens is called the least likely; of a branch, before it is compared."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do. In its texts an action's id between braces stands for its key, a fact's name for the fact."""

    id: str
    """Stable: the place where the tour was left is kept by it."""
    title: str
    text: str
    """What one sees, and which key to press: one or two sentences."""
    actions: tuple[str, ...]
    """What the tour waits for: ids of actions of which one is enough."""
    done: Callable[[ActionContext], bool]
    """Whether it was really done, by a key, the list of actions, or the mouse."""
    perform: Performed | None = None
    """Does it for somebody who skips it or comes back later; False as long as that is impossible. None: not needed."""
    allowed: tuple[str, ...] = ()
    """Actions that belong to it, too, and are no mistake."""
    other_text: Callable[[ActionContext], str] = lambda _: ""
    """Stands in place of `text` where it is not empty."""
    kept_as: str = ""
    """The step to come back to, where what this one begins with cannot be kept."""
    begin: Callable[[ActionContext], object] = lambda _: None
    """Done when the step begins."""


# When a step is done.


def _on_least_likely(app: ActionContext) -> bool:
    stream, row = app.view.current, app.view.row
    if stream is None or row is None:
        return False
    logprobs = app.view.state.tokens.logprobs
    return row == min(stream.rows[: stream.count(app.view.token_count)], key=lambda one: logprobs[one])


def _on_drawn(app: ActionContext) -> bool:
    """Whether the alternative under the cursor is the token that was drawn."""
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
    ready = app.source is not None and app.source.generate is not None
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
"""In their order."""
WHILE_RUNNING = 3
"""Steps before this one need streams that run."""

THE_END = (
    "That was the tour. {help} lists every action and every word of the screen, {what_if} asks what if. Look around; "
    "{quit} leaves."
)
"""What stands where the steps were."""
