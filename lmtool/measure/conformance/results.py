"""Results of cases: problems judged in the light of known failures, traces of what was sent, reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import FileError
from lmtool.measure.conformance.case import cases
from lmtool.trace import outcomes as reports
from lmtool.trace.codec import Header
from lmtool.trace.events import Close, Event, Frame, Open, Remark, parse_frame
from lmtool.trace.outcomes import VERDICTS, KnownFailures, Outcome, unmatched
from lmtool.trace.writer import write_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from lmtool.measure.conformance.case import Case, Role, Weight
    from lmtool.measure.conformance.transcript import Transcript
    from lmtool.trace.outcomes import Verdict


_LONGEST = 2**16
"""Characters of a frame that a trace file keeps; a mask or padding of megabytes shows nothing."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that did not hold."""

    weight: Weight
    message: str


def judge(case: Case, problems: Sequence[Problem], seconds: float, known: KnownFailures) -> Outcome[Case]:
    """The outcome of a case that was run."""
    worst: Verdict = max((problem.weight for problem in problems), key=VERDICTS.index, default="pass")
    verdict, reason = known.judge(case, worst)
    return Outcome(case, verdict, tuple(problem.message for problem in problems), reason, seconds)


def read_known(role: Role, failing: Path | None, flaky: Path | None) -> KnownFailures:
    """The lists of known failures in two files: `CASE  # reason`, one a line.

    Raises `FileError`, also for a case that does not exist, and `UsageError` for one without a reason.
    """
    known = KnownFailures.read(failing, flaky)
    if strange := unmatched([*known.failing, *known.flaky], cases(role)):
        raise FileError(
            f"a list of known failures names the case {strange[0]!r}, which does not exist", "see all with --list"
        )
    return known


def lines(outcome: Outcome[Case]) -> list[str]:
    """An outcome for the terminal: a line, and below it what was wrong, the rule, and how to open the trace."""
    rule = [f"    {outcome.case.rules[0]}: {outcome.case.sentence}"] if outcome.bad else []
    return [*outcome.lines, *rule, *([f"    lmtool inspect {outcome.trace}"] if outcome.trace else [])]


def summary(outcomes: Sequence[Outcome[Case]]) -> str:
    """One line: how many cases, and how many of each verdict."""
    return reports.summary(outcomes, "cases")


def _as_json(outcome: Outcome[Case]) -> dict[str, object]:
    case = outcome.case
    return {
        "id": case.id,
        "role": case.role,
        "rules": case.rules,
        "grade": case.grade,
        "title": case.title,
        "rule": case.sentence,
        "verdict": outcome.verdict,
        "messages": [outcome.reason] if outcome.verdict in ("skipped", "fixed") else outcome.messages,
        "reason": outcome.reason,
        "seconds": round(outcome.seconds, 3),
        "trace": outcome.trace or None,
    }


def _markdown(outcomes: Sequence[Outcome[Case]]) -> str:
    """A summary for people: counts by grade, then what is not a plain pass."""
    head = ["# LMTP conformance", "", summary(outcomes), "", "| grade | passed | of |", "|---|---|---|"]
    for grade in dict.fromkeys(one.case.grade for one in outcomes):
        verdicts = [one.verdict for one in outcomes if one.case.grade == grade and one.verdict != "skipped"]
        passed = sum(verdict in ("pass", "info", "non-strict") for verdict in verdicts)
        head.append(f"| {grade} | {passed} | {len(verdicts)} |")
    columns = {"case": lambda case: case.id, "rule": lambda case: case.rules[0], "grade": lambda case: case.grade}
    return reports.markdown([*head, ""], outcomes, columns)


REPORTS: Mapping[str, Callable[[Sequence[Outcome[Case]]], str]] = {
    "junit": lambda outcomes: reports.junit("lmtool conformance", outcomes),
    "json": lambda outcomes: reports.as_json(outcomes, _as_json),
    "markdown": _markdown,
}
"""Contents of a report by its form."""


def save(folder: Path, case: Case, transcript: Transcript, problems: Sequence[str]) -> Path:
    """Write the trace of a case into a folder, made where it is missing; return the file. Raises `FileError`."""
    path = folder / f"{case.role}-{case.id}.lmtp.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {folder}: {error.strerror}") from None
    header = Header(
        by="lmtool conformance",
        at="client" if case.role == "server" else "server",
        title=f"{case.id}: {case.title}",
        transport={"kind": "websocket", "path": "/"},
        covers=case.rules,
    )
    write_trace(path, header, as_events(transcript, problems), overwrite=True)
    return path


def as_events(transcript: Transcript, problems: Sequence[str]) -> list[Event]:
    """Everything that was sent and received, in order of time, with the problems as marks at the end."""
    messages = transcript.messages
    names = (*transcript.handshakes, *(message.connection for message in messages), *transcript.closed)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names), 1)}
    first = {message.connection: message.time for message in reversed(messages)}
    events: list[Event] = [
        Open(first.get(name, 0.0), number, {"peer": "client", "path": "/", "name": name})
        for name, number in numbers.items()
    ]
    for message in messages:
        number, content = numbers[message.connection], message.content
        if len(content) > _LONGEST:
            note = f"{message.direction} {len(content)} characters, cut to {_LONGEST}"
            events.append(Remark(message.time, "note", number, note))
        events.append(Frame(message.time, message.direction, number, parse_frame(content[:_LONGEST], "py")))
    for name, end in transcript.closed.items():
        events.append(Close(end.time, numbers[name], end.by, end.code, end.reason))
    events.sort(key=lambda event: event.time)
    last = events[-1].time if events else 0.0
    return [*events, *(Remark(last, "mark", 0, problem) for problem in problems)]
