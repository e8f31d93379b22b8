"""Actions that change what is looked at: the cursor, the moment, the filter, the colours."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from lmtool.errors import LmtoolError
from lmtool.tui.actions.desk import Desk
from lmtool.tui.alignment import Side
from lmtool.tui.documents.comparison import ComparisonDocument
from lmtool.tui.documents.frames import indented
from lmtool.tui.documents.help import help_lines
from lmtool.tui.documents.list import ListDocument, text_document
from lmtool.tui.heat import Palette
from lmtool.tui.runs import Run, visible
from lmtool.tui.screens.asking import AskScreen
from lmtool.tui.screens.main import PANES
from lmtool.tui.view import View

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.tui.streams import Stream

_PALETTES: tuple[Palette, ...] = get_args(Palette)


class Looking(Desk):
    """Part of the app."""

    # Panes.

    def action_pane_1(self) -> None:
        """Streams."""
        self.main.show_pane(0)

    def action_pane_2(self) -> None:
        """Tokens."""
        self.main.show_pane(1)

    def action_pane_3(self) -> None:
        """One token."""
        self.main.show_pane(2)

    def action_pane_4(self) -> None:
        """Frames."""
        self.main.show_pane(3)

    def action_pane_5(self) -> None:
        """Time."""
        self.main.show_pane(4)

    def action_next_pane(self) -> None:
        """The next one."""
        self.main.show_pane((self.main.pane + 1) % len(PANES))

    def action_previous_pane(self) -> None:
        """The one before."""
        self.main.show_pane((self.main.pane - 1) % len(PANES))

    def action_zoom(self) -> None:
        """One pane or all."""
        self.main.zoomed = not self.main.zoomed
        self.main.lay_out()

    # The cursor.

    def action_down(self) -> None:
        """A row down."""
        self.main.current.document.move(1)

    def action_up(self) -> None:
        """A row up."""
        self.main.current.document.move(-1)

    def action_page_down(self) -> None:
        """A page down."""
        self.main.current.document.move(max(1, self.main.current.rows - 1))

    def action_page_up(self) -> None:
        """A page up."""
        self.main.current.document.move(-max(1, self.main.current.rows - 1))

    def action_right(self) -> None:
        """The stream's next token."""
        self.view.move_token(1)

    def action_left(self) -> None:
        """The stream's token before."""
        self.view.move_token(-1)

    def action_surprising(self) -> None:
        """The next surprising token."""
        self._surprise(1)

    def action_surprising_back(self) -> None:
        """The surprising token before."""
        self._surprise(-1)

    def _surprise(self, direction: int) -> None:
        if not self.view.surprising(direction):
            way = "after" if direction > 0 else "before"
            key = self.keys.sign("threshold")
            self.say(
                f"no token above {self.view.threshold:g} bits {way} this one in its stream; {key} changes the threshold"
            )

    def action_least_likely(self) -> None:
        """The least likely token."""
        if not self.view.least_likely():
            self.say("this stream has no logprobs")

    def action_threshold(self) -> None:
        """Another threshold."""
        self.view.next_threshold()
        self.say(f"surprising: above {self.view.threshold:g} bits, p < {2**-self.view.threshold:.2g}")

    def action_first(self) -> None:
        """To the first row."""
        self.main.current.document.move(-(10**9))

    def action_end(self) -> None:
        """To the last row, and along with what comes."""
        if PANES[self.main.pane] in ("streams", "detail", "time"):
            self.main.current.document.move(10**9)
        else:
            self.view.end()
        self.main.tie()

    # The moment.

    def action_pause(self) -> None:
        """Pause or go on."""
        self.view.pause()

    def action_frame_back(self) -> None:
        """A frame back."""
        self.view.step_frame(-1)

    def action_frame_on(self) -> None:
        """A frame on."""
        self.view.step_frame(1)

    def action_second_back(self) -> None:
        """A second back."""
        self.view.step_time(-1)

    def action_second_on(self) -> None:
        """A second on."""
        self.view.step_time(1)

    def action_slower(self) -> None:
        """Slower."""
        self._play(-1)

    def action_faster(self) -> None:
        """Faster."""
        self._play(1)

    def _play(self, steps: int) -> None:
        if self.view.live:
            self.say("what is live has a speed of its own; a file is played slower or faster")
            return
        self.view.faster(steps)
        self.say(f"plays {self.view.speed:g} times as fast as it was")

    def action_mark(self) -> None:
        """Mark a stream or a moment."""
        if PANES[self.main.pane] != "streams":
            self.view.mark_place()
            self.say(f"marked {self.view.time:.3f} s; {self.keys.sign('next_mark')} goes from mark to mark")
            return
        self.view.mark_stream()
        labels = [self.view.state.streams[i].label for i in self.view.marked]
        more = f"; {self.keys.sign('compare')} compares them" if len(labels) == 2 else ""
        self.say(f"marked: {' and '.join(labels) or 'no stream'}{more}")

    def action_next_mark(self) -> None:
        """To the next mark."""
        place = self.view.next_place()
        self.say("nothing is marked; m marks this moment" if place is None else f"mark at {place:.3f} s")

    # Looks.

    def action_heat(self) -> None:
        """Next heat."""
        self.view.next_heat()

    def action_palette_colors(self) -> None:
        """Next colours."""
        self.view.palette = _PALETTES[(_PALETTES.index(self.view.palette) + 1) % len(_PALETTES)]
        self.restyle()
        self.say(f"heat in {self.view.palette}")

    def action_theme(self) -> None:
        """Next theme."""
        if self.no_color:
            self.say("there are no colours: NO_COLOR is set, or --color never")
            return
        names = sorted(self.available_themes)
        self.theme = names[(names.index(self.theme) + 1) % len(names)]
        self.say(f"theme {self.theme}")

    def action_mode(self) -> None:
        """Next way to show tokens."""
        self.view.next_mode()

    def action_invisible(self) -> None:
        """Show blanks or not."""
        self.view.invisible = not self.view.invisible
        self.say("blanks are shown as signs" if self.view.invisible else "blanks are blank")

    def action_follow(self) -> None:
        """One stream or all."""
        if self.view.current is not None:
            self.view.follow_stream()

    def action_filter(self) -> None:
        """Ask for a filter."""
        from lmtool.trace.filter import FORMS, parse

        def wrong(text: str) -> str:
            try:
                parse(text)
            except LmtoolError as error:
                return "\n".join([error.message, *error.hints])
            return ""

        def take(text: str | None) -> None:
            if text is not None:
                self.view.set_filter(parse(text))
                self.main.tie()
                self.changed()

        old = "" if self.view.filter is None else self.view.filter.source
        self.push_screen(AskScreen("Filter", FORMS, self.looks, value=old, check=wrong), take)

    def action_clear(self) -> None:
        """Step back: the zoom, then the filter, then the followed stream."""
        if self.main.zoomed:
            self.action_zoom()
        elif self.view.filter is not None:
            self.view.set_filter(None)
        elif self.view.followed is not None:
            self.view.follow_stream()

    # Reading.

    def action_help(self) -> None:
        """Keys and legend."""
        self.read("Help", ListDocument(help_lines(self.keys, PANES[self.main.pane], self.view.heat)))

    def action_palette(self) -> None:
        """The palette of commands."""
        self.action_command_palette()

    def action_raw(self) -> None:
        """The whole frame."""
        frame = self.view.frame_now
        if frame is None:
            self.say("nothing went over the wire yet")
            return
        log, text = self.view.state.frames, self.main.frame_text(frame)
        title = (
            f"Frame {frame} at {log.times[frame]:.6f} s, connection {log.connections[frame]}, {len(text)} characters"
        )
        self.read(title, text_document(indented(text)))

    def action_compare(self) -> None:
        """Compare two streams."""
        sides = self._sides_of_two_traces() if self.other is not None and len(self.view.marked) != 2 else self._sides()
        if isinstance(sides, str):
            self.say(sides)
        else:
            self.read(
                f"Compare {' with '.join(visible(side.stream.label) for side in sides)}",
                ComparisonDocument(*sides, self.glyphs),
            )

    def _sides(self) -> tuple[Side, Side] | str:
        """The marked streams; without marks a branch or score and what it comes from, or two of the same prompt."""
        view, here = self.view, self.view.current
        if len(view.marked) == 2:
            a, b = (view.state.streams[i] for i in view.marked)
            return Side(view, a), Side(view, b)
        if here is None:
            return "no stream yet"
        origin = self.branches.origin(here.label)
        there = view.state.find(origin) if origin is not None else _alike(view.streams(), here)
        if there is None:
            return f"mark two streams in pane 1 with {self.keys.sign('mark')}; none has the prompt of {here.label}"
        return (
            (Side(view, there), Side(view, here)) if there.index < here.index else (Side(view, here), Side(view, there))
        )

    def _sides_of_two_traces(self) -> tuple[Side, Side] | str:
        other, here = self.other, self.view.current
        assert other is not None
        try:
            while not other.loaded and not other.load(5.0):
                pass
        except LmtoolError as error:
            return error.message
        if here is None:
            return "no stream yet"
        named, alike = other.state.find(here.label), _alike(other.state.streams, here)
        there = named if named is not None and (alike is None or named.prompt == here.prompt) else alike
        there = there or next(iter(other.state.streams), None)
        if there is None:
            return f"{other.path.name} has no stream"
        return Side(self.view, here), Side(View(other.state, other, live=False), there)

    def action_tree(self) -> None:
        """The tree of branches."""
        stream = self.view.current
        if stream is None:
            self.say("no stream yet")
            return
        columns = max(20, self.size.width * 96 // 100 - 4)
        lines = self.branches.lines(self.view, stream.label, columns, ascii_only=self.options.ascii)
        if len(lines) < 2:
            key = self.keys.sign("branch")
            lines += [
                [],
                [Run(f"no branches yet: {key} on an alternative (pane 3) goes on from it in a new stream", "dim")],
            ]

        def go(target: int) -> None:
            self.view.choose_stream(target)
            self.main.tie()

        self.read("Branches", ListDocument(lines, cursor=self.glyphs.cursor), go)


def _alike(streams: Iterable[Stream], here: Stream) -> Stream | None:
    """The latest other stream of the same prompt; a score is compared with what was generated, if there is such."""
    same = [stream for stream in streams if stream is not here and stream.prompt == here.prompt]
    kinds = ("GEN", "SCORE") if here.kind == "SCORE" else (here.kind,)
    found = [stream for kind in reversed(kinds) for stream in same if stream.kind == kind]
    return found[-1] if found else None
