"""A recording sent again to a server, and everything that is found in what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lmtool.errors import UsageError
from lmtool.trace import scoring, timing
from lmtool.trace.comparison import Comparison, compare_again
from lmtool.trace.diff import Tolerance
from lmtool.trace.driver import Driver
from lmtool.trace.events import Frame, Parsed, Request
from lmtool.trace.exchanges import exchanges
from lmtool.trace.findings import Finding, worst
from lmtool.trace.script import acts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.trace.events import Event
    from lmtool.trace.findings import Level, Verdict
    from lmtool.trace.header import Header
    from lmtool.trace.proxy import Target


@dataclass(frozen=True, slots=True)
class Demand:
    """How much must be as recorded, and how long to wait for it."""

    level: Level = "numbers"
    tolerance: Tolerance = field(default_factory=Tolerance)
    limits: Mapping[str, object] = field(default_factory=dict)
    """As named in `timing.LIMITS`; looked at only at level `time`."""
    patience: float = 60.0
    """Seconds to wait for what does not come."""
    score: bool = True
    """Let the server score what was sampled without a seed (header: not where `sampled` is `shape`)."""
    speed: float | None = None
    """Also wait for the recorded times, this many times as fast; None: for no clock."""


def demand_of(
    header: Header,
    *,
    level: Level | None = None,
    tol_logprob: float | None = None,
    tie_eps: float | None = None,
    patience: float = 60.0,
    speed: float | None = None,
) -> Demand:
    """What a header's `verify` asks for, where nothing else is said."""
    asked = header.verify
    standard = Tolerance()
    told = asked.get("level")
    from_header: Level = told if told in ("shape", "ids", "numbers", "time") else "numbers"
    tolerance = Tolerance(
        _number(tol_logprob, asked.get("tol_logprob"), standard.logprob),
        _number(tie_eps, asked.get("tie_eps"), standard.tie),
    )
    return Demand(level or from_header, tolerance, asked, patience, asked.get("sampled") != "shape", speed)


def _number(said: float | None, told: object, standard: float) -> float:
    if said is not None:
        return said
    return float(told) if isinstance(told, int | float) else standard


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it."""

    comparisons: tuple[Comparison, ...]
    events: tuple[Event, ...]
    """Everything that went over the wire, to be kept as a trace; scoring is not in it."""

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        return worst([finding for one in self.comparisons for finding in one.findings])


async def replay(events: Sequence[Event], target: Target, demand: Demand) -> Replayed:
    """Send a recording to a server, compare the answers, and let it score what was sampled.

    events: without references to blobs. Raises `ConnectError`, and `UsageError` for a recording whose prompts were
    left out.
    """
    refuse_redacted(events)
    came, trouble = await _drive(events, target, demand)
    level = demand.level
    made = compare_again(events, came, level, demand.tolerance)
    if trouble:
        made.append(_note(f"{trouble} within {demand.patience:g} s", "fail"))
    if level == "time":
        found = tuple(timing.judge(exchanges(came), demand.limits))
        made += [Comparison(finding.stream, "time", (finding,)) for finding in found]
    if level in ("numbers", "time") and demand.score:
        made += await _scores(events, target, demand)
    return Replayed(tuple(made), tuple(came))


async def _drive(events: Sequence[Event], target: Target, demand: Demand) -> tuple[list[Event], str]:
    came: list[Event] = []
    driver = Driver(target, came.append, patience=demand.patience, speed=demand.speed)
    trouble = await driver.run(acts(events))
    return came, trouble


async def _scores(events: Sequence[Event], target: Target, demand: Demand) -> list[Comparison]:
    recorded = exchanges(events)
    left_out = scoring.unscored(recorded)
    made = [
        _note(f"sampled stream {one.connection}/{one.stream_id} is not scored: {why}", "info") for one, why in left_out
    ]
    if asked := scoring.as_scores(recorded):
        came, trouble = await _drive(asked, target, replace(demand, speed=None))
        scored = compare_again(asked, came, "numbers", demand.tolerance)
        made += [replace(one, kind="SCORE of a sampled stream") for one in scored]
        if trouble:
            made.append(_note(f"{trouble} within {demand.patience:g} s", "fail"))
    return made


def _note(message: str, verdict: Verdict) -> Comparison:
    return Comparison("-", "-", (Finding(verdict, "shape", "-", None, message),))


def refuse_redacted(events: Sequence[Event]) -> None:
    """Raise `UsageError` naming the first request whose prompt is not in the recording."""
    for event in events:
        value = _payload(event)
        if value is not None and any(isinstance(one, dict) and "$redacted" in one for one in value.values()):
            raise UsageError(
                f"the request at {event.time:.3f} s on connection {event.connection} has a redacted prompt",
                "it can be answered (lmtool trace serve --match prompt), not sent again",
            )


def _payload(event: Event) -> dict[str, object] | None:
    content = event.content if isinstance(event, Frame) else event.body if isinstance(event, Request) else None
    return content.value if isinstance(content, Parsed) and isinstance(content.value, dict) else None


def renamed(events: Sequence[Event], model: str) -> list[Event]:
    """The same recording, of requests to another model."""
    return [_renamed(event, model) for event in events]


def _renamed(event: Event, model: str) -> Event:
    value = _payload(event)
    if value is None or "model" not in value:
        return event
    if isinstance(event, Frame) and isinstance(event.content, Parsed) and event.direction == ">":
        return replace(event, content=replace(event.content, value={**value, "model": model}))
    if isinstance(event, Request) and isinstance(event.body, Parsed):
        return replace(event, body=replace(event.body, value={**value, "model": model}))
    return event
