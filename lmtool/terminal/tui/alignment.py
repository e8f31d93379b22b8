"""Comparison of two streams: common prefix of prompt and tokens, first difference, near ties."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from lmtool.core.logprobs.distribution import least_divergence, sum_by_name
from lmtool.core.logprobs.mode import MEANINGS
from lmtool.terminal.tui.request_builder import begun_of, context_of
from lmtool.trace.matching import first_difference

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence

    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.view import View

Name: TypeAlias = "int | bytes"
"""Key of a token that is equal on both sides: its id, or its bytes if the tokenizers differ."""
Prefix: TypeAlias = "Sequence[int]"
"""The prompt of a sequence: ids, or their bytes."""
T = TypeVar("T")
TIE = 0.02
"""Nats: two tokens nearer than this are a tie, which another order of additions can turn (FORMAT.md, `tie_eps`)."""
WINDOW = 512
"""Equal tokens before the parting whose alternatives are compared."""
OTHER_PROMPTS = "their prompts differ: their own tokens are aligned, after different ones"


@dataclass(frozen=True, slots=True)
class Side:
    """One of two compared streams, with its view."""

    view: View
    stream: Stream
    origin: tuple[Stream, bytes] | None = None
    """For a branch: the stream whose prompt it follows, and the bytes between that prompt and its own tokens."""

    @property
    def rows(self) -> array[int]:
        """Its tokens up to the moment."""
        return self.stream.rows[: self.stream.count(self.view.token_count)]

    @property
    def ids(self) -> list[int]:
        """Ids of its tokens; texts without an id have negative numbers."""
        return [self.view.state.tokens.ids[row] for row in self.rows]

    def spelling(self, row: int) -> bytes:
        """Bytes of a token; of one whose bytes are not known, its sign."""
        spelling = self.view.state.texts.spelling(self.view.state.tokens.ids[row])
        return self.view.state.texts.of_row(row).encode() if spelling is None else spelling

    def spelling_of(self, token: int | str | bytes) -> bytes:
        """Bytes of a token by its id, text or bytes."""
        if not isinstance(token, int):
            return token if isinstance(token, bytes) else token.encode()
        spelling = self.view.state.texts.spelling(token)
        return self.view.state.texts.of_id(token).encode() if spelling is None else spelling

    def top(self, row: int, *, by_ids: bool) -> Mapping[Name, float]:
        """Logprobs of a token and its alternatives by name."""
        alternatives = self.view.measures.alternatives(row)
        if by_ids:
            return {one: p for one, p in alternatives if isinstance(one, int)}
        return sum_by_name([(self.spelling_of(one), p) for one, p in alternatives])


@dataclass(frozen=True, slots=True)
class Alignment:
    """Common prefix of two sequences."""

    by_ids: bool
    """True if tokens were compared by id, False if by text."""
    same: int
    """Number of equal tokens after the shared prompt; by text, of those with equal boundaries."""
    characters: int | None
    """Number of equal characters after the shared prompt; None if compared by id."""
    pairs: list[tuple[int, int]]
    """Pairs of rows of equal tokens."""
    places: tuple[int, int]
    """For each side, position of the first differing token; negative if it is in the prompt."""
    parts: bool
    """True if both sides continue, with different tokens."""
    names: tuple[Name | None, Name | None]
    """For each side, key of the next token; None if unknown."""
    own: tuple[str, str]
    """For each side, differing text at the end of the prompt, such as the token that a branch begins with."""
    notes: tuple[str, ...]
    """Restrictions, as sentences."""


def align(a: Side, b: Side) -> Alignment:
    """Align two streams by their contexts; if these differ, at their first tokens, with a note."""
    by_ids, notes = _tokenizers(a, b)
    prefixes = _own_prefixes(a, b, by_ids=by_ids)
    if isinstance(prefixes, str):
        begun = _origins(a, b)
        if begun is not None:
            return _by_text(a, b, begun, notes or ("the beginning of a branch is a text: aligned by text",))
        return (_by_ids if by_ids else _by_text)(a, b, ((), ()) if by_ids else (b"", b""), (*notes, prefixes))
    return (_by_ids if by_ids else _by_text)(a, b, prefixes, notes)


def _own_prefixes(a: Side, b: Side, *, by_ids: bool) -> tuple[Prefix, Prefix] | str:
    """For each side, the prompt after the shared part; else a sentence on the reason that it is unknown."""
    contexts = _context(a, by_ids=by_ids), _context(b, by_ids=by_ids)
    ours, theirs = map(_ids, contexts)
    if ours is None or theirs is None:
        if None in contexts:
            return "a prompt is not known: their own tokens are aligned"
        if contexts[0] != contexts[1]:
            return OTHER_PROMPTS
        ours, theirs = begun_of(a.view, a.stream), begun_of(b.view, b.stream)
    candidates: tuple[Prefix, Prefix] = (ours, theirs) if by_ids else (_bytes(a, ours), _bytes(b, theirs))
    return candidates if first_difference(*candidates) == min(map(len, candidates)) else OTHER_PROMPTS


def _context(side: Side, *, by_ids: bool) -> object:
    """Context of a stream's tokens; by text, ids without text such as bos count as an empty text."""
    context = context_of(side.view, side.stream)
    ids = None if by_ids else _ids(context)
    return "" if ids is not None and not _bytes(side, ids) else context


