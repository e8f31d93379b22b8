"""Help: the glossary of the screen, the searchable list of actions, the keys in the footer, the help of a pane."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from lmtool.core.logprobs.heat import legend
from lmtool.terminal.tui.documents.document import Document, broken
from lmtool.terminal.tui.runs import Run, cut, pad, visible, width

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.core.logprobs.heat import HeatMode
    from lmtool.terminal.tui.action import Action, Keymap
    from lmtool.terminal.tui.runs import Line


class Word(NamedTuple):
    """A word of the screen, explained."""

    name: str
    sentence: str
    panes: str
    """Panes that have it, with blanks between."""


# fmt: off
WORDS: tuple[Word, ...] = (
    Word("id", "connection and stream, such as 2/1: the first stream of the second connection", "streams"),
    Word("kind", "what was asked for: GEN generates, SCORE gives a text its logprobs, CHAT and so on are of HTTP APIs",
         "streams"),
    Word("prompt", "the end of what the model continues", "streams"),
    Word("params", "parameters of the request: t temperature, p top_p, k top_k, top alternatives a token",
         "streams"),
    Word("tok/max", "tokens so far, and at most", "streams"),
    Word("tok/s", "tokens a second, after those of the first frame", "streams time"),
    Word("ttft", "time to first token: from the request to the first frame with a token", "streams time"),
    Word("p99", "the gap between frames with tokens that 99 of 100 do not exceed; p50 is the median", "streams time"),
    Word("ppl", "perplexity, 2 to the mean surprisal in bits: 1 is certain, 10 is as unsure as among ten equal tokens",
         "streams"),
    Word("last", "the latest token", "streams"),
    Word("state", "run, wait, an error, or why the stream ended: stop (the model or a stop text), length (max_tokens)",
         "streams"),
    Word("stall", "a gap over 50 ms and over four times the median gap", "time"),
    Word("gap", "time between a frame with tokens of a stream and the one before; none within a frame", "tokens time"),
    Word("tokens/frame", "tokens that arrive together, on average", "time"),
    Word("p", "probability of the token after everything before it, 0 to 1; .83 is 83 in 100", "tokens detail"),
    Word("bits", "surprisal, -log2 p: 0 is certain, 1 is a coin toss, each further bit is half as likely",
         "tokens detail"),
    Word("logprob", "natural logarithm of p: raw is the model's own, biased is after logit_bias and constraint, "
         "processed is what was sampled from", "detail"),
    Word("rank", "place of the token among all by probability; >5: tokens that were not sent may be likelier",
         "tokens detail"),
    Word("entropy", "how open the choice was, in bits: 0 is settled, 3 is like eight equal tokens; a range, because "
         "what was not sent may be a few large pieces or spread over the whole vocabulary", "tokens detail"),
    Word("margin", "how much likelier the best token was than the second: 1 is settled, 0 is a tie", "tokens"),
    Word("mass", "probability of the sent alternatives together", "detail"),
    Word("other", "all tokens that the server did not send", "detail"),
    Word("heat", "what the colours of tokens say; the scale stands below the tokens", "tokens"),
    Word("thought", "what the model thinks before its answer: purple and italic, or italic alone, up to a wall",
         "tokens detail"),
    Word("frame", "one message over the wire; > to the server, < from it", "frames"),
)
# fmt: on


def words_of(pane: str) -> list[Word]:
    """The words that a pane has."""
    return [word for word in WORDS if pane in word.panes.split()]


def word_of(name: str) -> Word | None:
    """A word by its name."""
    return next((word for word in WORDS if word.name == name), None)


_EXACT, _START, _INSIDE, _SCATTERED = 8.0, 4.0, 2.0, 1.0
_SMALLEST_PART = 3
"""Characters from which on a part inside a word counts: shorter ones are everywhere."""


def fit_score(query: str, texts: Sequence[str]) -> float:
    """Score of a query against texts; 0 if one of its words matches nowhere.

    texts: the most important first; the weight halves from each to the next. Only the first one, a name, is also
    searched for the letters of a word in order with others between, such as `lklst` in `least likely`.
    """
    words = query.lower().split()
    total = 0.0
    for word in words:
        best = max((_fit(word, text.lower()) / 2**i for i, text in enumerate(texts)), default=0.0)
        if not best and texts:
            best = _scattered(word, texts[0].lower())
        if not best:
            return 0.0
        total += best
    return total


def _fit(word: str, text: str) -> float:
    """Score of a word in a text: a whole word, the start of one, or inside one."""
    if word not in text:
        return 0.0
    if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text):
        return _EXACT
    if re.search(rf"(?<!\w){re.escape(word)}", text):
        return _START
    return _INSIDE if len(word) >= _SMALLEST_PART else 0.0


def _scattered(word: str, name: str) -> float:
    """Score up to 1 for the letters of a word in order in a name, by how close they are; 0 if one is missing."""
    start, place = -1, -1
    for letter in word:
        place = name.find(letter, place + 1)
        if place < 0:
            return 0.0
        start = place if start < 0 else start
    return _SCATTERED * len(word) / (place - start + 1)


KEY, NAME = 8, 13
"""Columns of the keys, and of the name."""
WIDE = 70
"""Columns from which sentences are on the line of their names."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the list: an action or a word."""

    id: str
    """Id of the action; empty for a word."""
    name: str
    sentence: str
    keys: str = ""
    command: str = ""
    """The command line that does the same."""
    why_not: str = ""
    """Reason that the action is unavailable; empty if it is available."""
    form: str = ""
    """Value that may be typed after the name."""
    synonyms: str = ""
    here: bool = False
    """True if it belongs to the pane that had the keys."""
    value: str = ""
    """Value typed after the name."""

    def fit(self, query: str) -> float:
        """Score of a query."""
        found = fit_score(
            query, (f"{self.name} {self.id}", f"{self.sentence} {self.synonyms}", self.command, self.keys)
        )
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
    """Entries that match a query, best first; all of them for an empty one.

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
    """Name of an action and its value; a whole command line may have a target between."""
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
        """pane: title of the focused pane. cursor: drawn before the chosen entry."""
        self._cursor = cursor
        self._pane = pane
        self._shown: Sequence[Entry] = ()
        self._place = 0
        self._rows: list[tuple[int | None, Line]] = []
        self._laid_out: object = None
        self.narrowed = False
        """True for search results, which have no headings."""
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
            self._rows = [pair for i, one in enumerate(self._shown) for pair in self._entry(i, one, columns)]
            if not self._shown:
                self._rows = [(None, [Run("  nothing has these words; fewer find more", "dim")])]
        return len(self._rows)

    def line(self, y: int, columns: int) -> Line:
        """One line."""
        return self._rows[y][1] if y < self.height(columns) else []

    def anchor(self, columns: int) -> int | None:
        """The last line of the chosen entry, so that all of it is in sight."""
        self.height(columns)
        return max((y for y, (i, _) in enumerate(self._rows) if i == self._place), default=0) if self._place else 0

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
    """Text below an action: its value, and the command line."""
    if one.value:
        return f"enter: {one.form.partition(' ')[0]} {one.value}"
    return " · ".join(filter(None, (f": {one.form}" if one.form else "", f"$ {one.command}" if one.command else "")))


MESSAGE_LINES = 3
_ABOUT = {
    "streams": ("Streams: one line a request; a click on the name of a column explains it.",),
    "tokens": (
        "Tokens: streams side by side (split), one token a line as they arrived (interleaved), one stream, a table.",
        "The colour of a token is its heat; the scale is below it.",
        "A character that takes several tokens belongs to its last one.",
    ),
    "detail": (
        "Token: the one under the cursor, and its alternatives.",
        "Bars are probabilities; beside each stands the sum down to it, as long as none is left out.",
    ),
    "frames": (
        "Frames: everything that went over the wires.",
        "The frame that brought the token under the cursor is marked, and the other way around.",
    ),
    "time": ("Time: gaps between frames that brought tokens, of the stream under the cursor, then of all.",),
}
_HEATS = {
    "prob": "probability of the token",
    "surprisal": "surprisal of the token in bits: -log2 p",
    "entropy": "entropy of the alternatives in bits, the upper bound",
    "rank": "place of the token in its distribution, or the least that it can be",
    "gap": "milliseconds since the stream's token before",
    "stream": "a colour for each stream",
}


def keys_line(keys: Keymap[Any], pane: str, columns: int) -> Line:
    """Keys as far as they fit, always with help and quit; targets are indices of actions."""
    offered = keys.footer(pane)
    ending = [run for action in offered if action.id in ("help", "quit") for run in _hint(keys, action)]
    left = columns - sum(width(run.text) for run in ending)
    line: Line = []
    for action in offered:
        if action.id in ("help", "quit"):
            continue
        part = _hint(keys, action)
        left -= sum(width(run.text) for run in part)
        if left < 0:
            break
        line += part
    return [*line, *ending]


def _hint(keys: Keymap[Any], action: Action[Any]) -> Line:
    number = keys.actions.index(action)
    return [Run(f" {keys.sign(action.id)} ", "key", number), Run(f"{action.short} ", "", number)]


def message_lines(text: str, columns: int, *, warning: bool) -> list[Line]:
    """A message in at most `MESSAGE_LINES` lines, cut with a sign."""
    style = "error" if warning else "accent"
    room = max(8, columns - 2)
    sentence = Run(" ".join(visible(text).split()))
    lines = ["".join(run.text for run in line).rstrip() for line in broken([sentence], room)]
    if len(lines) > MESSAGE_LINES:
        lines = [*lines[: MESSAGE_LINES - 1], " ".join(lines[MESSAGE_LINES - 1 :])]
    return [[Run(f" {cut(line, room)} ", style)] for line in lines]


def help_lines(keys: Keymap[Any], pane: str, heat: HeatMode) -> list[Line]:
    """Help of a pane: content, keys, colours, then all other keys."""
    title, *about = _ABOUT[pane]
    lines: list[Line] = [[Run(title, "title")], *([Run(sentence)] for sentence in about)]
    lines += [[Run(f"{word.name}: ", "bold"), Run(word.sentence)] for word in words_of(pane)]
    lines.append([])
    own = keys.of_pane(pane)
    lines += [_explained(keys, action) for action in own]
    lines += [[], [Run(f"Heat: {_HEATS[heat]}", "title")]]
    for label, step in legend(heat):
        word = {0: "  expected", 7: "  surprising"}.get(step, "")
        lines.append([Run(f" {label:7}", f"heat{step}"), Run(word, "dim")])
    lines += [[], [Run("All other keys", "title")]]
    return lines + [_explained(keys, action) for action in keys.actions if action not in own]


def _explained(keys: Keymap[Any], action: Action[Any]) -> Line:
    return [Run(f"{keys.signs(action.id) or '(palette)':>12}  ", "key"), Run(action.sentence)]
