"""Unique names in JSON objects, which no grammar can express: tokens that would repeat a name are masked.

The strings of arrays with `uniqueItems` are kept unique in the same way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeAlias

    from llguidance import LLMatcher, LLTokenizer
    from numpy.typing import NDArray

    from lmtool.inference.guide.schema.open_names import OpenNames

    Row: TypeAlias = NDArray[np.uint32]
    """[ceil(V / 32)]: one bit per token that may come next; changed in place."""
    Visited: TypeAlias = "dict[tuple[int, bytes, int], tuple[bool, Frame | None]]"
    """Search result per state: a free name remains; and the state's frame, kept so that its id stays unique."""


OUTSIDE, VALUE, MEMBER, NAME, STRING, ESCAPED = range(6)
"""States: in free text; in a value outside strings; before a name; in a name; in another string; in its escape."""

_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OBJECT = ord("{")
_OPENING = frozenset(b"{[")
_CLOSING = frozenset(b"}]")
_BARE = frozenset(b' \t\n\r-+.0123456789aeflnrstuE"{[')
"""Characters that a top-level value may contain outside its strings."""
_SHORT = frozenset(b'"\\bfnrt')
_CONTROLS = frozenset(
    f"u{number:04x}"[:end].encode()
    for number in range(1, 32)
    if chr(number) not in "\b\f\n\r\t"
    for end in range(1, 6)
)  # fmt: skip
"""Escapes of characters that have no other spelling, and the prefixes of these escapes.

U+0000 is excluded: a pattern may be rewritten without it, see `exact_pattern`.
"""


class Frame(NamedTuple):
    """One open object or array."""

    names: frozenset[bytes] | None
    """Spellings of the names so far, or of an array's strings; None for an array whose strings may repeat."""
    outer: Frame | None
    identity: object
    """Object that stays the same while names are added."""


class JsonCursor:
    """Follows the bytes of JSON that a grammar guarantees: only names are checked.

    A name must be spelled as `json.dumps(name, ensure_ascii=False)` does: with free escapes a name could repeat unseen,
    or pass for another name than the schema means.
    """

    __slots__ = ("_longest", "_tail", "_unique_items", "escape", "frame", "markers", "name", "state")

    def __init__(self, markers: tuple[bytes, ...] = (b"",), *, unique_items: bool = False) -> None:
        """markers: texts after which a JSON value begins; the empty text stands for the start of the answer.

        unique_items: treat the strings of arrays as names.
        """
        self._unique_items = unique_items
        self.markers = tuple(filter(None, markers))
        self.state = VALUE if b"" in markers else OUTSIDE
        self.frame: Frame | None = None
        self.name = b""
        """Name so far, in state NAME."""
        self.escape = b""
        """Escape so far, without its backslash, or the backslash if nothing follows it yet."""
        self._longest = max(map(len, self.markers), default=0)
        self._tail = b""

    def copy(self) -> JsonCursor:
        """Return an independent cursor in the same state."""
        copy = object.__new__(JsonCursor)
        copy.markers, copy._longest, copy._tail = self.markers, self._longest, self._tail
        copy._unique_items = self._unique_items
        copy.state, copy.frame, copy.name, copy.escape = self.state, self.frame, self.name, self.escape
        return copy

    def feed(self, data: bytes) -> bool:
        """Advance by some bytes. Returns False, and becomes unusable, for a repeated or misspelled name."""
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
        """Advance by a structural character, or part of a number or literal."""
        if byte == _QUOTE:
            self.state = NAME if self.state == MEMBER else STRING
        elif byte in _OPENING:
            named = self._unique_items or byte == _OBJECT
            self.frame = Frame(frozenset() if named else None, self.frame, object())
            self.state = MEMBER if named else VALUE
        elif self.frame is None:  # part of a number or literal, or text after it
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


