"""Every action and every word of the screen as one list, narrowed by what is typed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lmtool.terminal.tui.documents.document import Document
from lmtool.terminal.tui.documents.glossary import WORDS
from lmtool.terminal.tui.documents.list import broken
from lmtool.terminal.tui.fuzzy import score
from lmtool.terminal.tui.runs import Run, pad, visible, width

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.terminal.tui.action import Action, Keymap
    from lmtool.terminal.tui.runs import Line

KEY, NAME = 8, 13
"""Columns of the keys, and of the name."""
WIDE = 70
"""Columns from which on sentences stand beside names."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the list: an action, or a word."""

    id: str
    """Of the action; empty for a word."""
    name: str
    sentence: str
    keys: str = ""
    command: str = ""
    """The command line that does the same."""
    why_not: str = ""
    """Why it cannot be done now."""
    form: str = ""
    """The value that may be typed behind its name."""
    synonyms: str = ""
    here: bool = False
    """Whether it is of the pane that had the keys."""
    value: str = ""
    """What was typed behind the name."""

    def fit(self, query: str) -> float:
        """How well a query finds it."""
        found = score(query, (f"{self.name} {self.id}", f"{self.sentence} {self.synonyms}", self.command, self.keys))
        return found * 1.2 if self.here else found


def entries(
    keys: Keymap[Any], pane: str, command: Callable[[Action[Any]], str], why_not: Callable[[Action[Any]], str]
) -> list[Entry]:
    """Actions of the pane, its words, all other actions, all other words."""
    own = keys.of_pane(pane)
    actions = [
        Entry(
            one.id,
            one.short,
            one.sentence,
            keys.signs(one.id),
            command(one),
            why_not(one),
            "" if one.value is None else f"{one.value.name} {one.value.form}",
            one.synonyms,
            one in own,
        )
        for one in keys.actions
        if one.id not in ("help", "palette")
    ]
    words = [Entry("", word.name, word.sentence, here=pane in word.panes.split()) for word in WORDS]
    return [one for here in (True, False) for part in (actions, words) for one in part if one.here is here]


def matching(all_entries: Sequence[Entry], keys: Keymap[Any], query: str) -> list[Entry]:
    """Entries for what was typed, the best first; all of them for nothing.

    `name value`, also as an option is typed (`--heat entropy`), finds the action of that name alone.
    """
    if not query.strip():
        return list(all_entries)
    name, value = split_value(query)
    action = keys.by_name(name) if value else None
    if action is not None and action.value is not None:
        return [replace(one, value=value) for one in all_entries if one.id == action.id]
    fits = [(one.fit(query), -place, one) for place, one in enumerate(all_entries)]
    return [one for fit, _, one in sorted(fits, key=lambda each: each[:2], reverse=True) if fit > 0]


def split_value(query: str) -> tuple[str, str]:
    """The name of an action and the value behind it; a whole command line has the target between."""
    words = query.strip()
    if words.startswith("lmtool inspect "):
        words = words[words.find("--") :] if "--" in words else ""
    name, _, value = words.partition(" ")
    if name.startswith("--") and "=" in name:
        name, _, value = words.partition("=")
    return name, value.strip()


class ActionList(Document):
    """Entries with a cursor; a target is the place of an entry."""

    def __init__(self, entries: Sequence[Entry], pane: str, cursor: str) -> None:
        """pane: what the pane is called that had the keys. cursor: drawn before the chosen entry."""
        self._cursor = cursor
        self._pane = pane
        self._shown: Sequence[Entry] = ()
        self._place = 0
        self._lines: list[tuple[int | None, Line]] = []
        self._laid_out: object = None
        self.narrowed = False
        """Whether entries were searched for: then there are no headings."""
        self.show(entries)

    def show(self, entries: Sequence[Entry], *, narrowed: bool = False) -> None:
        """Show these entries, the cursor on the first."""
        self._shown, self._place, self.narrowed, self._laid_out = entries, 0, narrowed, None

    @property
    def current(self) -> Entry | None:
        """The entry under the cursor."""
        return self._shown[self._place] if self._shown else None

    def height(self, columns: int) -> int:
        """Lines after breaking."""
        if self._laid_out != (columns, self._place):
            self._laid_out = columns, self._place
            self._lines = [pair for i, one in enumerate(self._shown) for pair in self._entry(i, one, columns)]
            if not self._shown:
                self._lines = [(None, [Run("  nothing has these words; fewer find more", "dim")])]
        return len(self._lines)

    def line(self, y: int, columns: int) -> Line:
        """One of them."""
        return self._lines[y][1] if y < self.height(columns) else []

    def anchor(self, columns: int) -> int | None:
        """The last line of the chosen entry, so that all of it is in sight."""
        self.height(columns)
        return max((y for y, (i, _) in enumerate(self._lines) if i == self._place), default=0) if self._place else 0

    def click(self, target: int) -> None:
        """Choose this entry."""
        self._place = target

    def move(self, rows: int) -> None:
        """The cursor to another entry."""
        self._place = min(max(0, len(self._shown) - 1), max(0, self._place + rows))

    def _entry(self, i: int, one: Entry, columns: int) -> list[tuple[int | None, Line]]:
        before = self._shown[i - 1] if i else None
        lines: list[tuple[int | None, Line]] = []
        if not self.narrowed and (before is None or (before.here, bool(before.id)) != (one.here, bool(one.id))):
            what = ("Keys" if one.id else "Words") + (f" of this pane: {self._pane}" if one.here else ", all others")
            lines += [(None, line) for line in ([*([[]] if i else []), [Run(what, "title")]])]
        return lines + [(i, [run._replace(target=i) for run in line]) for line in self._lines_of(i, one, columns)]

    def _lines_of(self, i: int, one: Entry, columns: int) -> list[Line]:
        here = i == self._place
        lead = Run(f"{self._cursor} " if here else "  ", "accent")
        wide = columns >= WIDE
        head: Line = [lead, Run(pad(one.keys, KEY, right=True) if wide else one.keys, "key")]
        head.append(Run(" " if wide or one.keys else ""))
        sentence = Run(visible(one.sentence))
        below: Line = [Run(visible(_below(one)), "dim")]
        style = "accent" if here else "bold"
        if wide:
            head.append(Run(pad(one.name, max(NAME, width(one.name))) + " ", style))
            indent = KEY + NAME + 4
            parts = broken([sentence], columns - indent - 1)
            first, rest = [*head, *parts[0]], parts[1:]
        else:
            indent = 5
            first, rest = [*head, Run(one.name, style)], broken([sentence], columns - indent - 1)
        rest += broken(below, columns - indent - 1) if below[0].text else []
        if one.why_not:
            rest += broken([Run(f"not now: {visible(one.why_not)}", "dim")], columns - indent - 1)
        return [first, *([Run(" " * indent), *line] for line in rest)]


def _below(one: Entry) -> str:
    """Under an action's sentence: what may be typed, and the command line."""
    if one.value:
        return f"enter: {one.form.partition(' ')[0]} {one.value}"
    return " · ".join(filter(None, (f": {one.form}" if one.form else "", f"$ {one.command}" if one.command else "")))
