"""A grammar of broken JSON: valid values with one thing wrong, in a value, in a member, or in the text itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

Json: TypeAlias = Any
_SPLICE = "\ue000splice\ue000"
"""A text in a tree in whose place, quotes included, other text is put: what no JSON writer writes."""

_WORDS = ("", "a", "\x00", "\ud800", "\u202e\u2066", "💥" * 40, "a" * 4000, "'; --", "../../etc/passwd", "{}", "null")
_NUMBERS = (0, -1, 1, 2**31, 2**53 + 1, -(2**63), 2**64, 10**40, 0.5, -0.0, 1e308, 5e-324)
_RAW_VALUES = (
    "NaN",
    "-Infinity",
    "1e999",
    "-",
    "01",
    "0x10",
    "undefined",
    "'a'",
    "[1,]",
    '{"a":1,}',
    "\x07",
    '"\\u12"',
)


def hostile_value(random: Random) -> tuple[str, Json]:
    """A value that hardly any member may have, and its kind."""
    kind = random.choice(("word", "number", "another type", "long list", "odd object", "nesting", "no JSON"))
    if kind == "word":
        return kind, random.choice(_WORDS)
    if kind == "number":
        return kind, random.choice(_NUMBERS)
    if kind == "another type":
        return kind, random.choice((None, True, False, [], {}, [[]], [None], {"a": None}))
    if kind == "long list":
        return kind, [random.choice((0, -1, "a", None, 2**40))] * random.choice((100, 3000))
    if kind == "odd object":
        return kind, {random.choice(_WORDS): random.choice(_NUMBERS), "__proto__": {}, "": [[]]}
    return kind, _SPLICE


def broken_json(random: Random, tree: Json) -> tuple[str, bytes]:
    """The text of a value with one thing wrong, and what that is. Some of it is still valid."""
    kind = random.choice(("value", "value", "value", "member", "text"))
    if kind == "value":
        kind, value = hostile_value(random)
        text = _dumped(_replaced(random, tree, value))
        if _SPLICE in text:
            raw = _nesting(random) if kind == "nesting" else random.choice(_RAW_VALUES)
            text = text.replace(json.dumps(_SPLICE, ensure_ascii=False), raw)
        return kind, text.encode("utf-8", "surrogatepass")
    if kind == "member":
        change = random.choice((_without, _with_unknown, _twice))
        return change(random, tree)
    damage = random.choice((_cut, _flipped, _not_utf8, _decorated))
    return damage(random, _dumped(tree).encode("utf-8", "surrogatepass"))


def _dumped(tree: Json) -> str:
    return json.dumps(tree, ensure_ascii=False)


def _nesting(random: Random) -> str:
    depth = random.choice((200, 5000))
    return "[" * depth + "]" * depth if random.random() < 0.5 else '{"a":' * depth + "1" + "}" * depth


def _places(tree: Json) -> Iterator[tuple[Json, Any]]:
    """Every container of the tree with every key in it."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield tree, key
            yield from _places(value)
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield tree, index
            yield from _places(value)


def _copied(tree: Json) -> Json:
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    return [_copied(value) for value in tree] if isinstance(tree, list) else tree


def _replaced(random: Random, tree: Json, value: Json) -> Json:
    copy = _copied(tree)
    places = list(_places(copy))
    if not places:
        return value
    container, key = random.choice(places)
    container[key] = value
    return copy


def _without(random: Random, tree: Json) -> tuple[str, bytes]:
    copy = _copied(tree)
    places = [(container, key) for container, key in _places(copy) if isinstance(container, dict)]
    if places:
        container, key = random.choice(places)
        del container[key]
    return "member left out", _dumped(copy).encode("utf-8", "surrogatepass")


def _with_unknown(random: Random, tree: Json) -> tuple[str, bytes]:
    name = random.choice((*_WORDS[:6], "x", "n", "logprobs", "stream_id", "mdoel"))
    copy = {**tree, name: hostile_value(random)[1]} if isinstance(tree, dict) else [tree]
    return "unknown member", _dumped(copy).encode("utf-8", "surrogatepass")


def _twice(random: Random, tree: Json) -> tuple[str, bytes]:
    if not isinstance(tree, dict) or not tree:
        return "member twice", b"[]"
    name = random.choice(list(tree))
    again = f", {_dumped(name)}: {_dumped(tree[name])}}}"
    return "member twice", (_dumped(tree)[:-1] + again).encode("utf-8", "surrogatepass")


Damage: TypeAlias = Callable[["Random", bytes], tuple[str, bytes]]


def _cut(random: Random, data: bytes) -> tuple[str, bytes]:
    return "cut off", data[: random.randrange(len(data))]


def _flipped(random: Random, data: bytes) -> tuple[str, bytes]:
    changed = bytearray(data)
    for _ in range(random.choice((1, 3, 20))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(7)  # the highest bit would break UTF-8
    return "bits flipped", bytes(changed)


def _not_utf8(random: Random, data: bytes) -> tuple[str, bytes]:
    at = random.randrange(len(data))
    return "not UTF-8", data[:at] + random.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8")) + data[at:]


def _decorated(random: Random, data: bytes) -> tuple[str, bytes]:
    front, back = random.choice(
        ((b"\xef\xbb\xbf", b""), (b"", b" //"), (b"", data), (b"[", b"]"), (b"\x00", b"\x00"), (b"\n" * 500, b"\r\n"))
    )
    return "something around it", front + data + back
