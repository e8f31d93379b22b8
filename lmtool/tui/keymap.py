"""The keys: each action with its default keys, name, help and what it runs; and the command palette made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Provider

from lmtool.tui.action import EVERY, FIRST, Action
from lmtool.tui.actions import exports, navigation, requests

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.command import Hits

    from lmtool.tui.actions.context import ActionContext

LAST = 10**9
"""Rows: further than any document has."""

# fmt: off
ACTIONS: tuple[Action[ActionContext], ...] = (
    Action("pane_1", ("1",), "Streams", "look at the table of streams", lambda app: app.main.show_pane(0)),
    Action("pane_2", ("2",), "Tokens", "look at the tokens", lambda app: app.main.show_pane(1)),
    Action("pane_3", ("3",), "Token", "look at the alternatives of one token", lambda app: app.main.show_pane(2)),
    Action("pane_4", ("4",), "Frames", "look at what went over the wire", lambda app: app.main.show_pane(3)),
    Action("pane_5", ("5",), "Time", "look at when tokens arrived", lambda app: app.main.show_pane(4)),
    Action("next_pane", ("tab",), "Next pane", "go to the next pane", lambda app: app.main.show_next_pane(1)),
    Action("previous_pane", ("shift+tab",), "Pane before", "go to the pane before",
           lambda app: app.main.show_next_pane(-1)),
    Action("zoom", ("z",), "Zoom", "show one pane only, or all again", lambda app: app.main.zoom()),
    Action("pause", ("space",), "Pause", "stop the screen, or go on; what arrives meanwhile is kept",
           lambda app: app.view.pause(), footer=FIRST),
    Action("filter", ("/",), "Filter", "show only what a filter lets through",
           navigation.ask_filter, panes="streams", footer=FIRST),
    Action("down", ("j", "down"), "Down", "a row down: the next stream, token, bar or frame",
           lambda app: app.main.current.document.move(1), panes=EVERY),
    Action("up", ("k", "up"), "Up", "a row up", lambda app: app.main.current.document.move(-1), panes=EVERY),
    Action("left", ("h", "left"), "Back", "to the token before, in the same stream",
           lambda app: app.view.move_token(-1), panes="tokens detail"),
    Action("right", ("l", "right"), "On", "to the next token of the same stream",
           lambda app: app.view.move_token(1), panes="tokens detail"),
    Action("page_down", ("pagedown", "ctrl+d"), "Page down", "a page down", lambda app: app.main.move_page(1)),
    Action("page_up", ("pageup", "ctrl+u"), "Page up", "a page up", lambda app: app.main.move_page(-1)),
    Action("surprising", ("n",), "Surprising", "to the next surprising token of the stream",
           lambda app: navigation.surprising(app, 1), panes="tokens", footer="tokens"),
    Action("surprising_back", ("N",), "Surprising before", "to the surprising token before",
           lambda app: navigation.surprising(app, -1), panes="tokens"),
    Action("least_likely", ("u",), "Least likely", "to the least likely token of the stream",
           navigation.least_likely, panes="tokens", footer="tokens"),
    Action("threshold", ("t",), "Threshold", "how many bits make a token surprising",
           navigation.threshold, panes="tokens"),
    Action("first", ("g", "home"), "First", "to the first row",
           lambda app: app.main.current.document.move(-LAST), panes="tokens frames"),
    Action("end", ("G", "end"), "End", "to the last row, and follow new ones", navigation.end, panes="tokens frames"),
    Action("raw", ("enter",), "Raw", "the whole frame that brought the token",
           navigation.raw_frame, panes="tokens detail frames", footer="detail frames"),
    Action("frame_back", ("[",), "Frame back", "show the moment one frame before",
           lambda app: app.view.step_frame(-1), panes="frames time", footer="frames"),
    Action("frame_on", ("]",), "Frame on", "show the moment of the next frame",
           lambda app: app.view.step_frame(1), panes="frames time", footer="frames"),
    Action("second_back", ("{",), "1 s back", "show the moment one second before",
           lambda app: app.view.step_time(-1), panes="time", footer="time"),
    Action("second_on", ("}",), "1 s on", "show the moment one second later",
           lambda app: app.view.step_time(1), panes="time", footer="time"),
    Action("slower", ("<",), "Slower", "play a file slower",
           lambda app: navigation.play(app, -1), panes="time", unavailable=navigation.is_live),
    Action("faster", (">",), "Faster", "play a file faster",
           lambda app: navigation.play(app, 1), panes="time", unavailable=navigation.is_live),
    Action("heat", ("c",), "Heat", "colour by: probability, surprisal, entropy, rank, gap, stream",
           lambda app: app.view.next_heat(), panes="tokens", footer=EVERY),
    Action("palette_colors", ("C",), "Colours", "other colours for the heat", navigation.next_palette, panes="tokens"),
    Action("mode", ("v",), "View", "tokens interleaved, split, as text, as a table",
           lambda app: app.view.next_mode(), panes="tokens", footer=EVERY),
    Action("invisible", ("w",), "Blanks", "show blanks and line feeds as signs", navigation.blanks, panes="tokens"),
    Action("clear", ("escape",), "Clear", "clear the filter, or show all panes again", navigation.clear),
    Action("follow", ("f",), "Follow", "only the tokens of this stream, or of all again",
           lambda app: app.view.follow_stream(), panes="streams tokens", footer="streams"),
    Action("mark", ("m",), "Mark", "mark the stream to compare it (in the table), or the moment (elsewhere)",
           navigation.mark, panes="streams time", footer="streams"),
    Action("next_mark", ("'",), "Next mark", "to the next marked moment", navigation.next_mark, panes="time"),
    Action("branch", ("b",), "Branch", "go on from the chosen alternative in a new stream",
           requests.branch, panes="tokens detail", footer=EVERY, unavailable=requests.no_server),
    Action("bias_out", ("x",), "Bias out", "go on without the chosen alternative in a new stream",
           requests.bias_out, panes="detail", footer="detail", unavailable=requests.no_server),
    Action("tree", ("B",), "Tree", "the tree of branches",
           navigation.tree, panes="streams detail", footer="detail", unavailable=navigation.no_stream),
    Action("compare", ("=",), "Compare", "compare two streams where they part",
           navigation.compare, panes="streams", footer=EVERY),
    Action("prompt", ("i",), "Prompt", "send a prompt",
           requests.prompt, panes="streams", footer="streams", unavailable=requests.no_server),
    Action("demo", ("d",), "Demo", "send four prompts that race each other",
           requests.demo, panes="streams", unavailable=requests.no_server),
    Action("score", ("S",), "Score", "have the stream's tokens scored after its own prompt, as they are or edited",
           requests.score, panes="streams", unavailable=requests.no_scoring),
    Action("cancel", ("D",), "Cancel", "end a stream of your own", requests.cancel, panes="streams"),
    Action("copy", ("y",), "Copy", "copy the token, the stream's text, or the frame",
           exports.copy, panes="tokens detail frames"),
    Action("export", ("e",), "Export", "write the stream to a file",
           exports.export, panes="streams", unavailable=navigation.no_stream),
    Action("record", ("r",), "Record", "write everything from now on to a trace, or stop that",
           exports.record, footer=EVERY, unavailable=exports.is_recording),
    Action("snapshot", ("s",), "Snapshot", "write this screen as an SVG picture", exports.snapshot, footer=EVERY),
    Action("theme", ("T",), "Theme", "the next theme", navigation.next_theme, unavailable=navigation.no_colors),
    Action("help", ("?", "f1"), "Help", "the keys of this pane, and what the colours mean",
           navigation.show_help, footer=EVERY),
    Action("palette", ("ctrl+p",), "Palette", "find an action by its name",
           lambda app: app.action_command_palette(), footer=EVERY),
    Action("quit", ("q", "ctrl+c", "ctrl+q"), "Quit", "leave", lambda app: app.exit(0), footer=EVERY),
)
# fmt: on


class ActionsProvider(Provider):
    """The command palette: finds actions by what they do."""

    @property
    def _inspector(self) -> ActionContext:
        return cast("ActionContext", self.app)

    def _texts(self, action: Action[ActionContext]) -> tuple[str, str]:
        keys = self._inspector.keys.signs(action.id)
        return f"{action.short}: {action.sentence}", f"key {keys}" if keys else "no key"

    def _runner(self, action: Action[ActionContext]) -> Callable[[], None]:
        return lambda: self._inspector.do(action)

    async def discover(self) -> Hits:
        """All actions."""
        for action in ACTIONS:
            if action.id != "palette":
                name, keys = self._texts(action)
                yield DiscoveryHit(name, self._runner(action), help=keys)

    async def search(self, query: str) -> Hits:
        """Actions that match."""
        matcher = self.matcher(query)
        for action in ACTIONS:
            name, keys = self._texts(action)
            score = matcher.match(name)
            if score > 0 and action.id != "palette":
                yield Hit(score, matcher.highlight(name), self._runner(action), help=keys)
