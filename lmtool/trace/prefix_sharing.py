"""How much of each prompt of a trace an earlier one had already, and what ends the common beginning: `cache why`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.trace.answers import Answers
from lmtool.trace.prompt_parts import PromptContent, PromptPart, prompt_content
from lmtool.trace.stream_events import RequestStarted, Stream, stream_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lmtool.protocol.providers.answer_events import TokenUsage
    from lmtool.trace.events import Event
    from lmtool.trace.prompt_parts import Text

Kind: TypeAlias = Literal["new", "shorter", "text", "date", "id", "place", "order", "template", "same"]
"""Why a common beginning ends: more follows, the prompt ends, a text differs, a date or time in it, an id in it, a part
of another kind stands there, tools have another order, only the template's settings differ, nothing differs."""
MOST_VARIANTS = 64
"""Different continuations of one beginning that a prompt is compared with, the latest ones."""
SHOWN = 24
"""Characters, or ids, of a difference that are told."""
_WHOLE = ("tokens", "prompt")
"""Parts that may go on where another one ends; a message that does is another message."""
_ALIGNED = 2000
"""Ids behind a difference in which the same ids are looked for."""
_DATE = re.compile(
    r"\d{4}-\d\d?-\d\d?(?:[T ]\d\d?:\d\d(?::\d\d(?:\.\d+)?)?)?|\d\d?:\d\d(?::\d\d(?:\.\d+)?)?|\d\d?[./]\d\d?[./]\d{2,4}"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|\b\d{10}(?:\d{3})?\b"
    r"|(?:\d\d? )?\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?(?: \d\d?)?(?:,? \d{4})?\b",
    re.IGNORECASE,
)
_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{16,}\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Difference:
    """What ends the common beginning of two prompts."""

    kind: Kind
    part: str = ""
    """Such as `system`, `tool get_weather`, `message 3 (user)`, `tokens`; the first one that is not the same."""
    at: int = 0
    """Characters or ids of that part before it."""
    before: Text = ""
    """What stood there in the earlier prompt, and what follows, in short."""
    now: Text = ""


@dataclass(slots=True)
class SharedPrefix:
    """One request, and the earlier one that it shares most with."""

    label: str
    """Connection and stream, or number of the request, such as `1/3`."""
    time: float
    kind: str
    """`GENERATE`, `SCORE`, or an HTTP method and path."""
    content: PromptContent
    common: int = 0
    """Tokens or characters of the longest common beginning."""
    earlier: SharedPrefix | None = None
    """That earlier request; None where there is none of its model and cache salt."""
    difference: Difference | None = None
    """None where there is nothing to compare."""
    repeated: int = 0
    """Of what follows, in the same unit, what the earlier prompt had as well: a cache of beginnings cannot have it."""
    settings: tuple[str, ...] = ()
    """Names of the template's settings that differ."""
    usage: TokenUsage | None = None
    """What the server counted."""

    @property
    def total(self) -> int:
        """Length of the prompt in its unit."""
        return self.content.length

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt: counted, or as the server says; None where nobody does."""
        if self.content.unit == "tokens":
            return self.total
        return None if self.usage is None else self.usage.prompt_tokens

    @property
    def cached_tokens(self) -> int | None:
        """What the server says it had."""
        return None if self.usage is None else self.usage.cached_tokens

    @property
    def common_tokens(self) -> int | None:
        """The common beginning in tokens: exact for ids, of characters by their share of the earlier prompt."""
        if self.earlier is not None and self.earlier.in_tokens(self.common) is not None:
            return self.earlier.in_tokens(self.common)
        return self.in_tokens(self.common)

    def in_tokens(self, amount: int) -> int | None:
        """An amount of the prompt in tokens: exact for ids, of characters by their share; None where unknown."""
        if self.content.unit == "tokens":
            return amount
        tokens = self.prompt_tokens
        return None if tokens is None or not self.total else round(amount * tokens / self.total)


@dataclass(slots=True)
class _Node:
    """A beginning of prompts."""

    children: dict[PromptPart, _Node] = field(default_factory=dict)
    latest: SharedPrefix | None = None
    """The latest request whose prompt begins so."""
    ends: SharedPrefix | None = None
    """The latest whose prompt is no more than this."""


class PrefixSharing:
    """Compares each request with all before it. Call `add` once for each, in order.

    Takes time in proportion to the length of the prompts, however many there are.
    """

    def __init__(self) -> None:
        self._roots: dict[tuple[str, str], _Node] = {}

    def add(self, started: RequestStarted) -> SharedPrefix:
        """What a request shares with earlier ones."""
        content = prompt_content(started)
        found = SharedPrefix(started.label, started.time, started.kind, content)
        root = self._roots.setdefault(content.scope, _Node())
        if content.parts:
            if root.latest is not None:
                _compare(found, root)
            _insert(root, found)
        return found


def _insert(root: _Node, request: SharedPrefix) -> None:
    node = root
    node.latest = request
    for part in request.content.parts:
        child = node.children.pop(part, None) or _Node()
        node.children[part] = child  # as the latest
        node = child
        node.latest = request
    node.ends = request


def _compare(found: SharedPrefix, root: _Node) -> None:
    """Fill in the longest common beginning with what the tree has."""
    node, parts, depth = root, found.content.parts, 0
    while depth < len(parts) and (child := node.children.get(parts[depth])) is not None:
        node, depth = child, depth + 1
    found.common = sum(len(part.text) for part in parts[:depth])
    other, inside = node.ends or node.latest, 0
    if depth < len(parts):
        for part, child in list(node.children.items())[-MOST_VARIANTS:]:
            shared = _common(part, parts[depth])
            if child.latest is not None and (shared > inside or (not inside and node.ends is None)):
                other, inside = child.latest, max(shared, inside)
    assert other is not None
    found.common += inside
    found.earlier = other
    was, now = other.content.settings, found.content.settings
    found.settings = tuple(name for name in dict.fromkeys((*was, *now)) if was.get(name) != now.get(name))
    found.difference = _difference(other.content.parts, parts, depth, inside)
    if found.difference.kind == "same" and found.settings:
        found.difference = Difference("template", ", ".join(found.settings))
    if found.difference.kind not in ("new", "same", "shorter", "template"):
        repeated = _repeated(other.content.parts, parts, depth, inside)
        found.repeated = min(repeated, found.total - found.common)


def _common(one: PromptPart, other: PromptPart) -> int:
    """Characters or ids that two parts of one name begin with alike."""
    if type(one.text) is not type(other.text) or one.name.partition(" ")[0] != other.name.partition(" ")[0]:
        return 0
    return _alike(one.text, other.text)


def _alike(one: Sequence[object], other: Sequence[object]) -> int:
    """How many items two sequences begin with alike."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:  # the first half that differs, again and again
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _difference(before: Sequence[PromptPart], now: Sequence[PromptPart], depth: int, inside: int) -> Difference:
    if depth == len(now):
        return Difference(
            "same" if len(before) == depth else "shorter", "" if len(before) == depth else before[depth].name
        )
    name = now[depth].name
    if depth == len(before) or (name in _WHOLE and inside == len(before[depth].text) and len(before) == depth + 1):
        return Difference("new", name, inside)
    if name in _WHOLE and inside == len(now[depth].text) and len(now) == depth + 1:
        return Difference("shorter", name, inside)
    old, new = before[depth].text, now[depth].text
    tools = [[part for part in parts if part.name.startswith("tool")] for parts in (before, now)]
    if name.startswith("tool") and tools[0] != tools[1] and sorted(tools[0]) == sorted(tools[1]):
        return Difference("order", "tools")
    if before[depth].name.partition(" ")[0] != name.partition(" ")[0]:
        return Difference("place", name, 0, before[depth].name, name)
    if isinstance(old, str) and isinstance(new, str):
        return _in_text(name, old, new, inside)
    return Difference("text", name, inside, old[inside : inside + SHOWN], new[inside : inside + SHOWN])


