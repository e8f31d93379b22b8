"""Prompt prefixes that requests of a trace share, and the first difference after them: `lmtool cache why`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.inference.text.prompts import split_turns
from lmtool.trace.answers import Answers
from lmtool.trace.stream_events import PromptContent, PromptPart, RequestStarted, Stream, prompt_content, stream_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lmtool.protocol.providers.answer_events import TokenUsage
    from lmtool.trace.events import Event
    from lmtool.trace.stream_events import Text

Kind: TypeAlias = Literal["new", "shorter", "text", "date", "id", "place", "order", "template", "same"]
"""Reason a common prefix ends: `new`: more follows; `shorter`: the prompt ends; `text`: a text differs; `date`: a date
or time in it; `id`: an id in it; `place`: a part of another kind; `order`: the tools have another order;
`template`: only settings of the template differ; `same`: nothing differs."""
MOST_VARIANTS = 64
"""Different continuations of one prefix that a prompt is compared with, the latest ones."""
SHOWN = 24
"""Characters, or ids, of a difference that are shown."""
_WHOLE = ("tokens", "prompt")
"""Parts that another prompt may continue; a message that continues is another message."""
_ALIGNED = 2000
"""Ids after a difference that are searched for a common run."""
_DATE = re.compile(
    r"\d{4}-\d\d?-\d\d?(?:[T ]\d\d?:\d\d(?::\d\d(?:\.\d+)?)?)?|\d\d?:\d\d(?::\d\d(?:\.\d+)?)?|\d\d?[./]\d\d?[./]\d{2,4}"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|\b\d{10}(?:\d{3})?\b"
    r"|(?:\d\d? )?\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?(?: \d\d?)?(?:,? \d{4})?\b",
    re.IGNORECASE,
)
_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{16,}\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Difference:
    """First difference between two prompts."""

    kind: Kind
    part: str = ""
    """First part that differs, such as `system`, `tool get_weather`, `message 3 (user)`, `tokens`."""
    at: int = 0
    """Characters or ids of that part before the difference."""
    before: Text = ""
    """Start of the differing text in the earlier prompt."""
    now: Text = ""


@dataclass(slots=True)
class SharedPrefix:
    """A request, and the earlier one that shares its longest prefix."""

    label: str
    """Connection and stream, or number of the request, such as `1/3`."""
    time: float
    kind: str
    """`GENERATE`, `SCORE`, or an HTTP method and path."""
    content: PromptContent
    common: int = 0
    """Length of the longest common prefix in tokens or characters."""
    earlier: SharedPrefix | None = None
    """That earlier request; None if there is none with its model and cache salt."""
    difference: Difference | None = None
    """None if there is nothing to compare."""
    repeated: int = 0
    """Characters or ids after the difference that the earlier prompt has too; a prefix cache cannot reuse them."""
    settings: tuple[str, ...] = ()
    """Template settings that differ."""
    usage: TokenUsage | None = None
    """Usage that the server reported."""

    @property
    def total(self) -> int:
        """Length of the prompt in its unit."""
        return self.content.length

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens, counted or reported by the server; None if unknown."""
        if self.content.unit == "tokens":
            return self.total
        return None if self.usage is None else self.usage.prompt_tokens

    @property
    def cached_tokens(self) -> int | None:
        """Cached tokens that the server reported."""
        return None if self.usage is None else self.usage.cached_tokens

    @property
    def common_tokens(self) -> int | None:
        """Length of the common prefix in tokens: exact for ids, estimated by share for characters."""
        if self.earlier is not None and self.earlier.in_tokens(self.common) is not None:
            return self.earlier.in_tokens(self.common)
        return self.in_tokens(self.common)

    def in_tokens(self, amount: int) -> int | None:
        """An amount of the prompt in tokens: exact for ids, estimated by share for characters; None if unknown."""
        if self.content.unit == "tokens":
            return amount
        tokens = self.prompt_tokens
        return None if tokens is None or not self.total else round(amount * tokens / self.total)


@dataclass(slots=True)
class _Node:
    """A prefix in the tree of prompts."""

    children: dict[PromptPart, _Node] = field(default_factory=dict)
    latest: SharedPrefix | None = None
    """Latest request with this prefix."""
    ends: SharedPrefix | None = None
    """Latest request whose prompt is exactly this prefix."""


