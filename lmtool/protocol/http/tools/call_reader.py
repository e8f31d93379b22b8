"""Reads one call, `{"name": ..., "arguments": {...}}`, as its characters come."""

from __future__ import annotations

import json

_ARGUMENTS = frozenset({"arguments", "parameters", "args", "input"})
"""What models call them."""
_BEFORE_NAME = _ARGUMENTS | {"name", "type", "id"}


class Value:
    """Where a JSON value ends. Its first character is the first one taken."""

    __slots__ = ("_depth", "_escaped", "_string", "ended")

    def __init__(self) -> None:
        self._depth = 0
        self._string = False
        self._escaped = False
        self.ended = False

    def take(self, character: str) -> bool:
        """Whether the next character belongs to the value."""
        if self.ended:
            return False
        if self._string:
            self._in_string(character)
        elif character == '"':
            self._string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}],:" or character.isspace():
            return self._between(character)
        return True

    def _in_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._string = False
            self.ended = self._depth == 0

    def _between(self, character: str) -> bool:
        if self._depth == 0:  # a number or a word, ended by what follows it
            self.ended = True
            return False
        if character in "}]":
            self._depth -= 1
            self.ended = self._depth == 0
        return True


class CallReader:
    """One call. `push` its text; look at `name`, `done` and `failed` afterwards."""

    def __init__(self, *, marked: bool = True) -> None:
        """marked: whether a mark before it told that it is a call; otherwise its first names must be those of one."""
        self._marked = marked
        self.name: str | None = None
        """Known once its string was read."""
        self.done = False
        """Whether the object's last brace was read."""
        self.failed = False
        """Whether what was read is no such object."""
        self._expected = "{"
        self._key = ""
        self._text = ""
        self._value = Value()
        self._early = ""

    def push(self, text: str) -> tuple[str, str]:
        """Take more text; return what it adds to the arguments, once the name is known, and what is behind the call."""
        added: list[str] = []
        for at, character in enumerate(text):
            if self.done or self.failed:
                return "".join(added), text[at:]
            added.append(self._take(character))
        return "".join(added), ""

    def _take(self, character: str) -> str:
        if self._expected in {"key", "value"}:
            if self._text or not character.isspace():
                return self._take_value(character)
            return ""
        if not character.isspace():
            self._between(character)
        return ""

    def _between(self, character: str) -> None:
        """Punctuation of the object itself."""
        following = {"{": "key", ":": "value", ",": "key"}
        if character == "}" and self._expected == ",":
            self.done = self.name is not None
            self.failed = not self.done
        elif character == self._expected:
            self._expected = following[character]
        else:
            self.failed = True

    def _take_value(self, character: str) -> str:
        """A character of a key or of a value."""
        if self._expected == "key" and not self._text and character != '"':
            self.failed = True
            return ""
        arguments = ""
        if belongs := self._value.take(character):
            self._text += character
            arguments = self._streamed(character)
        if self._value.ended:
            arguments += self._ended()
            if not belongs:
                self._between(character)
        return arguments

    def _streamed(self, character: str) -> str:
        """A character of the arguments, as soon as it may be shown: behind the name, and not the text of a text."""
        if self._expected != "value" or self._key not in _ARGUMENTS or self._text.startswith('"'):
            return ""
        if self.name is None:
            self._early += character
            return ""
        return character

    def _ended(self) -> str:
        """A key or a value is complete."""
        text, self._text, self._value = self._text, "", Value()
        if self._expected == "key":
            self._key, self._expected = str(_read(text)), ":"
            self.failed = not self._marked and self.name is None and self._key not in _BEFORE_NAME
            return ""
        self._expected = ","
        if self._key == "name":
            name = _read(text)
            self.failed = not isinstance(name, str) or not name
            self.name = None if self.failed else str(name)
            early, self._early = self._early, ""
            return early
        if self._key in _ARGUMENTS and text.startswith('"'):
            inner = str(_read(text))  # some models write the text of an object in place of the object
            if self.name is not None:
                return inner
            self._early = inner
        return ""


def _read(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
