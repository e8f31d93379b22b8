"""`trace verify`: check recordings against the mock server and against servers under test."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lmtool.core.errors import FileError, LmtoolError, UsageError
from lmtool.trace import outcomes as reports
from lmtool.trace.comparison import VERDICTS, Comparison, worst
from lmtool.trace.outcomes import Check, KnownFailures, Outcome
from lmtool.trace.reader import TraceReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.trace.codec import Header
    from lmtool.trace.comparison import Level
    from lmtool.trace.events import Event
    from lmtool.trace.proxy import Target

Direction: TypeAlias = Literal["mock", "drive"]
"""`mock`: the mock server plays the recording to our client. `drive`: it is sent to a server to compare answers."""
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
SUFFIXES = (".lmtp.jsonl", ".lmtp.jsonl.gz")


@dataclass(frozen=True, slots=True)
class RecordingCase(Check):
    """One recording in one direction."""

    name: str
    direction: Direction

    @property
    def id(self) -> str:
        """Name and direction, such as `hello[drive]`."""
        return f"{self.name}[{self.direction}]"

    @property
    def junit_name(self) -> tuple[str, str]:
        """A case's class is its direction."""
        return self.direction, self.name

    def matches(self, pattern: str) -> bool:
        """True if a glob matches: `NAME` for both directions, `NAME[drive]` for one."""
        for direction in DIRECTIONS:
            if pattern.endswith(f"[{direction}]"):
                return direction == self.direction and fnmatchcase(self.name, pattern.removesuffix(f"[{direction}]"))
        return fnmatchcase(self.name, pattern)


@dataclass(frozen=True, slots=True)
class RecordingOutcome(Outcome[RecordingCase]):
    """Result of one case; `trace` is the replay of a failed case."""

    comparisons: tuple[Comparison, ...] = ()
    recorded: str = ""
    """Path of the recording."""


@dataclass(frozen=True, slots=True)
class Server:
    """One server under test."""

    target: Target
    model: str | None
    """Name of the served model; None if unknown: then it gets every recording."""
    any_protocol: bool = False
    """True if it answers LMTP and HTTP; otherwise only the protocol of its URL."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a verification run."""

    servers: tuple[Server, ...] = ()
    known: KnownFailures = field(default_factory=KnownFailures)
    level: Level | None = None
    timeout: float = 60.0
    """Seconds to wait for a missing answer."""
    report: Path = Path("report")
    """Folder for replays that differ from their recording."""
    update: bool = False
    """Replace a recording that a server does not reproduce by its replay."""


def name_of(file: str) -> str:
    """Name of a trace file in lists and reports: without `.lmtp.jsonl`."""
    return next((file.removesuffix(suffix) for suffix in SUFFIXES if file.endswith(suffix)), file)


def find(paths: Sequence[Path]) -> dict[str, Path]:
    """Recordings in these files and folders, by name. Raises `FileError` for a missing path."""
    recordings: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.name.endswith(SUFFIXES))
            recordings.update({name_of(one.relative_to(path).as_posix()): one for one in inside})
        elif path.exists():
            recordings[name_of(path.name)] = path
        else:
            raise FileError(f"there is no {path}", "name trace files, or folders that hold them")
    return recordings


def select(names: Sequence[str], only: Sequence[str]) -> list[RecordingCase]:
    """Cases of these recordings that match a glob; all without globs. Raises `UsageError` if there is none."""
    cases = [RecordingCase(name, direction) for name in names for direction in DIRECTIONS]
    selected = [case for case in cases if not only or any(case.matches(pattern) for pattern in only)]
    if not selected:
        raise UsageError(f"no check is named {', '.join(only)}" if only else "there is no recording", "see --list")
    return selected


async def run(
    plan: Plan, cases: Sequence[tuple[RecordingCase, Path]], jobs: int, report: Callable[[RecordingOutcome], None]
) -> list[RecordingOutcome]:
    """Check cases, `jobs` at a time. Returns the outcomes in order; `report` gets each when it is known."""
    slots = asyncio.Semaphore(jobs)

    async def one(case: RecordingCase, path: Path) -> RecordingOutcome:
        async with slots:
            outcome = await check(plan, case, path)
        report(outcome)
        return outcome

    return list(await asyncio.gather(*(one(case, path) for case, path in cases)))