def _origins(a: Side, b: Side) -> tuple[bytes, bytes] | None:
    """For each side, the text between a prompt that both share and its tokens, according to the branches."""
    if a.view.state is not b.view.state or (a.origin is None and b.origin is None):
        return None
    ours, theirs = (side.origin or (side.stream, b"") for side in (a, b))
    if ours[0] is not theirs[0]:
        contexts = context_of(a.view, ours[0]), context_of(b.view, theirs[0])
        if None in contexts or contexts[0] != contexts[1]:
            return None
    return ours[1], theirs[1]


def _bytes(side: Side, prompt: Sequence[int]) -> bytes:
    return b"".join(map(side.spelling_of, prompt))


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _ids(context: object) -> tuple[int, ...] | None:
    if isinstance(context, tuple) and all(isinstance(token, int) for token in context):
        return context
    return None


def _tokenizers(a: Side, b: Side) -> tuple[bool, tuple[str, ...]]:
    """True if both sides share a tokenizer; and notes for the reader if not."""
    if any(token < 0 for side in (a, b) for token in side.ids):
        return False, ("tokens without ids: aligned by text",)
    ours, theirs = a.view.state, b.view.state
    models = {side.stream.model or side.view.state.model for side in (a, b)}
    if ours is theirs and (len(models) == 1 or None in models):
        return True, ()
    if ours is not theirs and len(ours.tokenizers) == len(theirs.tokenizers) == 1:
        alike = ours.tokenizers == theirs.tokenizers
        return alike, () if alike else ("two tokenizers: aligned by text",)
    return False, ("nothing says that both have the same tokenizer: aligned by text",)


def _by_ids(a: Side, b: Side, prefixes: tuple[Prefix, Prefix], notes: tuple[str, ...]) -> Alignment:
    """Align by position in the sequence."""
    rows, shift = (a.rows, b.rows), tuple(map(len, prefixes))
    whole = [*prefixes[0], *a.ids], [*prefixes[1], *b.ids]
    common = first_difference(*whole)
    return Alignment(
        by_ids=True,
        same=common - min(shift),
        characters=None,
        pairs=[(rows[0][i - shift[0]], rows[1][i - shift[1]]) for i in range(max(shift), common)],
        places=(common - shift[0], common - shift[1]),
        parts=common < min(map(len, whole)),
        names=(_at(whole[0], common), _at(whole[1], common)),
        own=(_text(_bytes(a, prefixes[0][common:])), _text(_bytes(b, prefixes[1][common:]))),
        notes=notes,
    )


def _by_text(a: Side, b: Side, prefixes: tuple[Prefix, Prefix], notes: tuple[str, ...]) -> Alignment:
    """Align by bytes; tokens that begin and end at the same bytes are equal."""
    ours, theirs = _Cut(a, bytes(prefixes[0])), _Cut(b, bytes(prefixes[1]))
    common = first_difference(ours.whole, theirs.whole)
    shared, longer = sorted((ours.edges[0], theirs.edges[0]))
    spans, others = ours.spans(longer, common), theirs.spans(longer, common)
    alike = [span for span in spans if span in others]
    return Alignment(
        by_ids=False,
        same=len(alike),
        characters=len(ours.whole[shared:common].decode(errors="ignore")),
        pairs=[(spans[span], others[span]) for span in alike],
        places=(ours.place(common), theirs.place(common)),
        parts=common < min(len(ours.whole), len(theirs.whole)),
        names=(ours.name(common), theirs.name(common)),
        own=(_text(ours.whole[common : ours.edges[0]]), _text(theirs.whole[common : theirs.edges[0]])),
        notes=notes,
    )


