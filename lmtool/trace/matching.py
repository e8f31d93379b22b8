"""Find the recorded exchange that answers a request; replay its answer at a pace, or with faults injected (`Chaos`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapreplace
from itertools import accumulate, chain, islice, pairwise
from random import Random
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar, get_args

from lmtool.core.errors import UsageError
from lmtool.trace.exchanges import Part, Reply
from lmtool.trace.stream_events import INCOMPLETE, INPUT, PROMPT_MEMBERS

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from lmtool.trace.exchanges import Exchange, RecordedRequest

R = TypeVar("R", bound="RecordedRequest")
Protocol: TypeAlias = Literal["lmtp", "http", "evergreen"]
OnMiss: TypeAlias = Literal["error", "nearest", "close", "hang"]
"""Answer to a request that matches no recorded one."""
MatchMode: TypeAlias = Literal["exact", "prompt", "order"]
"""`exact`: all fields; `prompt`: model and prompt; `order`: the n-th request gets the n-th answer."""

DEFAULTS: Mapping[str, object] = {"temperature": 0.0, "max_tokens": 32, "top_logprobs": 1, "logit_bias": {}}
"""Defaults of GENERATE fields (LMTP)."""
_COMPARED = 32
"""Candidates for the nearest request: with the same prompt, the same other fields, the same kind; this many each."""
_HASHED_DEPTH = 20
"""Nesting levels that contribute to a value's hash."""


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request to the mock server."""

    kind: str
    """LMTP command, HTTP method and path, or an action's name; empty for a frame that is no request."""
    payload: Mapping[str, object]
    text: str | bytes
    """The frame, or the body."""
    protocol: Protocol = "lmtp"


@dataclass(frozen=True, slots=True)
class Miss:
    """Result for a request that matches no recorded one."""

    nearest: RecordedRequest | None
    """Recorded request with few different fields, used or not; None if no request of this kind."""
    differences: tuple[str, ...]
    """A sentence for each different field."""


class Matcher(Generic[R]):
    """Finds the recorded exchange that answers a request. Call `match` once per request, in order.

    Requests are looked up by hash: the time does not depend on the number of recorded exchanges.
    """

    def __init__(
        self, recorded: Sequence[R], mode: MatchMode = "exact", *, ignore: Sequence[str] = (), once: bool = False
    ) -> None:
        """Index recorded exchanges.

        ignore: fields that may differ. once: an exchange answers one request; otherwise exchanges are used again, in
        order, once all that match were used.
        """
        self.recorded = recorded
        """All exchanges, used or not."""
        self._uses = [0] * len(recorded)
        self._mode = mode
        self._ignore = frozenset(("stream_id", *ignore))
        self._once = once
        self._index = _Index(recorded, self._is_compared, any_kind=mode == "order")
        self._same_prompt = _Index(recorded, lambda name: self._is_compared(name) and _is_prompt(name))
        self._same_rest = _Index(recorded, lambda name: self._is_compared(name) and not _is_prompt(name))

    @property
    def unused(self) -> list[R]:
        """Recorded exchanges that no request has matched."""
        return [exchange for exchange, uses in zip(self.recorded, self._uses, strict=True) if not uses]

    def candidates(self, request: IncomingRequest) -> Iterator[R]:
        """Exchanges, used or not, that a request may match once its `INCOMPLETE` inputs are known."""
        return (self.recorded[self._place(rank)] for rank in chain.from_iterable(self._index.groups(request)))

    def match(self, request: IncomingRequest | RecordedRequest) -> R | Miss:
        """Exchange that answers a request, or the nearest miss."""
        groups = [group for group in self._index.groups(request) if not (self._least_used(group) and self._once)]
        if not groups:
            return self._miss(request)
        place = self._place(min(group[0] for group in groups))
        self._uses[place] += 1
        return self.recorded[place]

    # A group is a heap of ranks, each the uses of an exchange times their number plus its place. Exchanges that several
    # requests may match are in several heaps, so a rank may be out of date; it is never too high.

    def _place(self, rank: int) -> int:
        return rank % len(self.recorded)

    def _least_used(self, group: list[int]) -> int:
        """Bring the least used exchange to the front, the first of several; return how often it was used."""
        number = len(self.recorded)
        while group[0] // number != (uses := self._uses[group[0] % number]):
            heapreplace(group, uses * number + group[0] % number)
        return group[0] // number

    def _is_compared(self, name: str) -> bool:
        return self._mode != "order" and name not in self._ignore and (self._mode == "exact" or _is_prompt(name))

    def _differing(self, exchange: RecordedRequest, request: IncomingRequest | RecordedRequest) -> list[str]:
        ours, theirs = _canonical(exchange.payload, request.kind), _canonical(request.payload, request.kind)
        names = filter(self._is_compared, dict.fromkeys((*ours, *theirs)))
        return [name for name in names if not _equal(ours.get(name), theirs.get(name))]

    def _miss(self, request: IncomingRequest | RecordedRequest) -> Miss:
        near = (self._same_prompt.groups(request), self._same_rest.groups(request), self._index.of_kind(request))
        ranks = (rank for some in near for rank in islice(chain.from_iterable(some), _COMPARED))
        compared = [self.recorded[self._place(rank)] for rank in ranks]
        if not compared:
            return Miss(None, ())
        nearest = min(compared, key=lambda exchange: len(self._differing(exchange, request)))
        names = self._differing(nearest, request)
        ours, theirs = _canonical(nearest.payload, request.kind), _canonical(request.payload, request.kind)
        differences = tuple(_difference(name, ours.get(name), theirs.get(name)) for name in names)
        return Miss(nearest, differences or ("all recorded answers to this request were used",))


