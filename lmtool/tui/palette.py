"""Every action in the command palette, with its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from textual.command import DiscoveryHit, Hit, Provider

from lmtool.tui.keys import ACTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.command import Hits

    from lmtool.tui.keys import Action, Keys


class Doer(Protocol):
    """The app, as the palette needs it."""

    keys: Keys

    def do(self, action: str) -> None:
        """Do an action of the table."""


class ActionsProvider(Provider):
    """Finds actions by what they do."""

    @property
    def _inspector(self) -> Doer:
        return cast("Doer", self.app)

    def _told(self, action: Action) -> tuple[str, str]:
        keys = self._inspector.keys.signs(action.id)
        return f"{action.short}: {action.sentence}", f"key {keys}" if keys else "no key"

    def _doing(self, action: Action) -> Callable[[], None]:
        return lambda: self._inspector.do(action.id)

    async def discover(self) -> Hits:
        """All of them."""
        for action in ACTIONS:
            if action.id != "palette":
                name, keys = self._told(action)
                yield DiscoveryHit(name, self._doing(action), help=keys)

    async def search(self, query: str) -> Hits:
        """Those that match."""
        matcher = self.matcher(query)
        for action in ACTIONS:
            name, keys = self._told(action)
            score = matcher.match(name)
            if score > 0 and action.id != "palette":
                yield Hit(score, matcher.highlight(name), self._doing(action), help=keys)
