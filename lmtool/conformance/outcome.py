"""What came of each case, and which failures were expected: verdicts, and the list of known failures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lmtool.errors import FileError
from lmtool.trace.verification import read_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from lmtool.conformance.case import Case, Weight

Verdict: TypeAlias = Literal["pass", "info", "non-strict", "skipped", "known-failing", "known-flaky", "fixed", "fail"]
"""`info`, `non-strict`: passed, with remarks; `fixed`: on the list of known failures, but it passes."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that did not hold."""

    weight: Weight
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one case."""

    case: Case
    verdict: Verdict
    problems: tuple[Problem, ...] = ()
    reason: str = ""
    """Why it was skipped, or why it is known to fail."""
    seconds: float = 0.0
    trace: Path | None = None
    """Where what was said is kept, for a case that failed."""

    @property
    def bad(self) -> bool:
        """Whether the suite as a whole fails because of it."""
        return self.verdict in ("fail", "fixed")

    @property
    def messages(self) -> list[str]:
        """What to say about it."""
        if self.verdict == "fixed":
            return [f"it passes: remove it from the list of known failures ({self.reason})"]
        told = [p.message for p in self.problems]
        return told if self.verdict != "skipped" else [self.reason]


def judge(case: Case, problems: Sequence[Problem], seconds: float, known: Known) -> Outcome:
    """The outcome of a case that was run."""
    weights = {problem.weight for problem in problems}
    outcome = Outcome(case, "pass", tuple(problems), seconds=seconds)
    failed = "fail" in weights
    if case.id in known.flaky:
        return replace(outcome, verdict="known-flaky" if failed else "pass", reason=known.flaky[case.id])
    if case.id in known.failing:
        return replace(outcome, verdict="known-failing" if failed else "fixed", reason=known.failing[case.id])
    if failed:
        return replace(outcome, verdict="fail")
    return replace(outcome, verdict="non-strict" if "non-strict" in weights else "info" if weights else "pass")


@dataclass(frozen=True, slots=True)
class Known:
    """Cases that are known to fail, always or at times, each with its reason."""

    failing: Mapping[str, str] = field(default_factory=dict)
    flaky: Mapping[str, str] = field(default_factory=dict)


def read_known(failing: Path | None, flaky: Path | None, names: Iterable[str]) -> Known:
    """The lists in two files: `CASE  # reason`, one a line. Raises `FileError`, and `UsageError` without a reason.

    names: of all cases; an id that is none of them is refused, so that a list cannot go stale.
    """
    everything = set(names)
    return Known(_read(failing, everything), _read(flaky, everything))


def _read(path: Path | None, names: set[str]) -> Mapping[str, str]:
    if path is None:
        return {}
    try:
        found = dict(read_list(path.read_text("utf-8").splitlines()))
    except (OSError, UnicodeError) as error:
        raise FileError(f"cannot read {path}: {error}") from None
    strange = [name for name in found if name not in names]
    if strange:
        raise FileError(f"{path} names the case {strange[0]!r}, which does not exist", "see all with --list")
    return found


def counts(outcomes: Iterable[Outcome]) -> dict[Verdict, int]:
    """How many there are of each verdict that occurs, from best to worst."""
    found = [outcome.verdict for outcome in outcomes]
    return {verdict: found.count(verdict) for verdict in VERDICTS if verdict in found}