def _in_text(name: str, old: str, new: str, at: int) -> Difference:
    """What differs at a place of two texts: a date, a time or an id that the place is part of, or words."""
    kinds: tuple[tuple[Kind, re.Pattern[str]], ...] = (("date", _DATE), ("id", _ID))
    for kind, pattern in kinds:
        was, is_now = _around(pattern, old, at), _around(pattern, new, at)
        if was and is_now:
            return Difference(kind, name, at, was, is_now)
    return Difference("text", name, at, old[at : at + SHOWN], new[at : at + SHOWN])


def _around(pattern: re.Pattern[str], text: str, at: int) -> str:
    """The match that a place is in, or directly behind."""
    start = max(0, at - 40)
    found = (match for match in pattern.finditer(text, start, at + 60) if match.start() <= at <= match.end())
    return next((match[0] for match in found), "")


def _repeated(before: Sequence[PromptPart], now: Sequence[PromptPart], depth: int, inside: int) -> int:
    """How much behind a difference is as it was before, in characters or ids."""
    if now[depth].name == "tokens":
        texts = ([part.text for part in parts[depth:]] for parts in (before, now))
        old, new = ([one for text in side if not isinstance(text, str) for one in text][inside:] for side in texts)
        return _aligned(old, new)
    later = {part.text for part in before[depth:]}
    whole = sum(len(part.text) for part in now[depth + 1 :] if part.text in later)
    if now[depth].text in later:
        return whole + len(now[depth].text)
    ends = (before[depth].text[inside:][::-1], now[depth].text[inside:][::-1]) if depth < len(before) else ("", "")
    return whole + _alike(*ends)


def _aligned(old: list[int], new: list[int]) -> int:
    """Length of the longest run of ids of one list that begins near the other's beginning, and goes on alike."""
    matcher = SequenceMatcher(None, old[:_ALIGNED], new[:_ALIGNED], autojunk=False)
    match = matcher.find_longest_match()
    return 0 if not match.size else _alike(old[match.a :], new[match.b :])


def shared_prefixes(events: Iterable[Event]) -> tuple[list[SharedPrefix], Mapping[int, str | bytes]]:
    """Of each request of a trace that has a model read a prompt, in order; and what ids mean.

    Events must hold no references to large values.
    """
    answers, sharing = Answers(stream_of), PrefixSharing()
    found: list[tuple[SharedPrefix, Stream]] = []
    for event in events:
        for step in answers.follow(event):
            if isinstance(step, RequestStarted) and step.stream_kind not in ("", "ACT"):
                found += [(sharing.add(step), step.stream)]
    for shared, stream in found:
        shared.usage = stream.usage
    return [shared for shared, _ in found], answers.vocabulary