class PrefixSharing:
    """Compares each request with all earlier ones. Call `add` once per request, in order.

    Takes time in proportion to the length of the prompts, regardless of their number.
    """

    def __init__(self) -> None:
        self._roots: dict[tuple[str, str], _Node] = {}

    def add(self, started: RequestStarted) -> SharedPrefix:
        """Prefix that a request shares with earlier ones."""
        content = prompt_content(started)
        shared = SharedPrefix(started.label, started.time, started.kind, content)
        root = self._roots.setdefault(content.scope, _Node())
        if content.parts:
            if root.latest is not None:
                _compare(shared, root)
            _insert(root, shared)
        return shared


def _insert(root: _Node, request: SharedPrefix) -> None:
    node = root
    node.latest = request
    for part in request.content.parts:
        child = node.children.pop(part, None) or _Node()
        node.children[part] = child  # moves it to the end: the latest
        node = child
        node.latest = request
    node.ends = request


def _compare(request: SharedPrefix, root: _Node) -> None:
    """Fill in the longest common prefix with the prompts in the tree."""
    node, parts, depth = root, request.content.parts, 0
    while depth < len(parts) and (child := node.children.get(parts[depth])) is not None:
        node, depth = child, depth + 1
    request.common = sum(len(part.text) for part in parts[:depth])
    other, inside = node.ends or node.latest, 0
    if depth < len(parts):
        for part, child in list(node.children.items())[-MOST_VARIANTS:]:
            shared = _common(part, parts[depth])
            if child.latest is not None and (shared > inside or (not inside and node.ends is None)):
                other, inside = child.latest, max(shared, inside)
    assert other is not None
    request.common += inside
    request.earlier = other
    was, now = other.content.settings, request.content.settings
    request.settings = tuple(name for name in dict.fromkeys((*was, *now)) if was.get(name) != now.get(name))
    request.difference = _difference(other.content.parts, parts, depth, inside)
    if request.difference.kind == "same" and request.settings:
        request.difference = Difference("template", ", ".join(request.settings))
    if request.difference.kind not in ("new", "same", "shorter", "template"):
        repeated = _repeated(other.content.parts, parts, depth, inside)
        request.repeated = min(repeated, request.total - request.common)


def _common(one: PromptPart, other: PromptPart) -> int:
    """Characters or ids of the common prefix of two parts with the same kind of name."""
    if type(one.text) is not type(other.text) or one.name.partition(" ")[0] != other.name.partition(" ")[0]:
        return 0
    return _alike(one.text, other.text)


