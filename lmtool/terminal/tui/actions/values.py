"""Actions with a value that is typed behind their names, and the command lines that do the same as an action."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, TypeVar, get_args

from lmtool.core.errors import UsageError
from lmtool.core.logprobs.heat import MODES, Palette
from lmtool.terminal.tui import exports
from lmtool.terminal.tui.actions.exports import is_recording, record_into, save_snapshot
from lmtool.terminal.tui.actions.requests import no_scoring, no_server
from lmtool.terminal.tui.event_store import TraceFile
from lmtool.terminal.tui.measures import UNCERTAINTIES
from lmtool.terminal.tui.view import SPEEDS, VIEWS
from lmtool.trace.filter import parse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.terminal.tui.actions.context import ActionContext

C = TypeVar("C", bound=str)
PALETTES: tuple[Palette, ...] = get_args(Palette)


def inspect_with(app: ActionContext, *words: str) -> str:
    """`lmtool inspect`, the same source, and these words."""
    return _line("lmtool", "inspect", *app.options.source_words, *words)


def _line(*words: str) -> str:
    return " ".join(word if word.isupper() else shlex.quote(word) for word in words)


def _one_of(value: str, choices: Iterable[C], what: str) -> C:
    """The choice of this name, or the only one that begins with it. Raises `UsageError`."""
    names = list(choices)
    fits = [name for name in names if name == value] or [name for name in names if name.startswith(value)]
    if len(fits) != 1:
        raise UsageError(f"{what} {value!r} is not known", f"possible: {', '.join(names)}")
    return fits[0]


def _number(value: str, what: str, least: float = 0.0) -> float:
    """A finite number from `least` on. Raises `UsageError`."""
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not least <= number < float("inf"):
        raise UsageError(f"{what} {value!r} is no number from {least:g} on", "such as 1.5")
    return number


# Looks.


def set_heat(app: ActionContext, value: str) -> None:
    """Colour by this. Raises `UsageError`."""
    app.view.heat = _one_of(value, MODES, "heat")


def set_mode(app: ActionContext, value: str) -> None:
    """Show tokens in this way. Raises `UsageError`."""
    app.view.mode = _one_of(value, VIEWS, "view")


def set_palette(app: ActionContext, value: str) -> None:
    """Use these colours for the heat. Raises `UsageError`."""
    app.view.palette = _one_of(value, PALETTES, "palette")
    app.restyle()


def set_theme(app: ActionContext, value: str) -> None:
    """Use this theme. Raises `UsageError`."""
    app.theme = _one_of(value, sorted(app.available_themes), "theme")


def set_uncertainty(app: ActionContext, value: str) -> None:
    """Go to uncertain tokens by this figure. Raises `UsageError`."""
    app.view.uncertainty = _one_of(value, UNCERTAINTIES, "uncertainty")


def set_threshold(app: ActionContext, value: str) -> None:
    """This number of bits makes a token surprising. Raises `UsageError`."""
    app.view.threshold = _number(value.removesuffix("bits").strip(), "threshold")


# What is shown.


def set_filter(app: ActionContext, value: str) -> None:
    """Show what this lets through. Raises `UsageError`."""
    app.view.set_filter(parse(value))
    app.main.tie()


def seek(app: ActionContext, value: str) -> None:
    """Show the moment of this second. Raises `UsageError`."""
    app.view.seek(seconds(value))


def seconds(value: str) -> float:
    """A moment: `12.5`, `12.5 s`. Raises `UsageError`."""
    return _number(value.removesuffix("s").strip(), "the second")


def set_speed(app: ActionContext, value: str) -> None:
    """Play a file this many times as fast. Raises `UsageError`."""
    app.view.speed = _number(value.removesuffix("x"), "speed", SPEEDS[0])


# Files.


def record(app: ActionContext, value: str) -> None:
    """Record into this file. Raises `FileError`, `UsageError`."""
    record_into(app, app.options.folder / value)


def snapshot(app: ActionContext, value: str) -> None:
    """Write the screen into this file. Raises `FileError`."""
    save_snapshot(app, app.options.folder / value)


def export(app: ActionContext, value: str) -> None:
    """Write the stream into this file, in the form of its ending. Raises `FileError`, `UsageError`."""
    path, stream = app.options.folder / value, app.view.current
    assert stream is not None
    exports.write_to(path, exports.form_of(path), app.view, stream)
    app.say(f"wrote {path}")


# The same on a command line.


def filter_command(app: ActionContext) -> str:
    """With the filter there is, or a place for one."""
    return inspect_with(app, "--filter", "EXPR" if app.view.filter is None else app.view.filter.source)


def speed_command(app: ActionContext) -> str:
    """Only a file is played."""
    return inspect_with(app, "--speed", f"{app.view.speed:g}") if not app.view.live else ""


def at_command(app: ActionContext) -> str:
    """Only a file is opened at a second."""
    return inspect_with(app, "--at", f"{app.view.time:.3f}") if not app.view.live else ""


def record_command(app: ActionContext) -> str:
    """A file is a recording already."""
    return "" if is_recording(app) else inspect_with(app, "--record", "FILE.lmtp.jsonl")


def snapshot_command(app: ActionContext) -> str:
    """Only of a file."""
    if not isinstance(app.lines, TraceFile):
        return ""
    size = f"{app.size.width}x{app.size.height}"
    return inspect_with(app, "--at", f"{app.view.time:.3f}", "--snapshot", "FILE.svg", "--size", size)


def export_command(app: ActionContext) -> str:
    """Only of a file."""
    stream = app.view.current
    if not isinstance(app.lines, TraceFile) or stream is None:
        return ""
    return inspect_with(app, "--export", "FILE.html", "--stream", stream.label)


def raw_command(app: ActionContext) -> str:
    """All frames of a file."""
    return _line("lmtool", "trace", "show", str(app.lines.path)) if isinstance(app.lines, TraceFile) else ""


def cache_command(app: ActionContext) -> str:
    """Of a file."""
    return _line("lmtool", "cache", "why", str(app.lines.path)) if isinstance(app.lines, TraceFile) else ""


def compare_command(app: ActionContext) -> str:
    """Of two traces."""
    if not isinstance(app.other, TraceFile) or not isinstance(app.lines, TraceFile):
        return ""
    return _line("lmtool", "trace", "diff", str(app.lines.path), str(app.other.path))


def follow_command(app: ActionContext) -> str:
    """By a filter."""
    return "" if app.view.current is None else inspect_with(app, "--filter", f"sid:{app.view.current.label}")


def prompt_command(app: ActionContext) -> str:
    """Where there is a server."""
    return "" if no_server(app) else inspect_with(app, "--prompt", "TEXT")


def score_command(app: ActionContext) -> str:
    """Where there is a server."""
    return "" if no_scoring(app) else "lmtool score PROMPT TEXT"
