"""Where a growing JSON text stands: which objects are open, and the names written in each."""

from __future__ import annotations

from typing import NamedTuple

OUTSIDE, VALUE, MEMBER, NAME, STRING, ESCAPED = range(6)
"""States: in free text; between the signs of a value; before a name; in a name; in another string, or its escape."""

_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OBJECT = ord("{")
_OPENING = frozenset(b"{[")
_CLOSING = frozenset(b"}]")
_BARE = frozenset(b' \t\n\r-+.0123456789aeflnrstuE"{[')
"""What a value that is not inside another one may have between its strings."""
_SHORT = frozenset(b'"\\bfnrt')
_CONTROLS = frozenset(
    f"u{number:04x}"[:end].encode()
    for number in range(1, 32)
    if chr(number) not in "\b\f\n\r\t"
    for end in range(1, 6)
)  # fmt: skip
"""Escapes of characters that have no other spelling, and the beginnings of these escapes.

U+0000 is no part of a name: a pattern may be written without it, see `exact_pattern`.
"""


class Frame(NamedTuple):
    """One open object or array."""

    names: frozenset[bytes] | None
    """Spellings of the names written so far, or of an array's strings; None for an array whose strings may repeat."""
    outer: Frame | None
    identity: object
    """Stays the same while names are added."""


class JsonCursor:
    """Follows bytes of JSON that a grammar allows: it is not checked here, but for names.

    A name may be spelled in one way only, as `json.dumps(name, ensure_ascii=False)` does: where characters could be
    escaped at will, a name could come twice, or pass for another than the one that a schema speaks of.
    """

    __slots__ = ("_longest", "_tail", "_unique_items", "escape", "frame", "markers", "name", "state")

    def __init__(self, markers: tuple[bytes, ...] = (b"",), *, unique_items: bool = False) -> None:
        """markers: behind which of these texts a JSON value begins; an empty one stands for the beginning.

        unique_items: whether the strings of an array are taken for names.
        """
        self._unique_items = unique_items
        self.markers = tuple(filter(None, markers))
        self.state = VALUE if b"" in markers else OUTSIDE
        self.frame: Frame | None = None
        self.name = b""
        """What is written of the name, while in one."""
        self.escape = b""
        """What is written of an escape within it, without the backslash; the backslash alone where it is all."""
        self._longest = max(map(len, self.markers), default=0)
        self._tail = b""

    def copy(self) -> JsonCursor:
        """Return another cursor at the same place."""
        copy = object.__new__(JsonCursor)
        copy.markers, copy._longest, copy._tail = self.markers, self._longest, self._tail
        copy._unique_items = self._unique_items
        copy.state, copy.frame, copy.name, copy.escape = self.state, self.frame, self.name, self.escape
        return copy

    def feed(self, data: bytes) -> bool:
        """Follow some bytes. False, and no longer usable, where a name comes twice or is spelled in another way."""
        if self.state in {STRING, NAME} and not self.escape and _QUOTE not in data and _BACKSLASH not in data:
            self.name += data if self.state == NAME else b""
            return True
        return all(map(self._feed_byte, data))

    def _feed_byte(self, byte: int) -> bool:
        state = self.state
        if state == NAME:
            return self._in_name(byte)
        if state == STRING:
            self.state = VALUE if byte == _QUOTE else ESCAPED if byte == _BACKSLASH else STRING
        elif state == ESCAPED:
            self.state = STRING
        elif state == OUTSIDE:
            self._outside(byte)
        else:
            self._between(byte)
        return True

    def _between(self, byte: int) -> None:
        """A sign of the value itself, or a part of a number or a word."""
        if byte == _QUOTE:
            self.state = NAME if self.state == MEMBER else STRING
        elif byte in _OPENING:
            named = self._unique_items or byte == _OBJECT
            self.frame = Frame(frozenset() if named else None, self.frame, object())
            self.state = MEMBER if named else VALUE
        elif self.frame is None:  # a part of a number or a word, or what stands behind it
            if byte not in _BARE:
                self.state = OUTSIDE
            self._outside(byte)
        elif byte in _CLOSING:
            self.frame = self.frame.outer
            self.state = VALUE if self.frame is not None else OUTSIDE
        elif byte == _COMMA and self.frame.names is not None:
            self.state = MEMBER

    def _in_name(self, byte: int) -> bool:
        if self.escape:
            return self._in_escape(byte)
        if byte == _BACKSLASH:
            self.escape = b"\\"
        elif byte == _QUOTE:
            return self._close_name()
        else:
            self.name += bytes((byte,))
        return True

    def _in_escape(self, byte: int) -> bool:
        escape = self.escape.removeprefix(b"\\") + bytes((byte,))
        if (len(escape) == 1 and byte in _SHORT) or len(escape) == 5:
            self.name, self.escape = self.name + b"\\" + escape, b""
            return len(escape) == 1 or escape in _CONTROLS
        self.escape = escape
        return escape in _CONTROLS

    def _close_name(self) -> bool:
        assert self.frame is not None, "names stand in objects and arrays"
        assert self.frame.names is not None, "strings of such an array are no names"
        if self.name in self.frame.names:
            return False
        self.frame = self.frame._replace(names=self.frame.names | {self.name})
        self.state, self.name = VALUE, b""
        return True

    def _outside(self, byte: int) -> None:
        if self.markers:
            self._tail = (self._tail + bytes((byte,)))[-self._longest :]
            if self._tail.endswith(self.markers):
                self.state, self._tail = VALUE, b""