def _alike(one: Sequence[object], other: Sequence[object]) -> int:
    """Length of the common prefix of two sequences."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:  # binary search
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
    """Difference at a position of two texts: a date, a time or an id around it, or words."""
    kinds: tuple[tuple[Kind, re.Pattern[str]], ...] = (("date", _DATE), ("id", _ID))
    for kind, pattern in kinds:
        was, is_now = _around(pattern, old, at), _around(pattern, new, at)
        if was and is_now:
            return Difference(kind, name, at, was, is_now)
    return Difference("text", name, at, old[at : at + SHOWN], new[at : at + SHOWN])


def _around(pattern: re.Pattern[str], text: str, at: int) -> str:
    """The match that contains or ends at a position; empty if there is none."""
    start = max(0, at - 40)
    matches = (match for match in pattern.finditer(text, start, at + 60) if match.start() <= at <= match.end())
    return next((match[0] for match in matches), "")


def _repeated(before: Sequence[PromptPart], now: Sequence[PromptPart], depth: int, inside: int) -> int:
    """Characters or ids after a difference that are unchanged."""
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
    """Length of the common run, from the first long match near the start of both lists."""
    matcher = SequenceMatcher(None, old[:_ALIGNED], new[:_ALIGNED], autojunk=False)
    match = matcher.find_longest_match()
    return 0 if not match.size else _alike(old[match.a :], new[match.b :])


def shared_prefixes(events: Iterable[Event]) -> tuple[list[SharedPrefix], Mapping[int, str | bytes]]:
    """Shared prefix of each request with a prompt, in order; and the text of token ids.

    Events must hold no references to large values.
    """
    answers, sharing = Answers(stream_of), PrefixSharing()
    pairs: list[tuple[SharedPrefix, Stream]] = []
    for event in events:
        for step in answers.follow(event):
            if isinstance(step, RequestStarted) and step.stream_kind not in ("", "ACT"):
                pairs += [(sharing.add(step), step.stream)]
    for shared, stream in pairs:
        shared.usage = stream.usage
    return [shared for shared, _ in pairs], answers.vocabulary


_WORTH_TELLING = 32
"""Unchanged tokens or characters after a difference that are worth a line; fewer may be a bracket or two."""
_SLACK = 64
"""Tokens that a server may have fewer of without a word: caches hold blocks."""


def sentences(shared: SharedPrefix, spell: Callable[[int], str | bytes | None] = lambda _: None) -> list[str]:
    """Lines for people: length of the shared prefix and cached tokens, then reasons. spell: text of token ids."""
    content = shared.content
    first = [_amount(shared, shared.total) if content.parts else "no prompt in the trace"]
    if shared.earlier is not None:
        share = f" ({round(100 * shared.common / shared.total)} %)" if shared.total else ""
        first.append(
            f"{_amount(shared, shared.common, shared.common_tokens)}{share} in common with {shared.earlier.label}"
        )
    elif content.parts:
        first.append(f"the first of {content.scope[0] or 'its model'}")
    if shared.cached_tokens is not None and shared.prompt_tokens is not None:
        computed = max(0, shared.prompt_tokens - shared.cached_tokens)
        first.append(f"cached {shared.cached_tokens:,}, computed {computed:,}")
    lines = ["; ".join(first)]
    return [*lines, *_reasons(shared, spell)]


def _amount(shared: SharedPrefix, amount: int, tokens: int | None = None) -> str:
    """An amount of a prompt in tokens if known, with `about` if estimated."""
    tokens = shared.in_tokens(amount) if tokens is None else tokens
    if tokens is None:
        return f"{amount:,} {shared.content.unit}"
    about = "" if shared.content.unit == "tokens" or amount in (0, shared.total) else "about "
    return f"{about}{tokens:,} token{'s' * (tokens != 1)}"


def _reasons(shared: SharedPrefix, spell: Callable[[int], str | bytes | None]) -> Iterator[str]:
    """Further lines: the first difference, its cost, and other causes."""
    if shared.difference is not None:
        yield _difference_line(shared, shared.difference, spell)
    again = repeated_tokens(shared)
    if shared.repeated >= _WORTH_TELLING:
        computed = "" if again is None else f"; computed again: {again:,}"
        yield f"after it, {_amount(shared, shared.repeated)} are unchanged{computed}"
    common = shared.common_tokens
    if shared.cached_tokens is not None and common is not None and shared.cached_tokens + _SLACK < common:
        less = f"{common - shared.cached_tokens:,} tokens less than is in common"
        yield f"the server had {less}: evicted, never cached, or in another replica"
    if shared.cached_tokens is not None and common is not None and shared.cached_tokens >= common + _WORTH_TELLING:
        more = f"{shared.cached_tokens - common:,} tokens more than is in common"
        yield f"the server had {more}: it caches answers too, or had the prompt from other traffic"
    if shared.settings and shared.difference is not None and shared.difference.kind != "template":
        yield f"settings that may change the text around messages differ too: {', '.join(shared.settings)}"
    if shared.content.missing:
        yield f"part of the prompt is unknown: {shared.content.missing}"


def repeated_tokens(shared: SharedPrefix) -> int | None:
    """Unchanged tokens after the difference that had to be computed again; None if unknown."""
    again = shared.in_tokens(shared.repeated)
    if again is None or shared.prompt_tokens is None:
        return again
    cached = min(shared.prompt_tokens, shared.cached_tokens or 0)
    return min(again, shared.prompt_tokens - cached)


def _difference_line(shared: SharedPrefix, difference: Difference, spell: Callable[[int], str | bytes | None]) -> str:
    part = _place(shared, spell) if difference.part == "tokens" else difference.part
    match difference.kind:
        case "same":
            return "the same prompt"
        case "template":
            return f"the same messages; settings that may change the text around them differ: {difference.part}"
        case "shorter":
            return "it is a prefix of that one"
        case "order":
            return "the tools are in another order"
        case "new":
            return f"goes on with it: {f'what follows in {part}' if difference.at else part} is new"
        case "place":
            return f"{difference.now} in place of {difference.before}"
    at = f"token {shared.common + 1:,}" if difference.part == "tokens" else f"character {difference.at + 1:,}"
    what = {"date": ", a date or time", "id": ", an id"}.get(difference.kind, "")
    before, now = _quote(difference.before, spell), _quote(difference.now, spell)
    return f"{part} differs from {at}{what}: {before} before, {now} now"


def _quote(text: str | Sequence[int], spell: Callable[[int], str | bytes | None]) -> str:
    """A text in quotes; ids by their text, or by number."""
    if not isinstance(text, str):
        known = [spell(one) for one in text]
        if not text or any(one is None for one in known):
            return " ".join(map(str, text[:8])) or "the end"
        text = b"".join(one.encode() if isinstance(one, str) else one or b"" for one in known).decode(errors="replace")
    return repr(text) if text else "the end"


def _place(shared: SharedPrefix, spell: Callable[[int], str | bytes | None]) -> str:
    """Turn in which the common prefix of ids ends; `the prompt` if ids have no text or there are no turns."""
    data = bytearray()
    left = shared.common + 1
    for part in shared.content.parts:
        for token in part.text[:left]:
            piece = spell(token) if isinstance(token, int) else None
            if piece is None:
                return "the prompt"
            data += piece if isinstance(piece, bytes) else piece.encode() or b"\0\0"
        left = max(0, left - len(part.text))
    turns = [turn for turn in split_turns(data.decode(errors="replace")) if turn.role]
    if not turns:
        return "the prompt"
    return "system" if len(turns) == 1 and turns[0].role == "system" else f"message {len(turns)} ({turns[-1].role})"


def as_json(shared: SharedPrefix, spell: Callable[[int], str | bytes | None] = lambda _: None) -> dict[str, object]:
    """The result as a JSON object; amounts in `unit`, and in tokens if these are known."""
    difference, computed = shared.difference, None
    if shared.prompt_tokens is not None and shared.cached_tokens is not None:
        computed = max(0, shared.prompt_tokens - shared.cached_tokens)
    return {
        "request": shared.label,
        "time": shared.time,
        "kind": shared.kind,
        "model": shared.content.scope[0],
        "unit": shared.content.unit,
        "prompt": shared.total,
        "common": shared.common,
        "with": None if shared.earlier is None else shared.earlier.label,
        "differs": None if difference is None else _differs(shared, difference, spell),
        "again": shared.repeated,
        "settings": list(shared.settings),
        "missing": shared.content.missing or None,
        "tokens": {
            "prompt": shared.prompt_tokens,
            "common": shared.common_tokens,
            "again": repeated_tokens(shared),
            "cached": shared.cached_tokens,
            "computed": computed,
            "exact": shared.content.unit == "tokens",
        },
        "words": sentences(shared, spell),
    }


def _differs(
    shared: SharedPrefix, difference: Difference, spell: Callable[[int], str | bytes | None]
) -> dict[str, object]:
    ids = difference.part == "tokens"
    return {
        "kind": difference.kind,
        "part": _place(shared, spell) if ids else difference.part,
        "at": difference.at,
        "before": difference.before if isinstance(difference.before, str) else list(difference.before),
        "now": difference.now if isinstance(difference.now, str) else list(difference.now),
    }


def summary(requests: Sequence[SharedPrefix]) -> Mapping[str, int]:
    """Sums over all requests, in tokens; requests without known tokens count 0."""
    return {
        "requests": len(requests),
        "prompt_tokens": sum(one.prompt_tokens or 0 for one in requests),
        "cached_tokens": sum(one.cached_tokens or 0 for one in requests),
        "computed_again": sum(repeated_tokens(one) or 0 for one in requests),
    }
