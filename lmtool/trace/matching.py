"""Which recorded exchange answers a request that comes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar

from lmtool.trace.diff import first_difference
from lmtool.trace.stream_events import INCOMPLETE, INPUT, PROMPT_MEMBERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.trace.exchanges import RecordedRequest

R = TypeVar("R", bound="RecordedRequest")
Protocol: TypeAlias = Literal["lmtp", "http", "evergreen"]
OnMiss: TypeAlias = Literal["error", "nearest", "close", "hang"]
"""What a client gets whose request no recorded one matches."""
MatchMode: TypeAlias = Literal["exact", "prompt", "order"]
"""`exact`: all fields; `prompt`: model and prompt; `order`: the n-th request gets the n-th answer."""

DEFAULTS: Mapping[str, object] = {"temperature": 0.0, "max_tokens": 32, "top_logprobs": 1, "logit_bias": {}}
"""What a missing field of a GENERATE means (LMTP)."""


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request that comes in."""

    kind: str
    """The LMTP command, an HTTP method and path, or an action's name; empty for a frame that is no request."""
    payload: Mapping[str, object]
    text: str | bytes
    """The frame, or the body."""
    protocol: Protocol = "lmtp"


@dataclass(frozen=True, slots=True)
class Miss:
    """No recorded request matches."""

    nearest: RecordedRequest | None
    """The one with the fewest fields that differ, used or not."""
    differences: tuple[str, ...]
    """A sentence for each field of it that differs."""


class Matcher(Generic[R]):
    """Finds an unused exchange for each request. Call `match` once for each, in order."""

    def __init__(
        self,
        recorded: Sequence[R],
        mode: MatchMode = "exact",
        *,
        ignore: Sequence[str] = (),
        reuse: bool = False,
    ) -> None:
        """Match against recorded exchanges.

        ignore: fields that need not be equal. reuse: when all that match are used, the least used one answers again.
        """
        self.recorded = recorded
        """All exchanges, used or not."""
        self._uses = [0] * len(recorded)
        self._mode = mode
        self._ignore = frozenset(("stream_id", *ignore))
        self._reuse = reuse

    @property
    def unused(self) -> list[R]:
        """Recorded exchanges that no request has matched."""
        return [exchange for exchange, uses in zip(self.recorded, self._uses, strict=True) if not uses]

    def candidates(self, request: IncomingRequest) -> list[R]:
        """The exchanges, used or not, that a request may match once what is `INCOMPLETE` of it is known."""
        return [exchange for exchange in self.recorded if self._fits(exchange, request)]

    def match(self, request: IncomingRequest | RecordedRequest) -> R | Miss:
        """The exchange that answers a request."""
        fitting = [i for i, exchange in enumerate(self.recorded) if self._fits(exchange, request)]
        fresh = [i for i in fitting if not self._uses[i]]
        if not fresh and self._reuse:
            fresh = sorted(fitting, key=self._uses.__getitem__)
        if not fresh:
            return self._miss(request)
        self._uses[fresh[0]] += 1
        return self.recorded[fresh[0]]

    def _fits(self, exchange: RecordedRequest, request: IncomingRequest | RecordedRequest) -> bool:
        if exchange.protocol != request.protocol:
            return False
        if self._mode == "order":
            return True
        if not _same_kind(exchange.kind, request.kind):
            return False
        if not request.kind or not (request.payload or exchange.payload):
            return exchange.text == request.text
        return not self._differing(exchange, request)

    def _differing(self, exchange: RecordedRequest, request: IncomingRequest | RecordedRequest) -> list[str]:
        ours, theirs = _canonical(exchange.payload, request.kind), _canonical(request.payload, request.kind)
        names = [name for name in dict.fromkeys((*ours, *theirs)) if self._mode != "prompt" or _is_prompt(name)]
        return [n for n in names if n not in self._ignore and not _equal(ours.get(n), theirs.get(n))]

    def _miss(self, request: IncomingRequest | RecordedRequest) -> Miss:
        same_kind = [
            exchange
            for exchange in self.recorded
            if exchange.protocol == request.protocol and _same_kind(exchange.kind, request.kind)
        ]
        if not same_kind:
            return Miss(None, ())
        nearest = min(same_kind, key=lambda exchange: len(self._differing(exchange, request)))
        names = self._differing(nearest, request)
        ours, theirs = _canonical(nearest.payload, request.kind), _canonical(request.payload, request.kind)
        differences = tuple(_difference(name, ours.get(name), theirs.get(name)) for name in names)
        return Miss(nearest, differences or ("every recorded request that equals it has been answered already",))


def _same_kind(recorded: str, received: str) -> bool:
    """Whether kinds are equal; a recording that left out headers has paths without what stood behind the `?`."""
    return recorded in (received, received.partition("?")[0])


def _is_prompt(name: str) -> bool:
    return name == "model" or name in PROMPT_MEMBERS or name.startswith(INPUT)


def _canonical(payload: Mapping[str, object], kind: str) -> Mapping[str, object]:
    return {**DEFAULTS, **payload} if kind == "GENERATE" else payload


def _equal(recorded: object, received: object) -> bool:
    """Whether two values mean the same: 1, 1.0 are equal, and so are 0.0, -0.0; of redacted prompts, the lengths."""
    if INCOMPLETE in (recorded, received):
        return True
    if isinstance(recorded, dict) and "$redacted" in recorded:
        return isinstance(received, list | str) and len(received) == recorded.get("n")
    return bool(recorded == received)


def _difference(name: str, recorded: object, received: object) -> str:
    if isinstance(recorded, list) and isinstance(received, list):
        place = first_difference(recorded, received)
        return (
            f"{name} differs at {place}: recorded {_short(recorded[place : place + 1])} of {len(recorded)}, "
            f"got {_short(received[place : place + 1])} of {len(received)}"
        )
    return f"{name}: recorded {_short(recorded)}, got {_short(received)}"


def _short(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