_Unknown: TypeAlias = frozenset[tuple[str, Literal["incomplete", "redacted"]]]
"""Fields of a request that are not fully known, each with the reason."""


def _unknown(payload: Mapping[str, object], names: Container[str]) -> _Unknown:
    known = [(name, value) for name, value in payload.items() if name in names]
    redacted: _Unknown = frozenset((name, "redacted") for name, value in known if _is_redacted(value))
    return redacted.union((name, "incomplete") for name, value in known if value == INCOMPLETE)


class _Fields:
    """Compared fields of a request as a dictionary key; its hash agrees with the equality of JSON values."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Mapping[str, object] | str | bytes) -> None:
        self._value = value
        self._hash = _hash_of(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fields) and self._value == other._value


class _Index:
    """Positions of recorded requests by their compared fields, in groups of equal ones."""

    def __init__(
        self, recorded: Sequence[RecordedRequest], is_compared: Callable[[str], bool], *, any_kind: bool = False
    ) -> None:
        self._recorded = recorded
        self._is_compared = is_compared
        self._any_kind = any_kind
        self._kinds: dict[tuple[str, str], dict[_Unknown, list[int]]] = {}
        self._names: dict[tuple[str, str], frozenset[str]] = {}
        self._tables: dict[tuple[tuple[str, str], _Unknown, _Unknown], dict[_Fields, list[int]]] = {}
        """Groups of those recorded with some unknown fields for requests with some unknown fields."""
        early: set[tuple[tuple[str, str], _Unknown]] = set()
        for place, exchange in enumerate(recorded):
            payload = exchange.payload
            kind: tuple[str, str] = (exchange.protocol, "" if any_kind else exchange.kind)
            self._kinds.setdefault(kind, {}).setdefault(_unknown(payload, payload.keys()), []).append(place)
            if not self._names.setdefault(kind, frozenset()).issuperset(payload):
                self._names[kind] = self._names[kind].union(payload)
            early.add((kind, frozenset()))
            early.add((kind, frozenset((name, "incomplete") for name in payload if name.startswith(INPUT))))
        for kind, unknown in early:  # so that the first request need not wait for a table
            for recorded_unknown in self._kinds[kind]:
                self._table(kind, recorded_unknown, unknown)

    def groups(self, request: IncomingRequest | RecordedRequest) -> Iterator[list[int]]:
        """Groups that a request fits: several if fields are unknown or the recording omits queries."""
        for kind in self._kinds_of(request):
            unknown = _unknown(request.payload, self._names[kind])
            for recorded_unknown in self._kinds[kind]:
                fields = self._fields(request, request.kind, recorded_unknown | unknown)
                if group := self._table(kind, recorded_unknown, unknown).get(fields):
                    yield group

    def of_kind(self, request: IncomingRequest | RecordedRequest) -> Iterator[list[int]]:
        """Positions of all requests of its kind."""
        return chain.from_iterable(self._kinds[kind].values() for kind in self._kinds_of(request))

    def _kinds_of(self, request: IncomingRequest | RecordedRequest) -> list[tuple[str, str]]:
        """Kinds to look up; a recording without headers has paths without their query."""
        names = ("",) if self._any_kind else dict.fromkeys((request.kind, request.kind.partition("?")[0]))
        return [kind for name in names if (kind := (request.protocol, name)) in self._kinds]

    def _table(self, kind: tuple[str, str], recorded_unknown: _Unknown, unknown: _Unknown) -> dict[_Fields, list[int]]:
        key = (kind, recorded_unknown, unknown)
        if key not in self._tables:
            table = self._tables[key] = {}
            for place in self._kinds[kind][recorded_unknown]:
                exchange = self._recorded[place]
                fields = self._fields(exchange, exchange.kind, recorded_unknown | unknown)
                table.setdefault(fields, []).append(place)
        return self._tables[key]

    def _fields(self, request: IncomingRequest | RecordedRequest, kind: str, unknown: _Unknown) -> _Fields:
        if self._any_kind:
            return _Fields("")
        if not request.payload:
            return _Fields(request.text)
        fields = {
            name: {"length": _length(value)} if (name, "redacted") in unknown else value
            for name, value in _canonical(request.payload, kind).items()
            if value is not None and self._is_compared(name) and (name, "incomplete") not in unknown
        }
        return _Fields(fields)


def _hash_of(value: object, depth: int = _HASHED_DEPTH) -> int:
    """Equal for values that are equal as JSON: 1 and 1.0, and members in any order."""
    if isinstance(value, dict):
        return hash(frozenset((name, _hash_of(member, depth - 1)) for name, member in value.items())) if depth else 0
    if not isinstance(value, list):
        return hash(value)
    try:
        return hash(tuple(value))
    except TypeError:  # it holds lists or objects
        return hash(tuple(_hash_of(member, depth - 1) for member in value)) if depth else 0


def _is_prompt(name: str) -> bool:
    return name == "model" or name in PROMPT_MEMBERS or name.startswith(INPUT)


def _canonical(payload: Mapping[str, object], kind: str) -> Mapping[str, object]:
    return {**DEFAULTS, **payload} if kind == "GENERATE" else payload


def _equal(recorded: object, received: object) -> bool:
    """True if two values mean the same: 1 and 1.0, 0.0 and -0.0; redacted prompts of equal length."""
    if INCOMPLETE in (recorded, received):
        return True
    if _is_redacted(recorded) or _is_redacted(received):
        return _length(recorded) == _length(received)
    return bool(recorded == received)


def _is_redacted(value: object) -> bool:
    return isinstance(value, dict) and "$redacted" in value


def _length(value: object) -> object:
    """Number of ids, messages or characters, also of a redacted value; 1 for any other value."""
    if isinstance(value, dict) and "$redacted" in value:
        return value.get("n")
    return len(value) if isinstance(value, list | str) else 1


def _difference(name: str, recorded: object, received: object) -> str:
    if isinstance(recorded, list) and isinstance(received, list):
        place = first_difference(recorded, received)
        return (
            f"{name} differs at {place}: recorded {quote(recorded[place : place + 1], 60)} of {len(recorded)}, "
            f"got {quote(received[place : place + 1], 60)} of {len(received)}"
        )
    return f"{name}: recorded {quote(recorded, 60)}, got {quote(received, 60)}"


def first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    """First position at which two sequences differ; the length of the shorter one if it is a prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def quote(value: object, most: int = 100) -> str:
    """A value in at most this many characters, for a message."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


Trouble: TypeAlias = Literal["batch", "delay", "fields", "commands", "cut"]
"""`batch`: tokens regrouped into other frames, bytes into other chunks; `delay`: extra waits; `fields`, `commands`:
unknown ones added; `cut`: about half of the answers end with a lost connection."""
TROUBLES: tuple[Trouble, ...] = get_args(Trouble)
MOST_DELAY = 0.05
"""Seconds added before one piece, at most."""

_Piece = TypeVar("_Piece", Reply, Part)


def parse_chaos(words: str) -> tuple[Trouble, ...]:
    """Faults named in `batch,delay`, or `all`. Raises `UsageError` for an unknown one."""
    names = [word.strip() for word in words.split(",") if word.strip()]
    if unknown := [name for name in names if name not in (*TROUBLES, "all")]:
        raise UsageError(
            f"unknown fault {unknown[0]!r} in --chaos", f"one or more of {', '.join(TROUBLES)}, all; with commas"
        )
    return TROUBLES if "all" in names else tuple(one for one in TROUBLES if one in names)


@dataclass(frozen=True, slots=True)
class Chaos:
    """Injects faults into answers; the faults of an exchange depend only on the seed and on that exchange."""

    troubles: tuple[Trouble, ...]
    seed: int = 0

    def replies(self, exchange: Exchange, replies: Iterable[Reply]) -> tuple[list[Reply], bool]:
        """LMTP replies to send instead, and True if the connection is cut after them."""
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
        """Parts of an HTTP body to send instead, and True if the connection is cut after them."""
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
    """The same entries in the same order, in frames of one to four; a frame is sent when its last entry is due."""
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
    """The same bytes, split at other places, also inside characters and events."""
    for part in parts:
        places = sorted(random.randrange(len(part.data) + 1) for _ in range(random.randint(0, 3)))
        for start, end in pairwise((0, *places, len(part.data))):
            if start < end:
                yield Part(part.offset, part.data[start:end])


@dataclass(frozen=True, slots=True)
class Pace:
    """Timing of replayed answers."""

    speed: float | None = 1.0
    """Factor on the recorded speed; None does not wait."""
    max_gap: float | None = None
    """Longest wait between two pieces of an answer, in seconds; None for no limit."""

    def due(self, offsets: Iterable[float]) -> Iterator[float]:
        """Time of each piece, in seconds after its request."""
        due = before = 0.0
        for offset in offsets:
            gap = 0.0 if self.speed is None else max(0.0, offset - before) / self.speed
            due += gap if self.max_gap is None else min(gap, self.max_gap)
            before = offset
            yield due
