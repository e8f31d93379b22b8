"""Actions that keep something: recordings, pictures, exports, the clipboard; and leaving."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from lmtool.errors import LmtoolError
from lmtool.tui.actions.desk import Desk
from lmtool.tui.documents.list import ListDocument
from lmtool.tui.preamble import preamble
from lmtool.tui.runs import Run
from lmtool.tui.screens.main import PANES

if TYPE_CHECKING:
    from pathlib import Path


class Keeping(Desk):
    """Part of the app."""

    def _new_path(self, ending: str) -> Path:
        """A file of this second in the user's folder, named so that they sort by time."""
        stem = f"lmtool-inspect-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
        path = self.options.folder / f"{stem}{ending}"
        number = 1
        while path.exists():
            number += 1
            path = self.options.folder / f"{stem}-{number}{ending}"
        return path

    def action_record(self) -> None:
        """Record, or stop that."""
        if self.source is None:
            self.say("a file is a recording already", warning=True)
            return
        if self.source.recorded is not None:
            self.run_worker(self._stop_recording())
            return
        path = self._new_path(".lmtp.jsonl")
        try:
            self.source.start_recording(path, preamble(self.lines))
        except LmtoolError as error:
            self.say_error(error)
        else:
            self.say(f"recording into {path}; {self.keys.sign('record')} stops it")

    async def _stop_recording(self) -> None:
        assert self.source is not None
        told = await self.source.stop_recording()
        if told is not None:
            self.say(
                told.failed or f"recorded {told.events} events, {told.tokens} tokens into {told.path}",
                warning=bool(told.failed),
            )

    def action_snapshot(self) -> None:
        """A picture of the screen."""
        from lmtool.tui.pictures import picture

        path = self._new_path(".svg")
        try:
            path.write_text(picture(self), encoding="utf-8")
        except OSError as error:
            self.say(f"cannot write {path}: {error.strerror}", warning=True)
        else:
            self.say(f"saved {path}")

    def action_export(self) -> None:
        """Choose a form and write the stream."""
        from lmtool.tui import exports

        if self.view.current is None:
            self.say("no stream yet")
            return
        forms = list(exports.FORMS)
        lines = [[Run(f"{name:9}", "key", i), Run(exports.FORMS[name], "", i)] for i, name in enumerate(forms)]

        def write(target: int) -> None:
            try:
                path = exports.write(forms[target], self.view, self.options.folder)
            except LmtoolError as error:
                self.say_error(error)
            else:
                self.say(f"wrote {path}")

        self.read(f"Export stream {self.view.current.label}", ListDocument(lines, cursor=self.glyphs.cursor), write)

    def action_copy(self) -> None:
        """Copy what the pane is about."""
        view, pane = self.view, PANES[self.main.pane]
        frame, row, stream = view.frame_now, view.token, view.current
        if pane == "frames" and frame is not None:
            what, text = "frame", self.main.frame_text(frame)
        elif pane == "streams" and stream is not None:
            what, text = f"text of {stream.label}", view.state.text(stream, stream.count(view.seen))
        elif row is not None:
            what, text = "token", view.state.token_text(row)
        else:
            self.say("nothing to copy yet")
            return
        self.copy_to_clipboard(text)
        self.say(f"copied the {what}, {len(text)} characters (where the terminal lets programs use the clipboard)")

    async def action_quit(self) -> None:
        """Leave; whoever runs the app closes the source, and with it a recording in good order."""
        self.exit(0)
