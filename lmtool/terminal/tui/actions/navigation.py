"""Actions on the view: cursor, moment, filter, colours; and the screens over the panes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar, get_args

from lmtool.core.errors import LmtoolError, UsageError
from lmtool.core.logprobs.heat import MODES, Palette
from lmtool.terminal.tui.alignment import Side
from lmtool.terminal.tui.documents.comparison import ComparisonDocument, prefix_lines
from lmtool.terminal.tui.documents.document import ListDocument, text_document
from lmtool.terminal.tui.documents.frames import indented
from lmtool.terminal.tui.documents.help import entries, help_lines
from lmtool.terminal.tui.documents.what_if import WhatIfDocument
from lmtool.terminal.tui.event_store import TraceFile
from lmtool.terminal.tui.measures import UNCERTAINTIES
from lmtool.terminal.tui.runs import Run, visible
from lmtool.terminal.tui.screens.dialogs import AskScreen, FinderScreen, WhatIfScreen
from lmtool.terminal.tui.view import SPEEDS, VIEWS, View
from lmtool.trace.filter import FORMS, parse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.terminal.tui.actions.context import ActionContext
    from lmtool.terminal.tui.documents.help import Entry
    from lmtool.terminal.tui.streams import Stream

C = TypeVar("C", bound=str)
PALETTES: tuple[Palette, ...] = get_args(Palette)


def no_stream(app: ActionContext) -> str:
    """Reason that there is no current stream; empty if there is one."""
    return "no stream yet" if app.view.current is None else ""


def is_live(app: ActionContext) -> str:
    """Reason that the speed cannot change; empty if it can."""
    return "what is live has a speed of its own; a file is played slower or faster" if app.view.live else ""


def no_colors(app: ActionContext) -> str:
    """Reason that themes cannot be used; empty if they can."""
    return "there are no colours: NO_COLOR is set, or --color never" if app.no_color else ""


# The cursor.


def surprising(app: ActionContext, direction: int) -> None:
    """Move to the next surprising token of the stream, or for -1 to the previous one."""
    if not app.view.surprising(direction):
        way, key = "after" if direction > 0 else "before", app.keys.sign("threshold")
        limit = f"{app.view.threshold:g} bits"
        app.say(f"no token above {limit} {way} this one in its stream; {key} changes the threshold")


def uncertain(app: ActionContext, steps: int) -> None:
    """Move to the most uncertain token of the stream, then to the next most, or for -1 back up."""
    by = app.view.uncertainty
    if not app.view.uncertain(steps):
        app.say("this stream has no logprobs" if by == "surprisal" else f"no token of this stream has a known {by}")


def what_if(app: ActionContext) -> None:
    """Try other sampling parameters on the recorded tokens of the current stream."""
    stream = app.view.current
    if stream is None or app.view.token is None:
        app.say("no token yet")
        return
    if app.view.row is None:  # what arrives meanwhile must not move what is looked at
        app.view.choose_token(app.view.token)
    app.push_screen(
        WhatIfScreen(app.view, WhatIfDocument(app.view, stream, app.glyphs), app.looks, app.glyphs),
        lambda _: app.main.tie(),
    )


def threshold(app: ActionContext) -> None:
    """Select the next threshold of surprise."""
    app.view.next_threshold()
    app.say(f"surprising: above {app.view.threshold:g} bits, p < {2**-app.view.threshold:.2g}")


def end(app: ActionContext) -> None:
    """Move to the last row and follow new ones."""
    if app.main.pane_name in ("streams", "detail", "time"):
        app.main.current.document.move(10**9)
    else:
        app.view.end()
    app.main.tie()


# The moment.


def play(app: ActionContext, steps: int) -> None:
    """Play a file faster; slower for negative steps."""
    app.view.faster(steps)
    app.say(f"plays {app.view.speed:g} times as fast as recorded")


def mark(app: ActionContext) -> None:
    """Mark a stream or a moment."""
    view = app.view
    if app.main.pane_name != "streams":
        view.mark_moment()
        app.say(f"marked {view.time:.3f} s; {app.keys.sign('next_mark')} goes from mark to mark")
        return
    if view.current is None:
        app.say(no_stream(app))
        return
    view.mark_stream()
    labels = [view.state.streams[i].label for i in view.stream_marks]
    more = f"; {app.keys.sign('compare')} compares them" if len(labels) == 2 else ""
    app.say(f"marked: {' and '.join(labels) or 'no stream'}{more}")


def next_mark(app: ActionContext) -> None:
    """Move to the next marked moment."""
    place, key = app.view.next_mark(), app.keys.sign("mark")
    app.say(f"nothing is marked; {key} marks this moment" if place is None else f"mark at {place:.3f} s")


# Looks and filters.


def next_palette(app: ActionContext) -> None:
    """Select the next palette."""
    app.view.palette = PALETTES[(PALETTES.index(app.view.palette) + 1) % len(PALETTES)]
    app.restyle()
    app.say(f"heat in {app.view.palette}")


def next_theme(app: ActionContext) -> None:
    """Select the next theme."""
    names = sorted(app.available_themes)
    app.theme = names[(names.index(app.theme) + 1) % len(names)]
    app.say(f"theme {app.theme}")


def blanks(app: ActionContext) -> None:
    """Toggle visible blanks."""
    app.view.show_blanks = not app.view.show_blanks
    app.say("blanks are shown as signs" if app.view.show_blanks else "blanks are blank")


def ask_filter(app: ActionContext) -> None:
    """Ask for a filter."""

    def problem(text: str) -> str:
        try:
            parse(text)
        except LmtoolError as error:
            return "\n".join([error.message, *error.hints])
        return ""

    def apply(text: str | None) -> None:
        if text is not None:
            app.view.set_filter(parse(text))
            app.main.tie()
            app.changed()

    old = "" if app.view.filter is None else app.view.filter.source
    app.push_screen(AskScreen("Filter", FORMS, app.looks, value=old, check=problem), apply)


def clear(app: ActionContext) -> None:
    """Undo the zoom, else the filter, else following a stream."""
    if app.main.zoomed:
        app.main.zoom()
    elif app.view.filter is not None:
        app.view.set_filter(None)
    elif app.view.followed_stream is not None:
        app.view.follow_stream()


# Over the panes.


def explain_pane(app: ActionContext) -> None:
    """Show the help of this pane: content, keys, colours."""
    app.read("This pane", ListDocument(help_lines(app.keys, app.main.pane_name, app.view.heat)))


def find_action(app: ActionContext) -> None:
    """Open the list of all actions and words, and run the chosen one."""
    listed = entries(
        app.keys,
        app.main.pane_name,
        lambda action: action.command(app) if action.command is not None else "",
        lambda action: action.unavailable(app) if action.unavailable is not None else "",
    )

    def run(entry: Entry | None) -> None:
        if entry is None:
            return
        if not entry.id:
            app.explain(entry.name)
        elif entry.value:
            app.do_with(app.keys.by_id(entry.id), entry.value)
        else:
            app.do(app.keys.by_id(entry.id))

    app.push_screen(FinderScreen(listed, app.keys, app.main.pane_title, app.looks, app.glyphs), run)


def ask_moment(app: ActionContext) -> None:
    """Ask for a second of the trace."""

    def go(text: str | None) -> None:
        if text:
            seek(app, text)
            app.changed()

    def problem(text: str) -> str:
        try:
            seconds(text)
        except LmtoolError as error:
            return error.message if text else ""
        return ""

    hint = f"seconds from the beginning, 0 to {app.view.state.now:.3f}"
    app.push_screen(AskScreen("Go to second", hint, app.looks, check=problem), go)


def raw_frame(app: ActionContext) -> None:
    """Show the complete frame that carried the token."""
    frame = app.view.current_frame
    if frame is None:
        app.say("nothing went over the wire yet")
        return
    log, text = app.view.state.frames, app.main.frame_text(frame)
    place = f"Frame {frame} at {log.times[frame]:.6f} s, connection {log.connections[frame]}"
    app.read(f"{place}, {len(text)} characters", text_document(indented(text)))


def compare(app: ActionContext) -> None:
    """Compare two streams."""
    two_traces = app.other is not None and len(app.view.stream_marks) != 2
    sides = _sides_of_two_traces(app) if two_traces else _sides(app)
    if isinstance(sides, str):
        app.say(sides)
        return
    title = f"Compare {' with '.join(visible(side.stream.label) for side in sides)}"
    app.read(title, ComparisonDocument(*sides, app.glyphs))


def _sides(app: ActionContext) -> tuple[Side, Side] | str:
    """The marked streams, else a branch or score with its origin, else two streams of the same prompt."""
    view, here = app.view, app.view.current
    if len(view.stream_marks) == 2:
        a, b = (view.state.streams[i] for i in view.stream_marks)
        return _side(app, a), _side(app, b)
    if here is None:
        return no_stream(app)
    origin = app.branches.origin(here.label)
    there = view.state.find(origin) if origin is not None else _alike(view.streams(), here)
    if there is None:
        return f"mark two streams in pane 1 with {app.keys.sign('mark')}; none has the prompt of {here.label}"
    first, second = sorted((here, there), key=lambda stream: stream.index)
    return _side(app, first), _side(app, second)


def _side(app: ActionContext, stream: Stream) -> Side:
    """One side of a comparison; for a branch with its origin."""
    label, begun = app.branches.beginning(stream.label)
    origin = app.view.state.find(label) if begun else None
    scored = app.view.state.find(app.branches.scores.get(stream.label, ""))
    if scored is not None and scored.api is not None:  # behind the ids of a prompt that was sent as something else
        return Side(app.view, stream, (scored, b""))
    return Side(app.view, stream, None if origin is None else (origin, begun))


def _sides_of_two_traces(app: ActionContext) -> tuple[Side, Side] | str:
    other, here = app.other, app.view.current
    assert other is not None
    try:
        while isinstance(other, TraceFile) and not other.is_loaded and not other.load(5.0):
            pass
    except LmtoolError as error:
        return error.message
    if here is None:
        return no_stream(app)
    same_label, alike = other.state.find(here.label), _alike(other.state.streams, here)
    there = same_label if same_label is not None and (alike is None or same_label.prompt == here.prompt) else alike
    there = there or next(iter(other.state.streams), None)
    if there is None:
        return f"{other.path.name if isinstance(other, TraceFile) else 'the second server'} has no stream yet"
    return Side(app.view, here), Side(View(other.state, other, live=False), there)


def _alike(streams: Iterable[Stream], here: Stream) -> Stream | None:
    """The latest other stream of the same prompt; for a score, a generated one if possible."""
    same = [stream for stream in streams if stream is not here and stream.prompt == here.prompt]
    kinds = ("GEN", "SCORE") if here.kind == "SCORE" else (here.kind,)
    alike = [stream for kind in reversed(kinds) for stream in same if stream.kind == kind]
    return alike[-1] if alike else None


def prefixes(app: ActionContext) -> None:
    """Show the prefixes that prompts share, and the reasons that the rest was recomputed."""
    app.read("Prompts", ListDocument(prefix_lines(app.view), cursor=app.glyphs.cursor), partial(_go_to_stream, app))


def _go_to_stream(app: ActionContext, number: int) -> None:
    app.view.choose_stream(number)
    app.main.tie()


def tree(app: ActionContext) -> None:
    """Show the tree of branches."""
    stream = app.view.current
    assert stream is not None
    columns = max(20, app.size.width * 96 // 100 - 4)
    lines = app.branches.lines(app.view, stream.label, columns, ascii_only=app.options.ascii)
    if len(lines) < 2:
        key = app.keys.sign("branch")
        advice = f"no branches yet: {key} on an alternative (pane 3) goes on from it in a new stream"
        lines += [[], [Run(advice, "dim")]]
    app.read("Branches", ListDocument(lines, cursor=app.glyphs.cursor), partial(_go_to_stream, app))


# Values typed after the name of an action.


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


def set_heat(app: ActionContext, value: str) -> None:
    """Colour tokens by this heat mode. Raises `UsageError`."""
    app.view.heat = _one_of(value, MODES, "heat")


def set_mode(app: ActionContext, value: str) -> None:
    """Select this token view. Raises `UsageError`."""
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
    """Set the threshold of surprise in bits. Raises `UsageError`."""
    app.view.threshold = _number(value.removesuffix("bits").strip(), "threshold")


def set_filter(app: ActionContext, value: str) -> None:
    """Filter streams and tokens. Raises `UsageError`."""
    app.view.set_filter(parse(value))
    app.main.tie()


def seek(app: ActionContext, value: str) -> None:
    """Show the moment of this second. Raises `UsageError`."""
    app.view.seek(seconds(value))


def seconds(value: str) -> float:
    """Parse a moment in seconds: `12.5`, `12.5 s`. Raises `UsageError`."""
    return _number(value.removesuffix("s").strip(), "the second")


def set_speed(app: ActionContext, value: str) -> None:
    """Play a file this many times as fast. Raises `UsageError`."""
    app.view.speed = _number(value.removesuffix("x"), "speed", SPEEDS[0])
