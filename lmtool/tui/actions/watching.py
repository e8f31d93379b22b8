"""The source while it is watched: what it feeds, how it ends, and that it can come back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.errors import LmtoolError
from lmtool.tui.actions.desk import Desk

if TYPE_CHECKING:
    from lmtool.tui.sources.source import Source


class Watching(Desk):
    """Part of the app."""

    async def observe(self, source: Source) -> None:
        """Fold what a source feeds until it is over."""
        try:
            await source.run(self.lines.feed)
        except LmtoolError as error:
            self.fail(error, "remote has gone")
            return
        if source.live:
            self.status = replace(self.status, word="OVER")
            if self.options.exit_at_end:
                self.exit(0)
        self.changed()

    def back_again(self) -> None:
        """A request was taken: a server that had gone is back, and can go again."""
        if self.source is not None and self.source.live and self.status.trouble:
            self.status = replace(self.status, word="LIVE", trouble=False)
            self.run_worker(self.observe(self.source))
        self.changed()

    def fail(self, error: LmtoolError, word: str) -> None:
        """The source is over; the last screen stays, unless there is nothing on it."""
        state = self.view.state
        self.status = replace(self.status, word=word, trouble=True)
        self.say_error(error, stays=True)
        if self.options.exit_at_end or not (state.streams or state.connections):
            self.failure = error
            self.exit(error.exit_code)
