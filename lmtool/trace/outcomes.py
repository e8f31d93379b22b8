"""Check outcomes of `trace verify` and `conformance`: verdicts, known failures, reports."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args
from xml.sax.saxutils import escape, quoteattr

from lmtool.core.errors import FileError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

Verdict: TypeAlias = Literal[
    "pass", "info", "non-strict", "tie", "skipped", "known-failing", "known-flaky", "fixed", "fail"
]
"""`info`, `non-strict`, `tie`: passed with remarks; `fixed`: listed as a known failure, but passes."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
MAX_MESSAGES = 10
"""Messages of one check that a terminal shows."""


class Check(Protocol):
    """Subject of an outcome: a recording in one direction, or a conformance case."""

    @property
    def id(self) -> str:
        """Its name in lists and reports."""

    @property
    def label(self) -> str:
        """Id and further details for a terminal."""
        return self.id

    @property
    def junit_name(self) -> tuple[str, str]:
        """Class and name in a JUnit file."""

    def matches(self, pattern: str) -> bool:
        """True if a glob matches its id."""
        return fnmatchcase(self.id, pattern)


C = TypeVar("C", bound=Check)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[C]):
    """The result of one check."""

    case: C
    verdict: Verdict
    messages: tuple[str, ...] = ()
    """One sentence per finding."""
    reason: str = ""
    """Reason it was skipped or is known to fail."""
    seconds: float = 0.0
    trace: str = ""
    """File with the messages sent and received, if it was kept."""

    @property
    def bad(self) -> bool:
        """True if it makes the run fail."""
        return self.verdict in ("fail", "fixed")

    @property
    def lines(self) -> list[str]:
        """Lines for a terminal: verdict and name, then the messages unless it simply passed."""
        head = f"{self.verdict:<13} {self.case.label}{f'  ({self.reason})' if self.reason else ''}"
        if self.verdict in ("pass", "skipped"):
            return [head]
        more = len(self.messages) - MAX_MESSAGES
        shown = [*self.messages[:MAX_MESSAGES], *([f"... and {more} more"] if more > 0 else [])]
        return [head, *(f"    {message}" for message in shown)]


@dataclass(frozen=True, slots=True)
class KnownFailures:
    """Checks that are known to fail, always or sometimes: reasons by glob."""

    failing: Mapping[str, str] = field(default_factory=dict)
    flaky: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, failing: Path | None, flaky: Path | None) -> KnownFailures:
        """Read both lists. Raises `FileError`, and `UsageError` for an entry without a reason."""
        return cls(_read(failing), _read(flaky))

    def judge(self, case: Check, verdict: Verdict) -> tuple[Verdict, str]:
        """Verdict of a check after looking it up, and the reason."""
        if reason := _reason(self.failing, case):
            if verdict == "fail":
                return "known-failing", reason
            return "fixed", f"known to fail ({reason}), and passes: remove it from the list"
        if verdict == "fail" and (reason := _reason(self.flaky, case)):
            return "known-flaky", reason
        return verdict, ""


def _reason(known: Mapping[str, str], case: Check) -> str:
    return next((reason for pattern, reason in known.items() if case.matches(pattern)), "")


def _read(file: Path | None) -> Mapping[str, str]:
    if file is None:
        return {}
    try:
        return parse_known(file.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeError) as error:
        raise FileError(f"cannot read {file}: {error}") from None


def parse_known(lines: Iterable[str]) -> Mapping[str, str]:
    """The entries of a list of known failures: `PATTERN  # reason`, one a line.

    Raises `UsageError` for one without a reason.
    """
    entries = {}
    for line in lines:
        pattern, _, reason = (part.strip() for part in line.partition("#"))
        if pattern and not reason:
            raise UsageError(f"{pattern!r} in a list of known failures has no reason", "write: PATTERN  # reason")
        if pattern:
            entries[pattern] = reason
    return entries


def unmatched(patterns: Iterable[str], cases: Iterable[Check]) -> list[str]:
    """Patterns that match none of these checks: lists must not go stale."""
    known = list(cases)
    return [pattern for pattern in patterns if not any(case.matches(pattern) for case in known)]


def counts(outcomes: Iterable[Outcome[C]]) -> dict[Verdict, int]:
    """The number of outcomes of each verdict that occurs, from best to worst."""
    tally = Counter(outcome.verdict for outcome in outcomes)
    return {verdict: tally[verdict] for verdict in VERDICTS if verdict in tally}


def summary(outcomes: Sequence[Outcome[C]], unit: str) -> str:
    """One line: number of outcomes, in total and per verdict."""
    tally = (f"{count} {verdict}" for verdict, count in counts(outcomes).items())
    return " · ".join([f"{len(outcomes)} {unit}", *tally])


def as_json(outcomes: Sequence[Outcome[C]], case: Callable[[Outcome[C]], Mapping[str, object]]) -> str:
    """One JSON object: counts, and each outcome as `case` describes it."""
    return json.dumps({"summary": counts(outcomes), "cases": [case(one) for one in outcomes]}, indent=1) + "\n"


def markdown(head: Sequence[str], outcomes: Sequence[Outcome[C]], columns: Mapping[str, Callable[[C], str]]) -> str:
    """A Markdown summary: these lines, then a table of the outcomes other than `pass`."""
    lines = list(head)
    notable = [one for one in outcomes if one.verdict != "pass"]
    if notable:
        lines += [_row([*columns, "verdict", "why"]), "|---" * (len(columns) + 2) + "|"]
        for one in notable:
            why = one.reason or (one.messages[0] if one.messages else "")
            cells = [*(cell(one.case) for cell in columns.values()), one.verdict, why]
            lines.append(_row([cell.replace("|", "\\|").replace("\n", " ") for cell in cells]))
    return "\n".join([*lines, ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def junit(suite: str, outcomes: Sequence[Outcome[C]]) -> str:
    """A JUnit file of one suite, as CI systems read it."""
    failures, skipped = sum(one.bad for one in outcomes), sum(one.verdict == "skipped" for one in outcomes)
    head = f'<testsuite name={_attribute(suite)} tests="{len(outcomes)}" failures="{failures}" errors="0"'
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'{head} skipped="{skipped}" time="{sum(one.seconds for one in outcomes):.3f}">',
        *(line for one in outcomes for line in _junit_case(one)),
        "</testsuite>",
    ]
    return "\n".join([*lines, ""])


def _junit_case(outcome: Outcome[C]) -> Iterator[str]:
    classname, name = map(_attribute, outcome.case.junit_name)
    text = "\n".join(filter(None, (outcome.reason, *outcome.messages)))
    yield f'  <testcase classname={classname} name={name} time="{outcome.seconds:.3f}">'
    if outcome.bad:
        yield f"    <failure message={_attribute(text.partition(chr(10))[0])}>{escape(_clean(text))}</failure>"
    elif outcome.verdict == "skipped":
        yield f"    <skipped message={_attribute(text)}/>"
    elif text:
        yield f"    <system-out>{escape(_clean(f'{outcome.verdict}: {text}'))}</system-out>"
    yield "  </testcase>"


def _attribute(text: str) -> str:
    return quoteattr(_clean(text)).replace("\n", "&#10;")


def _clean(text: str) -> str:
    """Text without control characters that XML cannot represent."""
    return "".join(one if one in "\t\n" or one >= " " else "\ufffd" for one in text)
