"""A line being typed: keys in, text, cursor and events out; it knows no terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from lmtool.cli.talking.cells import fit, width

_ESCAPE = re.compile(
    r"\x1b(?:\[(?P<args>[0-9;?]*)[ -/]*(?P<final>[@-~])|O(?P<single>[@-~])|(?P<alt>[^\[O]))", re.DOTALL
)
_PASTE_END = "\x1b[201~"
_LONGEST_ESCAPE = 32
"""Characters after which an escape sequence that does not end is thrown away."""


@dataclass(frozen=True, slots=True)
class Submit:
    """A line is complete."""

    text: str


Event: TypeAlias = Submit | Literal["interrupt", "end", "clear"]
"""A line; Ctrl-C; Ctrl-D on an empty line; Ctrl-L."""

Action: TypeAlias = Callable[["LineEditor"], None]


@dataclass(slots=True)
class LineEditor:
    """The line as typed so far, with the keys people expect from a shell, and a history for the session."""

    text: str = ""
    cursor: int = 0
    """Characters before the cursor."""
    history: list[str] = field(default_factory=list)
    _place: int | None = None
    """Index into the history while one of its lines is shown."""
    _draft: str = ""
    """What was being typed before the history was looked at."""
    _rest: str = ""
    """The beginning of an escape sequence or paste whose end has not arrived."""
    _killed: str = ""

    def feed(self, keys: str) -> list[Event]:
        """Take what the terminal sent, in any portions; return what it amounts to besides editing."""
        data, self._rest = self._rest + keys, ""
        events: list[Event] = []
        while data:
            used = self._take(data, events)
            if not used:
                self._rest = data
                break
            data = data[used:]
        return events

    def view(self, prompt: str, columns: int) -> tuple[str, int]:
        """Return one row that shows the prompt and the text around the cursor, and the cursor's column in it.

        Line feeds within the text (from a paste) are shown as `⏎`.
        """
        shown = "".join(c if c.isprintable() else "⏎" if c == "\n" else "·" for c in self.text)
        room = max(1, columns - width(prompt) - 1)
        start = 0
        while width(shown[start : self.cursor]) > room:
            start += 1
        return prompt + fit(shown[start:], room), width(prompt) + width(shown[start : self.cursor])

    def _take(self, data: str, events: list[Event]) -> int:
        """Handle one key at the beginning of data; return how many characters it was, 0 when more must come."""
        if data[0] == "\x1b":
            return self._escape(data)
        if data[0] in "\r\n":
            events.append(self._submit())
        elif data[0] == "\x03":
            events.append("interrupt")
        elif data[0] == "\x04" and not self.text:
            events.append("end")
        elif data[0] == "\x0c":
            events.append("clear")
        elif data[0] in self._CONTROLS:
            self._CONTROLS[data[0]](self)
        elif data[0] >= " ":
            printable = re.match(r"[^\x00-\x1f\x7f]+", data)
            run = printable[0] if printable else data[0]
            self._insert(run)
            return len(run)
        return 1

    def _escape(self, data: str) -> int:
        match = _ESCAPE.match(data)
        if match is None:
            return len(data) if len(data) > _LONGEST_ESCAPE else 0
        if match["final"] == "~" and match["args"] == "200":
            return self._paste(data, match.end())
        if match["final"]:
            name = match["args"] + "~" if match["final"] == "~" else _modified(match["args"]) + match["final"]
        else:
            name = match["single"] or f"alt-{match['alt']}"
        action = self._SEQUENCES.get(name)
        if action:
            action(self)
        return match.end()

    def _paste(self, data: str, start: int) -> int:
        end = data.find(_PASTE_END, start)
        if end < 0:
            return 0
        self._insert(data[start:end].replace("\r\n", "\n").replace("\r", "\n").rstrip("\n"))
        return end + len(_PASTE_END)

    def _submit(self) -> Submit:
        line = Submit(self.text)
        if self.text.strip() and self.history[-1:] != [self.text]:
            self.history.append(self.text)
        self._set("")
        self._place = None
        return line

    def clear(self) -> None:
        """Throw the line away."""
        self._set("")
        self._place = None

    def _set(self, text: str) -> None:
        self.text, self.cursor = text, len(text)

    def _insert(self, text: str) -> None:
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)

    def _cut(self, start: int, end: int) -> None:
        self.text = self.text[:start] + self.text[end:]
        self.cursor = start

    def _kill(self, start: int, end: int) -> None:
        self._killed = self.text[start:end]
        self._cut(start, end)

    def _left(self) -> None:
        self.cursor = max(0, self.cursor - 1)

    def _right(self) -> None:
        self.cursor = min(len(self.text), self.cursor + 1)

    def _home(self) -> None:
        self.cursor = 0

    def _end(self) -> None:
        self.cursor = len(self.text)

    def _word_left(self) -> None:
        self.cursor = self._word_start()

    def _word_right(self) -> None:
        self.cursor = self._word_end()

    def _word_start(self) -> int:
        return len(re.sub(r"\S+\s*$|\s+$", "", self.text[: self.cursor]))

    def _word_end(self) -> int:
        match = re.match(r"\s*\S*", self.text[self.cursor :])
        return self.cursor + (match.end() if match else 0)

    def _backspace(self) -> None:
        if self.cursor:
            self._cut(self.cursor - 1, self.cursor)

    def _delete(self) -> None:
        if self.cursor < len(self.text):
            self._cut(self.cursor, self.cursor + 1)

    def _earlier(self) -> None:
        if self._place is None:
            self._draft, place = self.text, len(self.history)
        else:
            place = self._place
        if place > 0:
            self._place = place - 1
            self._set(self.history[self._place])

    def _later(self) -> None:
        if self._place is None:
            return
        self._place += 1
        if self._place == len(self.history):
            self._place = None
            self._set(self._draft)
        else:
            self._set(self.history[self._place])

    def _yank(self) -> None:
        self._insert(self._killed)

    _CONTROLS: ClassVar[dict[str, Action]] = {
        "\x01": _home,
        "\x02": _left,
        "\x04": _delete,
        "\x05": _end,
        "\x06": _right,
        "\x08": _backspace,
        "\x7f": _backspace,
        "\x0b": lambda self: self._kill(self.cursor, len(self.text)),
        "\x0e": _later,
        "\x10": _earlier,
        "\x15": lambda self: self._kill(0, self.cursor),
        "\x17": lambda self: self._kill(self._word_start(), self.cursor),
        "\x19": _yank,
    }
    _SEQUENCES: ClassVar[dict[str, Action]] = {
        "A": _earlier,
        "B": _later,
        "C": _right,
        "D": _left,
        "H": _home,
        "F": _end,
        "1~": _home,
        "7~": _home,
        "4~": _end,
        "8~": _end,
        "3~": _delete,
        "word-C": _word_right,
        "word-D": _word_left,
        "alt-f": _word_right,
        "alt-b": _word_left,
        "alt-d": lambda self: self._kill(self.cursor, self._word_end()),
        "alt-\x7f": lambda self: self._kill(self._word_start(), self.cursor),
    }


def _modified(arguments: str) -> str:
    """`word-` where Ctrl or Alt was held: `1;5` and `1;3`."""
    return "word-" if arguments in {"1;3", "1;5", "1;9"} else ""
