"""Table of actions: default keys, name, help, implementation, equivalent command line."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lmtool.core.logprobs.heat import MODES
from lmtool.terminal.tui.action import EVERY, FIRST, Action, Value
from lmtool.terminal.tui.actions import exports, navigation, requests
from lmtool.terminal.tui.actions.navigation import PALETTES
from lmtool.terminal.tui.event_store import TraceFile
from lmtool.terminal.tui.measures import UNCERTAINTIES
from lmtool.terminal.tui.view import VIEWS

if TYPE_CHECKING:
    from lmtool.terminal.tui.actions.context import ActionContext

LAST = 10**9
"""Rows: further than any document has."""


def inspect_with(app: ActionContext, *words: str) -> str:
    """Command line of `lmtool inspect` with the same source and these words."""
    return _line("lmtool", "inspect", *app.options.source_words, *words)


def _line(*words: str) -> str:
    return " ".join(word if word.isupper() else shlex.quote(word) for word in words)


def of_file(app: ActionContext, *words: str) -> str:
    """Command line of `lmtool WORDS FILE` for an opened file; empty for a live source."""
    return _line("lmtool", *words, str(app.store.path)) if isinstance(app.store, TraceFile) else ""


def snapshot_command(app: ActionContext) -> str:
    """Command line that writes this moment of a file as a picture; empty for a live source."""
    moment, size = f"{app.view.time:.3f}", f"{app.size.width}x{app.size.height}"
    words = ("--at", moment, "--snapshot", "FILE.svg", "--size", size)
    return inspect_with(app, *words) if isinstance(app.store, TraceFile) else ""


def export_command(app: ActionContext) -> str:
    """Command line that exports the current stream of a file; empty for a live source."""
    stream = app.view.current
    if not isinstance(app.store, TraceFile) or stream is None:
        return ""
    return inspect_with(app, "--export", "FILE.html", "--stream", stream.label)


def compare_command(app: ActionContext) -> str:
    """Command line that compares two opened traces; empty unless there are two."""
    if not isinstance(app.other, TraceFile) or not isinstance(app.store, TraceFile):
        return ""
    return _line("lmtool", "trace", "diff", str(app.store.path), str(app.other.path))


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
           lambda app: app.view.pause(), footer=FIRST, synonyms="stop freeze hold play"),
    Action("filter", ("/",), "Filter", "show only what a filter lets through",
           navigation.ask_filter, panes="streams", footer=FIRST, synonyms="find search grep",
           value=Value("filter", "EXPR", navigation.set_filter), command=lambda app: inspect_with(
               app, "--filter", "EXPR" if app.view.filter is None else app.view.filter.source)),
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
    Action("least_likely", ("u",), "Uncertain", "to the most uncertain token of the stream; again: to the next most",
           lambda app: navigation.uncertain(app, 1), panes="tokens", footer="tokens",
           synonyms="least likely surprisal entropy",
           value=Value("uncertain", "|".join(UNCERTAINTIES), navigation.set_uncertainty)),
    Action("more_uncertain", ("U",), "Uncertain before", "back to the more uncertain token",
           lambda app: navigation.uncertain(app, -1), panes="tokens"),
    Action("what_if", ("W",), "What if", "another temperature, top-p, top-k, min-p over what was recorded: who stays, "
           "what the seed would have drawn", navigation.what_if, panes="tokens detail", footer="tokens detail",
           synonyms="sampling resample nucleus seed sliders"),
    Action("threshold", ("t",), "Threshold", "how many bits make a token surprising",
           navigation.threshold, panes="tokens", value=Value("threshold", "BITS", navigation.set_threshold)),
    Action("first", ("g", "home"), "First", "to the first row",
           lambda app: app.main.current.document.move(-LAST), panes="tokens frames"),
    Action("end", ("G", "end"), "End", "to the last row, and follow new ones", navigation.end, panes="tokens frames"),
    Action("raw", ("enter",), "Raw", "the whole frame that brought the token",
           navigation.raw_frame, panes="tokens detail frames", footer="detail frames",
           synonyms="json wire message", command=lambda app: of_file(app, "trace", "show")),
    Action("frame_back", ("[",), "Frame back", "show the moment one frame before",
           lambda app: app.view.step_frame(-1), panes="frames time", footer="frames"),
    Action("frame_on", ("]",), "Frame on", "show the moment of the next frame",
           lambda app: app.view.step_frame(1), panes="frames time", footer="frames"),
    Action("second_back", ("{",), "1 s back", "show the moment one second before",
           lambda app: app.view.step_time(-1), panes="time", footer="time"),
    Action("second_on", ("}",), "1 s on", "show the moment one second later",
           lambda app: app.view.step_time(1), panes="time", footer="time"),
    Action("seek", ("@",), "Go to", "go to a second of the trace", navigation.ask_moment, panes="time",
           synonyms="seek scrub jump", value=Value("at", "SECONDS", navigation.seek),
           command=lambda app: "" if app.view.live else inspect_with(app, "--at", f"{app.view.time:.3f}")),
    Action("slower", ("<",), "Slower", "play a file slower",
           lambda app: navigation.play(app, -1), panes="time", unavailable=navigation.is_live),
    Action("faster", (">",), "Faster", "play a file faster",
           lambda app: navigation.play(app, 1), panes="time", unavailable=navigation.is_live,
           value=Value("speed", "N", navigation.set_speed),
           command=lambda app: "" if app.view.live else inspect_with(app, "--speed", f"{app.view.speed:g}")),
    Action("heat", ("c",), "Heat", "colour by: probability, surprisal, entropy, rank, gap, stream",
           lambda app: app.view.next_heat(), panes="tokens", footer=EVERY, synonyms="color",
           value=Value("heat", "|".join(MODES), navigation.set_heat),
           command=lambda app: inspect_with(app, "--heat", app.view.heat)),
    Action("palette_colors", ("C",), "Colours", "other colours for the heat", navigation.next_palette, panes="tokens",
           value=Value("palette", "|".join(PALETTES), navigation.set_palette),
           command=lambda app: inspect_with(app, "--palette", app.view.palette)),
    Action("mode", ("v",), "View", "streams side by side, one token a line, one stream's text, a table of figures",
           lambda app: app.view.next_mode(), panes="tokens", footer=EVERY, synonyms="mode layout",
           value=Value("view", "|".join(VIEWS), navigation.set_mode),
           command=lambda app: inspect_with(app, "--view", app.view.mode)),
    Action("invisible", ("w",), "Blanks", "show blanks and line feeds as signs", navigation.blanks, panes="tokens"),
    Action("clear", ("escape",), "Clear", "clear the filter, or show all panes again", navigation.clear),
    Action("follow", ("f",), "Follow", "only the tokens of this stream, or of all again",
           lambda app: app.view.follow_stream(), panes="streams tokens", footer="streams",
           command=lambda app: "" if app.view.current is None else inspect_with(
               app, "--filter", f"sid:{app.view.current.label}")),
    Action("mark", ("m",), "Mark", "mark the stream to compare it (in the table), or the moment (elsewhere)",
           navigation.mark, panes="streams time", footer="streams"),
    Action("next_mark", ("'",), "Next mark", "to the next marked moment", navigation.next_mark, panes="time"),
    Action("branch", ("b",), "Branch", "go on from the chosen alternative in a new stream",
           requests.branch, panes="tokens detail", footer=EVERY, unavailable=requests.no_branch,
           synonyms="fork regenerate reroll continue another", value=Value("branch", "TEXT", requests.branch_with)),
    Action("bias_out", ("x",), "Bias out", "go on without the chosen alternative in a new stream",
           requests.bias_out, panes="detail", footer="detail", unavailable=requests.no_branch,
           synonyms="ban forbid exclude"),
    Action("tree", ("B",), "Tree", "the tree of branches",
           navigation.tree, panes="streams detail", footer="detail", unavailable=navigation.no_stream),
    Action("compare", ("=",), "Compare", "compare two streams where they part",
           navigation.compare, panes="streams", footer=EVERY, synonyms="diff difference",
           command=compare_command),
    Action("prefixes", ("P",), "Prefixes", "what prompts have in common, why the rest was computed again",
           navigation.prefixes, panes="streams", unavailable=navigation.no_stream,
           synonyms="cache prefix cached tokens why", command=lambda app: of_file(app, "cache", "why")),
    Action("prompt", ("i",), "Prompt", "send a prompt",
           requests.prompt, panes="streams", footer="streams", unavailable=requests.no_server,
           synonyms="ask generate chat", value=Value("prompt", "TEXT", requests.send_prompt),
           command=lambda app: "" if requests.no_server(app) else inspect_with(app, "--prompt", "TEXT")),
    Action("demo", ("d",), "Demo", "send four prompts that race each other",
           requests.demo, panes="streams", unavailable=requests.no_server, command=lambda _: "lmtool inspect"),
    Action("score", ("S",), "Score", "have the stream's tokens scored after its own prompt, as they are or edited",
           requests.score, panes="streams", unavailable=requests.no_server, synonyms="logprobs perplexity",
           value=Value("score", "[PROMPT =>] TEXT", requests.score_text),
           command=lambda app: "" if requests.no_server(app) else "lmtool score PROMPT TEXT"),
    Action("cancel", ("D",), "Cancel", "end a stream of your own", requests.cancel, panes="streams"),
    Action("copy", ("y",), "Copy", "copy the token, the stream's text, or the frame",
           exports.copy, panes="tokens detail frames", synonyms="clipboard yank"),
    Action("export", ("e",), "Export", "write the stream to a file",
           exports.export, panes="streams", unavailable=navigation.no_stream, synonyms="save html csv",
           value=Value("export", "FILE", lambda app, value: exports.export_into(app, app.options.folder / value)),
           command=export_command),
    Action("record", ("r",), "Record", "write everything from now on to a trace, or stop that",
           exports.record, footer=EVERY, unavailable=exports.is_recording, synonyms="save keep",
           value=Value("record", "FILE", lambda app, value: exports.record_into(app, app.options.folder / value)),
           command=lambda app: "" if exports.is_recording(app) else inspect_with(app, "--record", "FILE.lmtp.jsonl")),
    Action("snapshot", ("s",), "Snapshot", "write this screen as an SVG picture", exports.snapshot, footer=EVERY,
           synonyms="screenshot image save",
           value=Value("snapshot", "FILE", lambda app, value: exports.save_snapshot(app, app.options.folder / value)),
           command=snapshot_command),
    Action("theme", ("T",), "Theme", "the next theme", navigation.next_theme, unavailable=navigation.no_colors,
           synonyms="dark light colors", value=Value("theme", "NAME", navigation.set_theme),
           command=lambda app: inspect_with(app, "--theme", app.theme)),
    Action("pane_help", ("f1",), "This pane", "what this pane shows, its keys, and what the colours mean",
           navigation.explain_pane, synonyms="help legend scale", command=lambda _: "lmtool docs inspector"),
    Action("help", ("?",), "Help", "every action with its key and its command line, every word of the screen",
           navigation.find_action, footer=EVERY),
    Action("palette", (":", "ctrl+p"), "Run", "type an action, such as  heat entropy", navigation.find_action,
           footer=EVERY),
    Action("quit", ("q", "ctrl+c", "ctrl+q"), "Quit", "leave", lambda app: app.exit(0), footer=EVERY,
           synonyms="exit close"),
)
# fmt: on
