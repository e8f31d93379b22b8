"""The command palette."""

from __future__ import annotations

from lmtool.tui.keys import ACTIONS
from lmtool.tui.palette import ActionsProvider
from tests.tui.scripted import watching


async def test_every_action_can_be_found() -> None:
    """All are listed at first, each is found by its own words, and its keys are told."""
    async with watching() as seen:
        provider = ActionsProvider(seen.app.screen)
        listed = [hit async for hit in provider.discover()]
        assert len(listed) == len(ACTIONS) - 1
        for action in ACTIONS:
            found = [hit async for hit in provider.search(action.sentence)]
            assert action.id == "palette" or any(action.short in str(hit.text) for hit in found)
