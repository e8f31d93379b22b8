"""The menu of a server: actions of the models and of the session, and those that other packages bring."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError, UsageError
from lmtool.protocol.evergreen.actions import GROUP, ActionType, Registry
from lmtool.protocol.evergreen.generate import generate_action
from lmtool.protocol.evergreen.model_access import ServedModels
from lmtool.protocol.evergreen.model_actions import score_action, tokenize_action
from lmtool.protocol.evergreen.session_actions import session_actions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.core.interfaces import Catalogue, TokenModel

_log = logging.getLogger(__name__)


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
