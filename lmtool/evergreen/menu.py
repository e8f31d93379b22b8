"""The menu of a server: actions of the models and of the session, and those that other packages bring."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from lmtool.errors import LmtoolError, UsageError
from lmtool.evergreen.actions import ActionType, Port, Registry
from lmtool.evergreen.generate import generate_action
from lmtool.evergreen.model_access import ServedModels
from lmtool.evergreen.model_actions import score_action, tokenize_action
from lmtool.evergreen.session_actions import session_actions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.evergreen.actions import Handler
    from lmtool.interfaces import Catalogue, TokenModel

GROUP = "lmtool.actions"
"""Entry points of this group are actions."""

_log = logging.getLogger(__name__)


def action(
    name: str,
    inputs: Sequence[str | Port] = (),
    outputs: Sequence[str | Port] = (),
    *,
    description: str | None = None,
    seconds: float | None = 600.0,
) -> Callable[[Handler], ActionType]:
    """Make an action of an `async def handler(call)`, see `lmtool.evergreen.actions`.

    inputs: an input that is only named must be given; a `Port` says more. description: by default the first line of the
    handler's docstring. seconds: a handler that takes longer aborts its session; None: no limit.
    """

    def make(handler: Handler) -> ActionType:
        lines = (handler.__doc__ or "").strip().splitlines()
        summary = description if description is not None else next(iter(lines), "")
        needed = tuple(Port(each, required=True) if isinstance(each, str) else each for each in inputs)
        offered = tuple(Port(each) if isinstance(each, str) else each for each in outputs)
        return ActionType(name, needed, offered, handler, summary, seconds)

    return make


def menu(model: TokenModel, catalogue: Catalogue, more: Sequence[ActionType] = ()) -> Registry:
    """All that a server offers: `more`, and what is installed, beside its own. Raises `UsageError` for a name twice."""
    models, registry = ServedModels(model, catalogue), Registry()
    own = [generate_action(models), score_action(models), tokenize_action(models), *session_actions(registry)]
    for each in (*own, *more, *installed()):
        registry.add(each)
    return registry


def installed() -> list[ActionType]:
    """The actions of installed packages; one that cannot be had is left out, with a warning."""
    actions = []
    for entry in entry_points(group=GROUP):
        try:
            loaded = entry.load()
            if not isinstance(loaded, ActionType):
                raise UsageError(f"it is {type(loaded).__name__}; expected a function under @action")
        except (LmtoolError, ImportError, AttributeError) as error:
            _log.warning("the action %s of %s cannot be had: %s", entry.name, entry.value, error)
        else:
            actions.append(loaded)
    return actions