class _Cut:
    """A stream as bytes, with the offsets of its tokens."""

    def __init__(self, side: Side, begin: bytes) -> None:
        self._rows = side.rows
        self._pieces = [side.spelling(row) for row in self._rows]
        self.whole = begin + b"".join(self._pieces)
        self.edges = list(accumulate(map(len, self._pieces), initial=len(begin)))

    def spans(self, first: int, last: int) -> dict[tuple[int, int], int]:
        """Row of each token between two byte offsets, by its first and last offset."""
        spans = zip(pairwise(self.edges), self._rows, strict=True)
        return {span: row for span, row in spans if first <= span[0] < span[1] <= last}

    def place(self, at: int) -> int:
        """Position of the token that extends beyond a byte offset; -1 in the prompt."""
        return -1 if at < self.edges[0] else bisect_right(self.edges, at) - 1

    def name(self, at: int) -> bytes | None:
        place = self.place(at)
        return None if place < 0 else _at(self._pieces, place)


def _at(names: Sequence[T], place: int) -> T | None:
    return names[place] if place < len(names) else None


# What differs.


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two streams."""

    alignment: Alignment
    near_tie: bool
    """True if the first differing candidates are within `TIE` of each other on at least one side."""
    margins: tuple[float | None, float | None]
    """For each side, lead of its own token over the other side's in nats; None if unknown."""
    candidates: tuple[float | None, float | None]
    """For each side, logprob of its next token: its own, else the other side's."""
    worst: float | None
    """Largest difference of the logprobs of equal tokens, in nats."""
    worst_at: tuple[int, int] | None
    """Row of that token on each side."""
    divergences: tuple[float | None, ...]
    """Least KL divergence of B from A in nats, for the last `WINDOW` equal tokens and the first different one."""
    notes: tuple[str, ...]
    """Restrictions, as sentences."""


def compare(a: Side, b: Side) -> Comparison:
    """Compare two streams token by token."""
    alignment = align(a, b)
    worst, worst_at = _worst(a, b, alignment.pairs)
    pairs, by_ids = alignment.pairs[-WINDOW:], alignment.by_ids
    sides: list[Mapping[Name, float]] = [{}, {}]
    if alignment.parts:
        for i, (side, place) in enumerate(zip((a, b), alignment.places, strict=True)):
            if 0 <= place < len(side.rows):
                sides[i] = side.top(side.rows[place], by_ids=by_ids)
    divergences = [least_divergence(a.top(x, by_ids=by_ids), b.top(y, by_ids=by_ids)) for x, y in pairs]
    if alignment.parts:
        divergences.append(least_divergence(*sides))
    ours, theirs = alignment.names
    margins = _margin(sides[0], ours, theirs), _margin(sides[1], theirs, ours)
    return Comparison(
        alignment,
        any(margin is not None and abs(margin) <= TIE for margin in margins),
        margins,
        (_first(ours, sides[0], sides[1]), _first(theirs, sides[1], sides[0])),
        worst,
        worst_at,
        tuple(divergences),
        (*alignment.notes, *_modes(a, b)),
    )


def _worst(a: Side, b: Side, pairs: list[tuple[int, int]]) -> tuple[float | None, tuple[int, int] | None]:
    """Largest difference of the logprobs of equal tokens, and at which of them it is first."""
    ours, theirs = a.view.state.tokens.logprobs, b.view.state.tokens.logprobs
    gaps = [abs(ours[x] - theirs[y]) for x, y in pairs]
    numbers = [gap for gap in gaps if not math.isnan(gap)]
    return (max(numbers), pairs[gaps.index(max(numbers))]) if numbers else (None, None)


def _modes(a: Side, b: Side) -> tuple[str, ...]:
    """A note if the logprobs are of different distributions."""
    modes = a.stream.logprobs_mode, b.stream.logprobs_mode
    if modes[0] == modes[1]:
        return ()
    ours, theirs = ("as its server has them" if mode is None else f"{mode}, {MEANINGS[mode]}" for mode in modes)
    return (f"logprobs of two kinds: A {ours}; B {theirs}",)


def _margin(top: Mapping[Name, float], own: Name | None, other: Name | None) -> float | None:
    if own is None or other is None or own not in top or other not in top:
        return None
    return top[own] - top[other]


def _first(name: Name | None, *tops: Mapping[Name, float]) -> float | None:
    """Logprob of a token on the first side that has it."""
    return next((top[name] for top in tops if name is not None and name in top), None)
