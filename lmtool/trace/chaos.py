"""Answers made difficult, within the protocol or by a lost connection: what a client must bear."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from random import Random
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, get_args

from lmtool.core.errors import UsageError
from lmtool.trace.exchanges import Part, Reply

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lmtool.trace.exchanges import Exchange

Trouble: TypeAlias = Literal["batch", "delay", "fields", "commands", "cut"]
"""`batch`: tokens split otherwise over frames, bytes over chunks; `delay`: extra waits; `fields`, `commands`: unknown
ones; `cut`: every other answer ends with the connection."""
TROUBLES: tuple[Trouble, ...] = get_args(Trouble)
MOST_DELAY = 0.05
"""Seconds added before one piece."""

_Piece = TypeVar("_Piece", Reply, Part)


def parse(words: str) -> tuple[Trouble, ...]:
    """The troubles named in `batch,delay`, or `all`. Raises `UsageError` for an unknown one."""
    names = [word.strip() for word in words.split(",") if word.strip()]
    if unknown := [name for name in names if name not in (*TROUBLES, "all")]:
        raise UsageError(f"--chaos knows no {unknown[0]!r}", f"one or more of {', '.join(TROUBLES)}, all; with commas")
    return TROUBLES if "all" in names else tuple(one for one in TROUBLES if one in names)


@dataclass(frozen=True, slots=True)
class Chaos:
    """Changes answers; what it does to an exchange depends on the seed and on nothing but that exchange."""

    troubles: tuple[Trouble, ...]
    seed: int = 0

    def replies(self, exchange: Exchange, replies: Iterable[Reply]) -> tuple[list[Reply], bool]:
        """LMTP replies to send instead, and whether the connection is cut after them."""
        random = self._random(exchange)
        changed = list(replies)
        if "batch" in self.troubles:
            changed = list(_batched(changed, random))
        if "fields" in self.troubles:
            for i, reply in enumerate(changed):
                entries = ({**e, f"x_unknown_{random.randrange(100)}": random.randrange(100)} for e in reply.entries)
                changed[i] = replace(reply, entries=tuple(entries), exact=None)
        if "commands" in self.troubles:
            changed = list(_with_commands(changed, random))
        return self._late_and_cut(changed, random)

    def parts(self, exchange: Exchange, parts: Iterable[Part]) -> tuple[list[Part], bool]:
        """Parts of an HTTP body to send instead, and whether the connection is cut after them."""
        random = self._random(exchange)
        changed = list(_split(parts, random)) if "batch" in self.troubles else list(parts)
        return self._late_and_cut(changed, random)

    def _random(self, exchange: Exchange) -> Random:
        return Random(f"{self.seed} {exchange.connection} {exchange.time!r}")  # noqa: S311 - no secret, repeatable

    def _late_and_cut(self, pieces: list[_Piece], random: Random) -> tuple[list[_Piece], bool]:
        if "delay" in self.troubles:
            late = accumulate(random.random() * MOST_DELAY for _ in pieces)
            pieces = [replace(one, offset=one.offset + extra) for one, extra in zip(pieces, late, strict=True)]
        if "cut" in self.troubles and pieces and random.random() < 0.5:
            return pieces[: random.randrange(len(pieces))], True
        return pieces, False


def _batched(replies: Sequence[Reply], random: Random) -> Iterator[Reply]:
    """The same entries in the same order, in frames of one to four; a frame goes out when its last entry does."""
    waiting: list[tuple[Reply, Mapping[str, object]]] = []
    size = random.randint(1, 4)
    for reply in replies:
        if reply.command != "TOKEN":
            yield from _joined(waiting)
            waiting = []
            yield reply
            continue
        for entry in reply.entries:
            waiting.append((reply, entry))
            if len(waiting) == size:
                yield from _joined(waiting)
                waiting, size = [], random.randint(1, 4)
    yield from _joined(waiting)


def _joined(waiting: Sequence[tuple[Reply, Mapping[str, object]]]) -> Iterator[Reply]:
    if waiting:
        yield replace(waiting[-1][0], entries=tuple(entry for _, entry in waiting), bare=False, exact=None)


def _with_commands(replies: Sequence[Reply], random: Random) -> Iterator[Reply]:
    for reply in replies:
        if random.random() < 0.5:
            entry = {"stream_id": reply.entries[0].get("stream_id"), "unknown": random.randrange(100)}
            yield Reply(reply.offset, f"X_UNKNOWN_{random.randrange(100)}", (entry,), bare=False, style=reply.style)
        yield reply


def _split(parts: Iterable[Part], random: Random) -> Iterator[Part]:
    """The same bytes, cut at other places, some of them inside a character or an event."""
    for part in parts:
        places = sorted(random.randrange(len(part.data) + 1) for _ in range(random.randint(0, 3)))
        for start, end in pairwise((0, *places, len(part.data))):
            if start < end:
                yield Part(part.offset, part.data[start:end])