async def check(plan: Plan, case: RecordingCase, path: Path) -> RecordingOutcome:
    """Outcome of one case, also for an unreadable file or a lost connection.

    Raises `FileError` if a replay cannot be kept.
    """
    start = time.perf_counter()
    try:
        header, events = _read(path)
    except FileError as error:
        return _judged(plan, case, path, [Comparison.note(error.message)], 0.0)
    replayed: Sequence[Event] | None = None
    try:
        reason, server = _server_for(plan, case, header)
        if reason:
            return RecordingOutcome(case, "skipped", reason=reason, recorded=str(path))
        comparisons, replayed = await _replay(plan, header, events, server)
    except UsageError as refusal:
        return RecordingOutcome(case, "skipped", reason=refusal.message, recorded=str(path))
    except LmtoolError as error:
        comparisons = [Comparison.note(error.message)]
    outcome = _judged(plan, case, path, comparisons, time.perf_counter() - start)
    failed = any(one.verdict == "fail" for one in comparisons)
    return _keep(plan, outcome, header, events, replayed) if failed and replayed is not None else outcome


def _read(path: Path) -> tuple[Header, list[Event]]:
    reader = TraceReader(path)
    events = [event for _, event in reader.with_offsets(whole=True)]
    if reader.ending is not None and reader.ending.state == "altered":
        raise FileError(f"{path} is altered: {reader.ending.reason}", "record it again")
    return reader.header, events


def _server_for(plan: Plan, case: RecordingCase, header: Header) -> tuple[str, Server | None]:
    """Reason a case is skipped, or empty; and its server, None for the mock server."""
    directions = header.verify.get("directions")
    if isinstance(directions, list) and case.direction not in directions:
        return str(header.verify.get("why", f"the recording says: {', '.join(map(str, directions))} only")), None
    if case.direction == "mock":
        return "", None
    if not plan.servers:
        return "no server was named", None
    http = header.transport.get("kind") == "http"
    kind = [one for one in plan.servers if one.any_protocol or one.target.url.startswith("http") == http]
    if not kind:
        return f"recorded over {'HTTP; use --to http://…' if http else 'LMTP; use --to ws://…'} or --serve", None
    name = header.model.get("name")
    fitting = [one for one in kind if name is None or one.model in (None, name)]
    if not fitting:
        return f"recorded with model {name}, which no server under test serves", None
    return "", fitting[0]


async def _replay(
    plan: Plan, header: Header, events: Sequence[Event], server: Server | None
) -> tuple[list[Comparison], Sequence[Event]]:
    if server is None:
        from lmtool.trace.replaying import replay_to_mock

        return await replay_to_mock(events, timeout_s=plan.timeout, redacted=header.redacted)
    from lmtool.trace.replaying import ReplayOptions, replay

    return await replay(events, server.target, ReplayOptions.of(header, level=plan.level, timeout=plan.timeout))


def _judged(
    plan: Plan, case: RecordingCase, path: Path, comparisons: Sequence[Comparison], seconds: float
) -> RecordingOutcome:
    findings = [finding for one in comparisons for finding in one.findings]
    messages = tuple(str(one) for one in sorted(findings, key=lambda one: -VERDICTS.index(one.verdict)))
    verdict, reason = plan.known.judge(case, worst(findings))
    verdict = "fail" if verdict == "fixed" else verdict
    return RecordingOutcome(case, verdict, messages, reason, seconds, "", tuple(comparisons), str(path))


def _keep(
    plan: Plan, outcome: RecordingOutcome, header: Header, events: Sequence[Event], replayed: Sequence[Event]
) -> RecordingOutcome:
    from lmtool.trace.replaying import save_replay

    case = outcome.case
    update = plan.update and case.direction == "drive" and outcome.verdict == "fail"
    name = case.name.replace("/", "_") + (".actual" if case.direction == "drive" else ".mock")
    path = Path(outcome.recorded) if update else plan.report / f"{name}.lmtp.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {path.parent}: {error.strerror}") from None
    save_replay(path, header, events, replayed)
    if update:
        return replace(outcome, verdict="info", reason="recorded again")
    return replace(outcome, trace=str(path))


def _case(outcome: Outcome[RecordingCase]) -> dict[str, object]:
    assert isinstance(outcome, RecordingOutcome)
    findings = [finding.as_json() for comparison in outcome.comparisons for finding in comparison.findings]
    return {
        "name": outcome.case.name,
        "direction": outcome.case.direction,
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "seconds": round(outcome.seconds, 3),
        "requests": len(outcome.comparisons),
        "findings": findings,
        "recording": outcome.recorded,
        "actual": outcome.trace,
    }


REPORTS: Mapping[str, Callable[[Sequence[RecordingOutcome]], str]] = {
    "junit.xml": lambda outcomes: reports.junit("recordings", outcomes),
    "report.json": lambda outcomes: reports.as_json(outcomes, _case),
    "report.md": lambda outcomes: reports.markdown(
        ["# Recordings", "", reports.summary(outcomes, "checks"), ""], outcomes, {"case": lambda case: case.id}
    ),
}
"""Contents of a report by file name."""
