"""`lmtool conformance`: any LMTP server, or any LMTP client, against the cases of the specification."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.common_options import ClientCommon, Common
from lmtool.core.errors import UsageError
from lmtool.settings.option import option
from lmtool.settings.terminal import PassingNote

if TYPE_CHECKING:
    from lmtool.measure.conformance.case import Case, Role
    from lmtool.measure.conformance.transcript import Transcript
    from lmtool.settings.terminal import Output
    from lmtool.trace.outcomes import Outcome

MODEL = "The server's model"
REPORTS = "Reports"


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """Choice of cases, cases that may fail, and report files."""

    grade: str = option(
        "must,compat,beyond", "Grades of rules to check: must, compat, beyond; comma-separated.", metavar="LIST"
    )
    only: tuple[str, ...] = option((), "Run these cases, or rules such as 'GEN-*'; repeatable.", metavar="GLOB")
    listing: bool = option(False, "List the cases without running them.", flag="--list")
    known_failing: Path | None = option(
        None, "File of cases that must fail: CASE  # reason, one per line.", metavar="FILE"
    )
    known_flaky: Path | None = option(None, "File of cases that may fail, in the same format.", metavar="FILE")
    junit: Path | None = option(None, "Write a JUnit file.", REPORTS, metavar="FILE")
    json: Path | None = option(None, "Write a JSON file.", REPORTS, metavar="FILE")
    markdown: Path | None = option(None, "Write a Markdown summary.", REPORTS, metavar="FILE")
    report: Path = option(Path("report"), "Save traces of failing cases here.", REPORTS, metavar="FOLDER")


async def server(
    common: ClientCommon,
    url: Annotated[str | None, typer.Argument(metavar="URL", help="Server to test.", show_default="--endpoint")] = None,
    *,
    suite: SuiteOptions,
    model: str | None = option(
        None, "Test this model; default: the one that the server reports.", MODEL, short="-m", metavar="NAME"
    ),
    prompt: str | None = option(None, "Send prompts of these four token ids.", MODEL, metavar="IDS"),
    eos: int | None = option(None, "Id of the model's eos token.", MODEL, metavar="ID", minimum=0),
    timeout_s: float = option(10.0, "Longest wait within a case.", flag="--timeout", metavar="SECONDS", minimum=0.1),
) -> None:
    """Test a server against each rule of the LMTP specification; exit with 1 if it breaks one.

    The conversation of a failing case is saved as a trace. Cases of extensions that the server does not announce are
    skipped.
    """
    from lmtool.measure.conformance.results import read_known
    from lmtool.measure.conformance.server_suite import ask_server, run_case
    from lmtool.protocol.lmtp.endpoint import SocketEndpoint, parse

    out, cases = common.output(), choose("server", suite)
    if suite.listing:
        _list(out, cases)
        return
    known = read_known("server", suite.known_failing, suite.known_flaky)
    endpoint = parse(url or common.address, common.api_key)
    if not isinstance(endpoint, SocketEndpoint):
        raise UsageError("the suite tests servers over WebSocket, not commands", "serve on a port and give its URL")
    ids = None if prompt is None else _parse_ids(prompt, "--prompt", 4, '"15496 11 314 716"')
    progress = PassingNote(out)
    progress.show(f"asking {endpoint.url} for its model")
    try:
        under_test = await ask_server(endpoint, timeout_s, model=model, prompt=ids, eos=eos)
    finally:
        progress.clear()
    out.note(f"{len(cases)} cases for {endpoint.url} · model {under_test.model}", "")

    async def run(case: Case) -> tuple[Outcome[Case], Transcript]:
        return await run_case(endpoint, under_test, case, known, timeout_s)

    await _run_all(out, cases, run, suite)


async def client(
    common: Common,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND...",
            help="Command that generates a text once and exits; {url} in a word, or $LMTOOL_ENDPOINT, is the server.",
            show_default=False,
        ),
    ] = None,
    *,
    suite: SuiteOptions,
    tokens: str = option("11,12,13", "Answer with these three token ids of its tokenizer.", metavar="IDS"),
    timeout_s: float = option(
        30.0, "Longest run; a client that takes longer fails.", flag="--timeout", metavar="SECONDS", minimum=0.1
    ),
) -> None:
    """Run a client against a scripted server, once per case; exit with 1 if it breaks a rule of the specification.

    Checked are its requests, its exit status, and that it prints the same text for the same tokens in another form.
    """
    from lmtool.measure.conformance.case import cases as all_cases
    from lmtool.measure.conformance.client_suite import ClientRuns, run_case
    from lmtool.measure.conformance.results import read_known

    out, cases = common.output(), choose("client", suite)
    if suite.listing:
        _list(out, cases)
        return
    if not command:
        raise UsageError("no client to run", 'such as:  lmtool conformance client -- lmtool chat -n 3 "Hi"')
    known = read_known("client", suite.known_failing, suite.known_flaky)
    runs = ClientRuns(command, timeout_s, _parse_ids(tokens, "--tokens", 3, "11,12,13"))
    progress = PassingNote(out)
    progress.show("running it twice to see whether it prints the same")
    try:
        learnt = await runs.learn(all_cases("client")[0])
    finally:
        progress.clear()
    if learnt is None:
        out.warn("the client prints something else each time; only its exit status shows that it reads answers well")
    out.note(f"{len(cases)} cases for {' '.join(command)}", "")

    async def run(case: Case) -> tuple[Outcome[Case], Transcript]:
        outcome, run = await run_case(case, runs, known)
        return outcome, run.transcript

    await _run_all(out, cases, run, suite)


def choose(role: Role, options: SuiteOptions) -> list[Case]:
    """The cases to run. Raises `UsageError` for an unknown grade, or when no case is left."""
    from lmtool.measure.conformance.case import cases, select
    from lmtool.measure.conformance.rules import GRADES

    names = tuple(one.strip() for one in options.grade.split(",") if one.strip())
    grades = tuple(one for one in GRADES if one in names)
    if not names or len(grades) != len(set(names)):
        raise UsageError(f"--grade {options.grade} is not a list of grades", f"grades: {', '.join(GRADES)}")
    selected = select(cases(role), grades, options.only)
    if not selected:
        raise UsageError(f"no {role} case matches {', '.join(options.only)}", "list all with --list")
    return selected


def _list(out: Output, cases: list[Case]) -> None:
    for case in cases:
        out.line(f"{case.id:<34} {', '.join(case.rules):<22} {case.grade:<7} {case.title}")


async def _run_all(
    out: Output,
    cases: list[Case],
    run: Callable[[Case], Awaitable[tuple[Outcome[Case], Transcript]]],
    suite: SuiteOptions,
) -> None:
    progress, outcomes = PassingNote(out), []
    for number, case in enumerate(cases, 1):
        progress.show(f"{number} of {len(cases)}: {case.id}")
        try:
            outcome, transcript = await run(case)
        finally:
            progress.clear()
        outcomes.append(show(out, outcome, transcript, suite.report))
    finish(out, outcomes, suite)


def show(out: Output, outcome: Outcome[Case], transcript: Transcript, folder: Path) -> Outcome[Case]:
    """Print an outcome; the trace of a failing case is saved first. Raises `FileError`."""
    from lmtool.measure.conformance import results

    if outcome.bad or (outcome.verdict in ("known-failing", "known-flaky", "non-strict") and outcome.messages):
        trace = results.save(folder, outcome.case, transcript, outcome.messages)
        outcome = replace(outcome, trace=str(trace))
    for line in results.lines(outcome):
        out.line(line)
    return outcome


def finish(out: Output, outcomes: list[Outcome[Case]], options: SuiteOptions) -> None:
    """Write the reports and the summary, and exit with status 1 if a case failed. Raises `FileError`."""
    from lmtool.measure.conformance import results
    from lmtool.trace.writer import write_text

    for form, write in results.REPORTS.items():
        if (path := getattr(options, form)) is not None:
            write_text(path, write(outcomes))
    out.line(results.summary(outcomes))
    if any(outcome.bad for outcome in outcomes):
        raise typer.Exit(1)


def _parse_ids(text: str, option: str, count: int, example: str) -> tuple[int, ...]:
    """Token ids separated by commas or spaces. Raises `UsageError` for fewer than `count`."""
    words = re.split(r"[\s,]+", text.strip())
    if len(words) < count or not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"{option} {text!r} is not a list of {count} token ids", f"such as {option} {example}")
    return tuple(int(word) for word in words)
