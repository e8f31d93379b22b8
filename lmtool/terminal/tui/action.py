"""An action, and the keys that run it as settings change them; the actions there are: `keymap`."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Generic, TypeVar

from lmtool.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

C = TypeVar("C")
"""Type of the argument of actions: the app."""

EVERY = "every"
"""All panes; in a footer, after the actions of a single pane."""
FIRST = "first"
"""All panes; in a footer, before everything else."""
_SIGNS = {
    "space": "space", "escape": "esc", "enter": "enter", "tab": "tab", "shift+tab": "⇧tab",
    "pagedown": "pgdn", "pageup": "pgup",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Action(Generic[C]):
    """An action that keys run."""

    id: str
    """Stable: settings and the command palette use it."""
    keys: tuple[str, ...]
    """Keys by default: a character as it is typed, or a name such as `space` or `ctrl+p`."""
    short: str
    """Name of one or two words, for the footer."""
    sentence: str
    """Description for help and command palette."""
    run: Callable[[C], object]
    panes: str = ""
    """Panes whose help lists it first, with blanks between; or `EVERY`."""
    footer: str = ""
    """Panes whose footer has it, with blanks between; or `FIRST`, `EVERY`."""
    unavailable: Callable[[C], str] | None = None
    """Reason that it is unavailable now, as a sentence; empty if it is available."""
    value: Value[C] | None = None
    """Value that may be typed after its name; None if it takes none."""
    command: Callable[[C], str] | None = None
    """Equivalent command line for the current state; returns an empty text if there is none."""
    synonyms: str = ""
    """Other words that it is found by, with blanks between."""


@dataclass(frozen=True, slots=True)
class Value(Generic[C]):
    """Value that may be typed after an action's name, such as `heat entropy`."""

    name: str
    """The option of `lmtool inspect` that does the same, without its dashes; a name of the action, too."""
    form: str
    """Placeholder for help, such as `SECONDS`, or the choices."""
    apply: Callable[[C, str], object]
    """Runs the action with the value. Raises `LmtoolError` for an invalid value."""


class Keymap(Generic[C]):
    """The table of actions with a user's keys."""

    def __init__(self, actions: Sequence[Action[C]], changes: Mapping[str, str] | None = None) -> None:
        """changes: id of an action to its keys, with commas between; `""` leaves it to the palette.

        A key given to an action is taken from the one that had it. Raises `UsageError` for an unknown id and for a
        key that is given twice.
        """
        self.actions = actions
        self._by_id = {action.id: action for action in actions}
        changes = changes or {}
        own = self._changes(changes)
        default = {key: a.id for a in actions if a.id not in changes for key in a.keys if key not in own}
        self._ids = default | own
        self._keys: dict[str, list[str]] = {action.id: [] for action in actions}
        for key, name in self._ids.items():
            self._keys[name].append(key)
        if not self._keys["quit"]:
            raise UsageError("[inspect.keys]: no key is left for 'quit'", 'give it one: quit = "q"')

    def _changes(self, changes: Mapping[str, str]) -> dict[str, str]:
        """Id of the action by key."""
        own: dict[str, str] = {}
        for name, keys in changes.items():
            if name not in self._by_id:
                near = get_close_matches(name, self._by_id, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"possible: {', '.join(self._by_id)}"
                raise UsageError(f"[inspect.keys]: there is no action {name!r}", hint)
            for key in [","] if keys.strip() == "," else filter(None, map(str.strip, keys.split(","))):
                if own.setdefault(key, name) != name:
                    raise UsageError(f"[inspect.keys]: {key!r} is given to {own[key]!r} and to {name!r}", "choose one")
        return own

    def action(self, key: str, character: str | None) -> Action[C] | None:
        """The action of a pressed key: its name, and the character it types if it does."""
        name = self._ids.get(character or "") or self._ids.get(key)
        return None if name is None else self._by_id[name]

    def by_id(self, name: str) -> Action[C]:
        """The action of this id."""
        return self._by_id[name]

    def by_name(self, name: str) -> Action[C] | None:
        """The action of this option, id or footer word, in any case; None for an unknown name."""
        word = name.removeprefix("--").lower()
        by_option = {one.value.name: one for one in self.actions if one.value is not None}
        by_word = {one.short.lower(): one for one in self.actions}
        return by_option.get(word) or self._by_id.get(word) or by_word.get(word)

    def sign(self, name: str) -> str:
        """Label of an action's first key; empty if it has none."""
        return next(map(key_label, self._keys[name]), "")

    def signs(self, name: str) -> str:
        """Labels of all keys of an action."""
        return " ".join(map(key_label, self._keys[name]))

    def footer(self, pane: str) -> list[Action[C]]:
        """Actions in the footer of a pane, the most useful first."""
        with_keys = [action for action in self.actions if self._keys[action.id]]
        return [action for place in (FIRST, pane, EVERY) for action in with_keys if place in action.footer.split()]

    def of_pane(self, pane: str) -> list[Action[C]]:
        """Actions that mean something in a pane."""
        return [action for action in self.actions if {pane, EVERY} & set(action.panes.split())]


def key_label(key: str) -> str:
    """Label of a key: `^p` for `ctrl+p`."""
    return f"^{key[5:]}" if key.startswith("ctrl+") else _SIGNS.get(key, key)