class NameTokens:
    """Tokens of a vocabulary that affect names, computed once."""

    def __init__(self, tokenizer: LLTokenizer, vocab_size: int) -> None:
        """Scan the vocabulary; 0.1 s of CPU for 128,000 tokens."""
        self._tokenizer = tokenizer
        self._size = vocab_size
        quoted: dict[int, list[int]] = {1: [], 2: [], 3: [], 4: []}
        closing: dict[bytes, list[int]] = defaultdict(list)
        commas: list[int] = []
        closing_commas: list[int] = []
        misspelled: list[int] = []
        escaped: list[int] = []
        for token, data in self._texts():
            for least in range(1, min(data.count(b'"'), 4) + 1):
                quoted[least].append(token)
            if (rest := _before_quote(data)) is not None:
                closing[rest].append(token)
            if b"," in data:
                (closing_commas if b'"' in data.partition(b",")[0] else commas).append(token)
            if b"\\" in data:
                (escaped if b'"' in data.partition(b"\\")[0] else misspelled).append(token)
        self.quoted = {least: np.array(sorted({*tokens, *escaped}), np.int64) for least, tokens in quoted.items()}
        """By number of quotes: tokens with at least that many, or with an escape after a quote."""
        self.closing = dict(closing)
        """By the rest of a name: tokens that begin with this rest and the closing quote."""
        self.closing_commas = np.array(closing_commas, np.int64)
        """Tokens that may end a string and continue to the next name."""
        self.commas = np.array(sorted({*commas, *closing_commas}), np.int64)
        self.well_spelled = ~_row(self._misspelled(misspelled), vocab_size)
        """Bit row of all tokens except those that spell a character of a name differently than `JsonCursor` accepts."""

    def _texts(self) -> Iterator[tuple[int, bytes]]:
        """Yield the tokens that are part of a text, with their bytes."""
        for token in range(self._size):
            if not self._tokenizer.is_special_token(token):
                yield token, self._tokenizer.decode_bytes([token])

    def _misspelled(self, tokens: Iterable[int]) -> Iterator[int]:
        for token in tokens:
            cursor = JsonCursor()
            cursor.feed(b'{"')
            if not cursor.feed(self.bytes_of(token)):
                yield token

    @cached_property
    def by_bytes(self) -> dict[bytes, list[int]]:
        """Tokens by their bytes; 10 MB for 128,000, built only for schemas with name patterns."""
        found = defaultdict(list)
        for token, data in self._texts():
            found[data].append(token)
        return dict(found)

    def unique(self, names: OpenNames, markers: tuple[bytes, ...]) -> UniqueNames | None:
        """Tracker of a stream's names; None if the grammar keeps them unique. markers: see `JsonCursor`."""
        if not names.any:
            return None
        cursor = JsonCursor(markers, unique_items=names.unique_items)
        return UniqueNames(self, cursor, may_run_out=names.may_run_out)

    def bytes_of(self, token: int) -> bytes:
        """Bytes that a token adds to a text; empty for a special token."""
        return b"" if self._tokenizer.is_special_token(token) else self._tokenizer.decode_bytes([token])


def _before_quote(data: bytes) -> bytes | None:
    """Bytes before the first unescaped quote; None without one."""
    end = data.find(b'"')
    while end > 0 and (end - len(data[:end].rstrip(b"\\"))) % 2:
        end = data.find(b'"', end + 1)
    return None if end < 0 else data[:end]


