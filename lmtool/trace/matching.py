"""Which recorded exchange answers a request that comes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lmtool.trace.exchanges import HttpExchange, LmtpExchange

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.trace.exchanges import Exchange

How: TypeAlias = Literal["exact", "prompt", "order"]
"""`exact`: all fields; `prompt`: model and prompt; `order`: the n-th request gets the n-th answer."""
HOWS: tuple[How, ...] = get_args(How)

DEFAULTS: Mapping[str, object] = {"temperature": 0.0, "max_tokens": 32, "top_logprobs": 1, "logit_bias": {}}
"""What a missing field of a GENERATE means (LMTP)."""
_PROMPT_FIELDS = ("model", "prompt", "scored", "messages", "input")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that comes in."""

    kind: str
    """The LMTP command, or an HTTP method and path; empty for a frame that is no request."""
    payload: Mapping[str, object]
    text: str | bytes
    """The frame, or the body."""


@dataclass(frozen=True, slots=True)
class Miss:
    """No recorded request matches."""

    nearest: Exchange | None
    """The one with the fewest fields that differ, used or not."""
    differences: tuple[str, ...]
    """A sentence for each field of it that differs."""


class Matcher:
    """Finds an unused exchange for each request. Call `match` once for each, in order."""

    def __init__(
        self, recorded: Sequence[Exchange], how: How = "exact", *, ignore: Sequence[str] = (), reuse: bool = False
    ) -> None:
        """Match against recorded exchanges.

        ignore: fields that need not be equal. reuse: when all that match are used, the least used one answers again.
        """
        self._recorded = recorded
        self._uses = [0] * len(recorded)
        self._how = how
        self._ignore = frozenset(("stream_id", *ignore))
        self._reuse = reuse

    @property
    def unused(self) -> list[Exchange]:
        """Recorded exchanges that no request has asked for."""
        return [exchange for exchange, uses in zip(self._recorded, self._uses, strict=True) if not uses]

    def match(self, asked: Asked) -> Exchange | Miss:
        """The exchange that answers a request."""
        fitting = [i for i, exchange in enumerate(self._recorded) if self._fits(exchange, asked)]
        fresh = [i for i in fitting if not self._uses[i]]
        if not fresh and self._reuse:
            fresh = sorted(fitting, key=self._uses.__getitem__)
        if not fresh:
            return self._miss(asked)
        self._uses[fresh[0]] += 1
        return self._recorded[fresh[0]]

    def _fits(self, exchange: Exchange, asked: Asked) -> bool:
        if self._how == "order":
            return isinstance(exchange, HttpExchange) == (" " in asked.kind)
        if kind_of(exchange) != asked.kind:
            return False
        if not asked.kind or not (asked.payload or exchange.payload):
            return text_of(exchange) == asked.text
        return not self._differing(exchange, asked)

    def _differing(self, exchange: Exchange, asked: Asked) -> list[str]:
        ours, theirs = _canonical(exchange.payload, asked.kind), _canonical(asked.payload, asked.kind)
        names = _PROMPT_FIELDS if self._how == "prompt" else dict.fromkeys((*ours, *theirs))
        return [n for n in names if n not in self._ignore and not _equal(ours.get(n), theirs.get(n))]

    def _miss(self, asked: Asked) -> Miss:
        same_kind = [exchange for exchange in self._recorded if kind_of(exchange) == asked.kind]
        if not same_kind:
            return Miss(None, ())
        nearest = min(same_kind, key=lambda exchange: len(self._differing(exchange, asked)))
        names = self._differing(nearest, asked)
        ours, theirs = _canonical(nearest.payload, asked.kind), _canonical(asked.payload, asked.kind)
        told = tuple(_difference(name, ours.get(name), theirs.get(name)) for name in names)
        return Miss(nearest, told or ("every recorded request that equals it has been answered already",))


def kind_of(exchange: Exchange) -> str:
    """What `Asked.kind` is for this exchange's request."""
    if isinstance(exchange, LmtpExchange):
        return exchange.command or ""
    return f"{exchange.request.method} {exchange.request.path}"


def text_of(exchange: Exchange) -> str | bytes:
    """What `Asked.text` is for this exchange's request."""
    return exchange.text if isinstance(exchange, LmtpExchange) else exchange.request.wire_body()


def _canonical(payload: Mapping[str, object], kind: str) -> Mapping[str, object]:
    return {**DEFAULTS, **payload} if kind == "GENERATE" else payload


def _equal(recorded: object, given: object) -> bool:
    """Whether two values mean the same: 1, 1.0 are equal, and so are 0.0, -0.0; of redacted prompts, the lengths."""
    if isinstance(recorded, dict) and "$redacted" in recorded:
        return isinstance(given, list | str) and len(given) == recorded.get("n")
    return bool(recorded == given)


def _difference(name: str, recorded: object, given: object) -> str:
    if isinstance(recorded, list) and isinstance(given, list):
        pairs = zip(recorded, given, strict=False)
        place = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(recorded), len(given)))
        return (
            f"{name} differs at {place}: recorded {_short(recorded[place : place + 1])} of {len(recorded)}, "
            f"got {_short(given[place : place + 1])} of {len(given)}"
        )
    return f"{name}: recorded {_short(recorded)}, got {_short(given)}"


def _short(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
