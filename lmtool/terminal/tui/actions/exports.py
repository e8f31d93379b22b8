"""Actions that write something elsewhere: recordings, pictures, exports, the clipboard."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from lmtool.core.errors import FileError
from lmtool.terminal.tui import exports
from lmtool.terminal.tui.documents.document import ListDocument
from lmtool.terminal.tui.exports import preamble
from lmtool.terminal.tui.runs import Run

if TYPE_CHECKING:
    from pathlib import Path

    from lmtool.terminal.tui.actions.context import ActionContext
    from lmtool.terminal.tui.sources.source import Source


def is_recording(app: ActionContext) -> str:
    """Reason that nothing can be recorded; empty if it can."""
    return "a file is a recording already" if app.source is None else ""


def _new_path(app: ActionContext, ending: str) -> Path:
    """A file of this second in the user's folder, named so that they sort by time."""
    stem = f"lmtool-inspect-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    return exports.free_path(app.options.folder, stem, ending)


def record(app: ActionContext) -> None:
    """Record, or stop that."""
    source = app.source
    assert source is not None
    if source.recording is not None:
        app.run_worker(_stop_recording(app, source))
        return
    record_into(app, _new_path(app, ".lmtp.jsonl"))


def record_into(app: ActionContext, path: Path) -> None:
    """Record into this file. Raises `FileError`, `UsageError`."""
    assert app.source is not None
    app.source.start_recording(path, preamble(app.store))
    app.say(f"recording into {path}; {app.keys.sign('record')} stops it")


async def _stop_recording(app: ActionContext, source: Source) -> None:
    result = await source.stop_recording()
    if result is not None:
        counts = f"recorded {result.events} events, {result.tokens} tokens into {result.path}"
        app.say(result.failed or counts, warning=bool(result.failed))


def snapshot(app: ActionContext) -> None:
    """Write the screen as a picture. Raises `FileError`."""
    save_snapshot(app, _new_path(app, ".svg"))


def save_snapshot(app: ActionContext, path: Path) -> None:
    """Write the screen as a picture into this file. Raises `FileError`."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(exports.picture(app))
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None
    app.say(f"saved {path}")


def export(app: ActionContext) -> None:
    """Choose a form and write the stream."""
    stream = app.view.current
    assert stream is not None
    forms = list(exports.FORMS)
    lines = [
        [Run(f"{name:9}", "key", i), Run(f"{form.sentence} ({form.ending})", "", i)]
        for i, (name, form) in enumerate(exports.FORMS.items())
    ]

    def write(target: int) -> None:
        app.say(f"wrote {exports.write(forms[target], app.view, app.options.folder)}")

    app.read(
        f"Export stream {stream.label}",
        ListDocument(lines, cursor=app.glyphs.cursor),
        lambda i: app.attempt(lambda: write(i)),
    )


def export_into(app: ActionContext, path: Path) -> None:
    """Write the stream into this file, in the format of its ending. Raises `FileError`, `UsageError`."""
    stream = app.view.current
    assert stream is not None
    exports.write_to(path, exports.form_of(path), app.view, stream)
    app.say(f"wrote {path}")


def copy(app: ActionContext) -> None:
    """Copy the frame, text or token of the focused pane."""
    view, pane = app.view, app.main.pane_name
    frame, row, stream = view.current_frame, view.token, view.current
    if pane == "frames" and frame is not None:
        name, text = "frame", app.main.frame_text(frame)
    elif pane == "streams" and stream is not None:
        name, text = f"text of {stream.label}", view.state.text(stream, stream.count(view.token_count))
    elif row is not None:
        name, text = "token", view.state.texts.of_row(row)
    else:
        app.say("nothing to copy yet")
        return
    app.copy_to_clipboard(text)
    app.say(f"copied the {name}, {len(text)} characters (where the terminal lets programs use the clipboard)")
