"""Which keys do what: the table of actions, and how settings change it."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from lmtool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Action:
    """Something that a key does."""

    id: str
    """Stable: settings and the command palette use it; a method of `Actions` has this name."""
    keys: tuple[str, ...]
    """Keys by default: a character as it is typed, or a name such as `space` or `ctrl+p`."""
    short: str
    """One or two words for the line of keys at the bottom."""
    sentence: str
    """What happens."""


ACTIONS = (
    Action("pane_1", ("1",), "Streams", "look at the table of streams"),
    Action("pane_2", ("2",), "Tokens", "look at the tokens"),
    Action("pane_3", ("3",), "Token", "look at the alternatives of one token"),
    Action("pane_4", ("4",), "Frames", "look at what went over the wire"),
    Action("pane_5", ("5",), "Time", "look at when tokens came"),
    Action("next_pane", ("tab",), "Next pane", "go to the next pane"),
    Action("previous_pane", ("shift+tab",), "Pane before", "go to the pane before"),
    Action("zoom", ("z",), "Zoom", "show one pane only, or all again"),
    Action("pause", ("space",), "Pause", "stop the screen, or go on; what comes meanwhile is kept"),
    Action("down", ("j", "down"), "Down", "a row down: the next stream, token, bar or frame"),
    Action("up", ("k", "up"), "Up", "a row up"),
    Action("left", ("h", "left"), "Back", "to the token before, in the same stream"),
    Action("right", ("l", "right"), "On", "to the next token of the same stream"),
    Action("page_down", ("pagedown", "ctrl+d"), "Page down", "a page down"),
    Action("page_up", ("pageup", "ctrl+u"), "Page up", "a page up"),
    Action("surprising", ("n",), "Surprising", "to the next surprising token of the stream"),
    Action("surprising_back", ("N",), "Surprising before", "to the surprising token before"),
    Action("least_likely", ("u",), "Least likely", "to the least likely token of the stream"),
    Action("threshold", ("t",), "Threshold", "how many bits make a token surprising"),
    Action("first", ("g", "home"), "First", "to the first row"),
    Action("end", ("G", "end"), "End", "to the last row, and along with what comes"),
    Action("frame_back", ("[",), "Frame back", "show the moment one frame before"),
    Action("frame_on", ("]",), "Frame on", "show the moment of the next frame"),
    Action("second_back", ("{",), "1 s back", "show the moment one second before"),
    Action("second_on", ("}",), "1 s on", "show the moment one second later"),
    Action("slower", ("<",), "Slower", "play a file slower"),
    Action("faster", (">",), "Faster", "play a file faster"),
    Action("heat", ("c",), "Heat", "colour by: probability, surprisal, entropy, rank, gap, stream"),
    Action("palette_colors", ("C",), "Colours", "other colours for the heat"),
    Action("mode", ("v",), "View", "tokens interleaved, split, as text, as a table"),
    Action("invisible", ("w",), "Blanks", "show blanks and line feeds as signs"),
    Action("filter", ("/",), "Filter", "show only what a filter lets through"),
    Action("clear", ("escape",), "Clear", "clear the filter, or show all panes again"),
    Action("follow", ("f",), "Follow", "only the tokens of this stream, or of all again"),
    Action("mark", ("m",), "Mark", "mark the stream to compare it (in the table), or the moment (elsewhere)"),
    Action("next_mark", ("'",), "Next mark", "to the next marked moment"),
    Action("branch", ("b",), "Branch", "go on from the chosen alternative in a new stream"),
    Action("bias_out", ("x",), "Bias out", "go on without the chosen alternative in a new stream"),
    Action("tree", ("B",), "Tree", "the tree of branches"),
    Action("compare", ("=",), "Compare", "compare two streams where they part"),
    Action("prompt", ("i",), "Prompt", "send a prompt"),
    Action("score", ("S",), "Score", "have the stream's tokens scored after its own prompt, as they are or edited"),
    Action("cancel", ("D",), "Cancel", "end a stream of your own"),
    Action("raw", ("enter",), "Raw", "the whole frame that brought the token"),
    Action("copy", ("y",), "Copy", "copy the token, the stream's text, or the frame"),
    Action("export", ("e",), "Export", "write the stream to a file"),
    Action("snapshot", ("s",), "Snapshot", "write this screen as an SVG picture"),
    Action("record", ("r",), "Record", "write everything from now on to a trace, or stop that"),
    Action("theme", ("T",), "Theme", "the next theme"),
    Action("help", ("?", "f1"), "Help", "the keys of this pane, and what the colours mean"),
    Action("palette", ("ctrl+p",), "Palette", "find an action by its name"),
    Action("quit", ("q", "ctrl+c", "ctrl+q"), "Quit", "leave"),
)

BY_ID = {action.id: action for action in ACTIONS}

_ALWAYS = ("pause", "filter", "heat", "mode", "branch", "compare", "record", "snapshot", "help", "palette", "quit")
_FIRST = {
    "streams": ("follow", "mark", "prompt"),
    "tokens": ("surprising", "least_likely"),
    "detail": ("bias_out", "tree", "raw"),
    "frames": ("raw", "frame_back", "frame_on"),
    "time": ("second_back", "second_on"),
}
_OF_PANE = {
    "streams": ("down", "up", "follow", "mark", "compare", "prompt", "score", "cancel", "export", "tree", "filter"),
    "tokens": (
        *("down", "up", "left", "right", "surprising", "surprising_back", "least_likely", "threshold", "first", "end"),
        *("heat", "palette_colors", "mode", "invisible", "follow", "branch", "raw", "copy"),
    ),
    "detail": ("down", "up", "left", "right", "branch", "bias_out", "tree", "raw", "copy"),
    "frames": ("down", "up", "first", "end", "raw", "copy", "frame_back", "frame_on"),
    "time": (
        "down",
        "up",
        "frame_back",
        "frame_on",
        "second_back",
        "second_on",
        "slower",
        "faster",
        "mark",
        "next_mark",
    ),
}

_SIGNS = {
    "space": "space", "escape": "esc", "enter": "enter", "tab": "tab", "shift+tab": "⇧tab",
    "pagedown": "pgdn", "pageup": "pgup",
}  # fmt: skip


class Keys:
    """Keys to actions, with the changes of a person's settings."""

    def __init__(self, changes: Mapping[str, str] | None = None) -> None:
        """changes: id of an action to its keys, with commas between; `""` leaves it to the palette.

        A key given to an action is taken from the one that had it. Raises `UsageError` for an unknown id and for a
        key that is given twice.
        """
        changes = changes or {}
        given: dict[str, str] = {}
        for name, keys in changes.items():
            if name not in BY_ID:
                near = get_close_matches(name, BY_ID, 1)
                raise UsageError(
                    f"[inspect.keys]: there is no action {name!r}",
                    f"did you mean {near[0]!r}?" if near else f"possible: {', '.join(BY_ID)}",
                )
            for key in _split(keys):
                if key in given and given[key] != name:
                    raise UsageError(
                        f"[inspect.keys]: {key!r} is given to {given[key]!r} and to {name!r}", "choose one"
                    )
                given[key] = name
        free = {key: a.id for a in ACTIONS if a.id not in changes for key in a.keys if key not in given}
        self._actions = free | given
        self._keys: dict[str, list[str]] = {action.id: [] for action in ACTIONS}
        for key, name in self._actions.items():
            self._keys[name].append(key)
        if not self._keys["quit"]:
            raise UsageError("[inspect.keys]: no key is left for 'quit'", 'give it one: quit = "q"')

    def action(self, key: str, character: str | None) -> str | None:
        """The action of a pressed key: its name, and the character it types if it does."""
        if character is not None and character in self._actions:
            return self._actions[character]
        return self._actions.get(key)

    def sign(self, action: str) -> str:
        """The first key of an action as it is shown; empty for none."""
        keys = self._keys[action]
        return shown(keys[0]) if keys else ""

    def signs(self, action: str) -> str:
        """All keys of an action as they are shown."""
        return " ".join(map(shown, self._keys[action]))

    def line(self, pane: str) -> list[Action]:
        """What the line at the bottom offers in a pane, the most useful first."""
        first = ("pause", "filter", *_FIRST.get(pane, ()))
        return [BY_ID[name] for name in dict.fromkeys((*first, *_ALWAYS)) if self._keys[name]]

    def of_pane(self, pane: str) -> list[Action]:
        """Actions that mean something in a pane."""
        return [BY_ID[name] for name in _OF_PANE.get(pane, ())]


def _split(keys: str) -> list[str]:
    """`p, space` as keys; a comma alone is the comma key."""
    return [","] if keys.strip() == "," else [key.strip() for key in keys.split(",") if key.strip()]


def shown(key: str) -> str:
    """A key as it is shown: `^p` for `ctrl+p`."""
    return f"^{key[5:]}" if key.startswith("ctrl+") else _SIGNS.get(key, key)
