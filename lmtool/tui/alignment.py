"""Where the sequences of two streams, each its prompt and its own tokens, are the same."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from lmtool.logprobs.distribution import sum_by_name
from lmtool.tui.recorded_request import context_of

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence

    from lmtool.tui.streams import Stream
    from lmtool.tui.view import View

Name: TypeAlias = "int | bytes"
"""What a token is called so that it is the same on both sides: its id, or its bytes between two tokenizers."""


Begin: TypeAlias = "Sequence[int]"
"""What a sequence begins with: the ids of its prompt, or their bytes."""
T = TypeVar("T")
OTHER_PROMPTS = "their prompts differ: their own tokens are aligned, after different ones"


@dataclass(frozen=True, slots=True)
class Side:
    """One stream, looked at through its view."""

    view: View
    stream: Stream

    @property
    def rows(self) -> array[int]:
        """Its tokens that are seen."""
        return self.stream.rows[: self.stream.count(self.view.seen)]

    @property
    def ids(self) -> list[int]:
        """Their ids; texts without an id have numbers of their own."""
        return [self.view.state.tokens.ids[row] for row in self.rows]

    def spelling(self, row: int) -> bytes:
        """Bytes of a token; of one that nobody spells, its sign."""
        spelling = self.view.state.texts.spelling(self.view.state.tokens.ids[row])
        return self.view.state.token_text(row).encode() if spelling is None else spelling

    def spelled(self, token: int | str | bytes) -> bytes:
        """The same of an id, or of a text that has none."""
        if not isinstance(token, int):
            return token if isinstance(token, bytes) else token.encode()
        spelling = self.view.state.texts.spelling(token)
        return self.view.state.text_of(token).encode() if spelling is None else spelling

    def top(self, row: int, *, by_ids: bool) -> Mapping[Name, float]:
        """Logprobs of a token and its alternatives by name."""
        listed = self.view.alternatives(row)
        if by_ids:
            return {one: p for one, p in listed if isinstance(one, int)}
        return sum_by_name([(self.spelled(one), p) for one, p in listed])


@dataclass(frozen=True, slots=True)
class Alignment:
    """What two sequences have in common from where both begin."""

    by_ids: bool
    """Whether tokens were compared as ids; otherwise as text."""
    same: int
    """Equal tokens behind what both have as prompt; by text: those that are cut alike."""
    characters: int | None
    """By text: equal characters there."""
    pairs: list[tuple[int, int]]
    """Rows of equal tokens that both streams have a logprob of."""
    places: tuple[int, int]
    """For each side the first of its tokens that is not the same; below 0 in its prompt."""
    parted: bool
    """Whether both go on, differently."""
    names: tuple[Name | None, Name | None]
    """What each side goes on with; None where that is not known."""
    notes: tuple[str, ...]
    """What must be known to read this."""


def align(a: Side, b: Side) -> Alignment:
    """Align two streams by what their tokens follow, else at the beginnings of their own tokens, and say so."""
    by_ids, notes = _tokenizers(a, b)
    contexts = context_of(a.view, a.stream), context_of(b.view, b.stream)
    ours, theirs = map(_ids, contexts)
    begins: tuple[Begin, Begin] = ((), ()) if by_ids else (b"", b"")
    if ours is not None and theirs is not None:
        found = (ours, theirs) if by_ids else (_spelled(a, ours), _spelled(b, theirs))
        if _common(*found) == min(map(len, found)):
            begins = found
        else:
            notes += (OTHER_PROMPTS,)
    elif None in contexts:
        notes += ("a prompt is not known: their own tokens are aligned",)
    elif contexts[0] != contexts[1]:
        notes += (OTHER_PROMPTS,)
    return (_by_ids if by_ids else _by_text)(a, b, begins, notes)


def _spelled(side: Side, prompt: Sequence[int]) -> bytes:
    return b"".join(map(side.spelled, prompt))


def _ids(context: object) -> tuple[int, ...] | None:
    if isinstance(context, tuple) and all(isinstance(token, int) for token in context):
        return context
    return None


def _tokenizers(a: Side, b: Side) -> tuple[bool, tuple[str, ...]]:
    """Whether ids mean the same on both sides, and what to say where that is not so."""
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


def _by_ids(a: Side, b: Side, begins: tuple[Begin, Begin], notes: tuple[str, ...]) -> Alignment:
    """By position in the sequence."""
    rows, shift = (a.rows, b.rows), tuple(map(len, begins))
    whole = [*begins[0], *a.ids], [*begins[1], *b.ids]
    common = _common(*whole)
    return Alignment(
        by_ids=True,
        same=common - min(shift),
        characters=None,
        pairs=[(rows[0][i - shift[0]], rows[1][i - shift[1]]) for i in range(max(shift), common)],
        places=(common - shift[0], common - shift[1]),
        parted=common < min(map(len, whole)),
        names=(_at(whole[0], common), _at(whole[1], common)),
        notes=notes,
    )


def _by_text(a: Side, b: Side, begins: tuple[Begin, Begin], notes: tuple[str, ...]) -> Alignment:
    """By the bytes of both sequences, tokens that begin and end at the same ones being equal."""
    ours, theirs = _Cut(a, bytes(begins[0])), _Cut(b, bytes(begins[1]))
    common = _common(ours.whole, theirs.whole)
    shared, longer = sorted((ours.edges[0], theirs.edges[0]))
    spans, others = ours.spans(longer, common), theirs.spans(longer, common)
    alike = [span for span in spans if span in others]
    return Alignment(
        by_ids=False,
        same=len(alike),
        characters=len(ours.whole[shared:common].decode(errors="ignore")),
        pairs=[(spans[span], others[span]) for span in alike],
        places=(ours.place(common), theirs.place(common)),
        parted=common < min(len(ours.whole), len(theirs.whole)),
        names=(ours.name(common), theirs.name(common)),
        notes=notes,
    )


class _Cut:
    """A stream as bytes, and where its tokens begin."""

    def __init__(self, side: Side, begin: bytes) -> None:
        self._rows = side.rows
        self._pieces = [side.spelling(row) for row in self._rows]
        self.whole = begin + b"".join(self._pieces)
        self.edges = list(accumulate(map(len, self._pieces), initial=len(begin)))

    def spans(self, first: int, last: int) -> dict[tuple[int, int], int]:
        """Row of each token that lies between two places, by where it begins and ends."""
        spans = zip(pairwise(self.edges), self._rows, strict=True)
        return {span: row for span, row in spans if first <= span[0] < span[1] <= last}

    def place(self, at: int) -> int:
        """The token that reaches beyond a place; below 0 for one of the prompt."""
        return -1 if at < self.edges[0] else bisect_right(self.edges, at) - 1

    def name(self, at: int) -> bytes | None:
        place = self.place(at)
        return None if place < 0 else _at(self._pieces, place)


def _common(ours: Sequence[object], theirs: Sequence[object]) -> int:
    """How many elements are equal from the first one on."""
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(ours), len(theirs)))


def _at(names: Sequence[T], place: int) -> T | None:
    return names[place] if place < len(names) else None
