"""The rules of `trace verify`: what a check is called, what is known to fail, and what its outcome means."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lmtool.errors import UsageError
from lmtool.trace.findings import VERDICTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lmtool.trace.comparison import Comparison
    from lmtool.trace.findings import Verdict

Direction: TypeAlias = Literal["mock", "drive"]
"""`mock`: the recording answers our client. `drive`: it is sent to a server, whose answers are compared."""
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
Judgement: TypeAlias = Literal["pass", "info", "non-strict", "tie", "skipped", "known-failing", "known-flaky", "fail"]
SUFFIXES = (".lmtp.jsonl", ".lmtp.jsonl.gz")


def name_of(file: str) -> str:
    """What a trace file is called in lists and reports: its name without `.lmtp.jsonl`."""
    for suffix in SUFFIXES:
        if file.endswith(suffix):
            return file.removesuffix(suffix)
    return file


@dataclass(frozen=True, slots=True)
class Case:
    """One recording in one direction."""

    name: str
    direction: Direction

    @property
    def id(self) -> str:
        """Name and direction, such as `hello[drive]`."""
        return f"{self.name}[{self.direction}]"

    def matches(self, pattern: str) -> bool:
        """Whether a glob names it: `NAME` in both directions, `NAME[drive]` in one."""
        for direction in DIRECTIONS:
            if pattern.endswith(f"[{direction}]"):
                return direction == self.direction and fnmatchcase(self.name, pattern.removesuffix(f"[{direction}]"))
        return fnmatchcase(self.name, pattern)


@dataclass(frozen=True, slots=True)
class Known:
    """Cases that are known to fail, always or sometimes, each with the reason."""

    failing: tuple[tuple[str, str], ...] = ()
    flaky: tuple[tuple[str, str], ...] = ()

    def why(self, case: Case) -> tuple[Literal["failing", "flaky", ""], str]:
        """Which list has a case, and the reason given there."""
        for pattern, reason in self.failing:
            if case.matches(pattern):
                return "failing", reason
        for pattern, reason in self.flaky:
            if case.matches(pattern):
                return "flaky", reason
        return "", ""


def read_list(lines: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The entries of a known-failing or known-flaky file: `PATTERN  # reason`, one a line.

    Raises `UsageError` for one without a reason.
    """
    found = []
    for line in lines:
        pattern, _, reason = (part.strip() for part in line.partition("#"))
        if pattern and not reason:
            raise UsageError(f"{pattern!r} in a list of known failures has no reason", "write: PATTERN  # reason")
        if pattern:
            found.append((pattern, reason))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case."""

    case: Case
    judgement: Judgement
    reason: str = ""
    """For a skipped or known one: why; else empty."""
    comparisons: tuple[Comparison, ...] = ()
    seconds: float = 0.0
    actual: str = ""
    """File that holds what came, where it was kept."""
    recorded: str = ""
    """File of the recording."""

    @property
    def failed(self) -> bool:
        """Whether it makes the whole run fail."""
        return self.judgement == "fail"

    @property
    def findings(self) -> list[str]:
        """A sentence for each thing found, the worst first."""
        found = [finding for one in self.comparisons for finding in one.findings]
        return [str(one) for one in sorted(found, key=lambda one: -VERDICTS.index(one.verdict))]


def judge(case: Case, verdict: Verdict, known: Known) -> tuple[Judgement, str]:
    """What a verdict comes to in the light of what is known, and why.

    A case that is known to fail and does not is a failure: its line has to go.
    """
    listed, reason = known.why(case)
    if listed == "failing":
        if verdict == "fail":
            return "known-failing", reason
        return "fail", f"known to fail ({reason}), and passes: remove it from the list"
    if listed == "flaky" and verdict == "fail":
        return "known-flaky", reason
    return verdict, ""


def select(cases: Sequence[Case], only: Sequence[str]) -> list[Case]:
    """The cases that one of these globs names; all where there is no glob. Raises `UsageError` if none is left."""
    chosen = [case for case in cases if not only or any(case.matches(pattern) for pattern in only)]
    if not chosen:
        raise UsageError(f"nothing is called {', '.join(only)}" if only else "there is no recording", "see --list")
    return chosen