def _row(tokens: Iterable[int], vocab_size: int) -> Row:
    row = np.zeros((vocab_size + 31) // 32, np.uint32)
    for token in tokens:
        row[token >> 5] |= np.uint32(1 << (token & 31))
    return row


def _clear(row: Row, tokens: Iterable[int]) -> None:
    for token in tokens:
        row[token >> 5] &= ~np.uint32(1 << (token & 31))


def _allowed(row: Row, tokens: NDArray[np.int64]) -> list[int]:
    """Given tokens whose bits are set."""
    if not len(tokens):
        return []
    bits = (row[tokens >> 5] >> (tokens & 31).astype(np.uint32)) & np.uint32(1)
    found: list[int] = tokens[bits.astype(bool)].tolist()
    return found


_MAX_PLACES = 200
"""Most states searched for one mask; beyond, a free name is assumed, and the stream fails if there is none."""


class UniqueNames:
    """Names in one stream's JSON; owned by its guide."""

    __slots__ = ("_alive", "_cursor", "_dead", "_may_run_out", "_tokens")

    def __init__(self, tokens: NameTokens, cursor: JsonCursor, *, may_run_out: bool) -> None:
        """may_run_out: the schema restricts the names, so that all may be used up."""
        self._tokens = tokens
        self._cursor = cursor
        self._may_run_out = may_run_out
        if may_run_out:
            tokens.by_bytes  # noqa: B018  # built now, not while a step waits for a mask
        self._alive: tuple[object, set[tuple[int, bytes]]] = (None, set())
        """Current object with its names, and prefixes after which a free name remains."""
        self._dead: tuple[object, set[tuple[int, bytes]]] = (None, set())
        """Current object, and prefixes after which no free name remains, whatever names are added."""

    def copy(self) -> UniqueNames:
        """Return an independent tracker in the same state."""
        return UniqueNames(self._tokens, self._cursor.copy(), may_run_out=self._may_run_out)

    def advance(self, token: int) -> bool:
        """Advance by a token; False if it repeats a name."""
        return self._cursor.feed(self._tokens.bytes_of(token))

    def legal(self, tokens: list[int], *, forced: bool = False) -> int:
        """Number of tokens, from the first, that repeat no name, as far as known without a mask.

        forced: the grammar allows no other tokens, so none of them leads into a dead end.
        """
        cursor, doubtful = self._cursor.copy(), self._may_run_out and not forced
        for count, token in enumerate(tokens):
            if not cursor.feed(self._tokens.bytes_of(token)) or (doubtful and _may_repeat(cursor)):
                return count
        return len(tokens)

    def forbid_repeats(self, row: Row, matcher: LLMatcher) -> None:
        """Mask tokens that repeat a name, now or inevitably later. matcher: in the same state; left unchanged."""
        self._forbid(row, self._cursor)
        frame = self._cursor.frame
        if not self._may_run_out or frame is None:
            return
        if self._alive[0] is not frame:
            self._alive = (frame, set())
        if self._dead[0] is not frame.identity:
            self._dead = (frame.identity, set())
        suspects = self._suspects(row, self._cursor)
        visited: Visited = {}
        dead = [token for token, after in suspects if not self._leaves_name(token, after, matcher, visited)]
        _clear(row, dead)

    def _forbid(self, row: Row, cursor: JsonCursor) -> None:
        """Mask the tokens that repeat or misspell a name themselves."""
        tokens = self._tokens
        quotes = 4
        if cursor.state == NAME and cursor.escape:
            quotes = 1
            self._try(row, cursor, _tokens_of(row))
        elif cursor.state == NAME:
            quotes = 3
            row &= tokens.well_spelled
            assert cursor.frame is not None
            for name in _beginning_with(cursor.name, cursor.frame):
                _clear(row, tokens.closing.get(name[len(cursor.name) :], ()))
        elif cursor.state == STRING:
            quotes = 3
        elif cursor.frame is not None:
            quotes = 2
        self._try(row, cursor, _allowed(row, tokens.quoted[quotes]))

    def _try(self, row: Row, cursor: JsonCursor, tokens: Iterable[int]) -> None:
        _clear(row, [token for token in tokens if not cursor.copy().feed(self._tokens.bytes_of(token))])

    def _suspects(self, row: Row, cursor: JsonCursor) -> list[tuple[int, JsonCursor]]:
        """Tokens after which all names may be used up, with the resulting cursor; fewest used names first."""
        suspects = []
        for token in dict.fromkeys(self._candidates(row, cursor)):
            after = cursor.copy()
            after.feed(self._tokens.bytes_of(token))
            moved = (after.state, after.name, after.frame) != (cursor.state, cursor.name, cursor.frame)
            if moved and _may_repeat(after):
                suspects.append((len(_beginning_with(after.name, after.frame)), token, after))
        return [(token, after) for _, token, after in sorted(suspects, key=itemgetter(0))]

    def _candidates(self, row: Row, cursor: JsonCursor) -> Iterator[int]:
        """Yield allowed tokens that may lead to a name or further into one."""
        tokens = self._tokens
        yield from _allowed(row, tokens.closing_commas if cursor.state in {NAME, STRING} else tokens.commas)
        if cursor.state == NAME and cursor.escape:
            yield from _tokens_of(row)
        elif cursor.state == NAME:
            rests = [name[len(cursor.name) :] for name in _beginning_with(cursor.name, cursor.frame)]
            for part in {rest[:end] for rest in rests for end in range(1, len(rest) + 1)}:
                for token in tokens.by_bytes.get(part, ()):
                    if int(row[token >> 5]) >> (token & 31) & 1:
                        yield token
        elif cursor.state == MEMBER:
            yield from _allowed(row, tokens.quoted[1])

    def _leaves_name(self, token: int, after: JsonCursor, matcher: LLMatcher, visited: Visited) -> bool:
        """True if a name that the object lacks remains after a token, as far as the search goes."""
        spot, ours = (after.state, after.name), after.frame is self._alive[0]
        place = (*spot, id(after.frame))
        if ours and any(state == after.state and name.startswith(after.name) for state, name in self._alive[1]):
            return True
        if place in visited:
            return visited[place][0]
        if ours and spot in self._dead[1]:
            return False
        if len(visited) >= _MAX_PLACES:
            return True
        visited[place] = False, after.frame
        ahead = matcher.deep_copy()
        if not ahead.consume_token(token):
            return False
        row = np.frombuffer(ahead.compute_bitmask(), np.uint32)[: len(self._tokens.well_spelled)].copy()
        self._forbid(row, after)
        suspects = self._suspects(row, after)
        _clear(row, [token for token, _ in suspects])
        free = bool(_allowed(row, self._tokens.quoted[1])) if after.state == MEMBER else bool(row.any())  # no blanks
        left = free or any(self._leaves_name(token, then, ahead, visited) for token, then in suspects)
        visited[place] = left, after.frame
        if ours and (not left or len(visited) < _MAX_PLACES):
            (self._alive if left else self._dead)[1].add(spot)
        return left


def _may_repeat(cursor: JsonCursor) -> bool:
    """True if the next name may be one that the object has."""
    return cursor.state in {MEMBER, NAME} and bool(_beginning_with(cursor.name, cursor.frame))


def _beginning_with(text: bytes, frame: Frame | None) -> Sequence[bytes]:
    """Names of an object that begin with a text."""
    if frame is None or not frame.names:
        return ()
    ordered = _ordered(frame.names)
    return ordered[bisect_left(ordered, text) : bisect_left(ordered, text + b"\xff")]


@lru_cache(maxsize=64)
def _ordered(names: frozenset[bytes]) -> list[bytes]:
    return sorted(names)


def _tokens_of(row: Row) -> list[int]:
    """Tokens whose bits are set."""
    found: list[int] = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
    return found
