"""`lmtool conformance client`: any LMTP client against the specification."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from lmtool.cli.conformance.reporting import (
    FOLDER,
    FailingOption,
    FlakyOption,
    GradeOption,
    JsonOption,
    JunitOption,
    ListOption,
    MarkdownOption,
    OnlyOption,
    ReportOption,
)
from lmtool.cli.invocation import Common


async def client(
    common: Common,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND...",
            help="What generates a text once and ends; {url} in a word, or $LMTOOL_ENDPOINT, is where to connect.",
            show_default=False,
        ),
    ] = None,
    *,
    grade: GradeOption = "must,compat,beyond",
    only: OnlyOption = None,
    listing: ListOption = False,
    tokens: Annotated[
        str, typer.Option("--tokens", metavar="IDS", help="Three token ids to answer with, that its tokenizer has.")
    ] = "11,12,13",
    known_failing: FailingOption = None,
    known_flaky: FlakyOption = None,
    patience: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0.1, help="Longest run; a client that lasts longer hangs.")
    ] = 30.0,
    junit: JunitOption = None,
    json: JsonOption = None,
    markdown: MarkdownOption = None,
    report: ReportOption = FOLDER,
) -> None:
    """Run a client against a scripted server, once a case; 1 if it breaks a rule of the LMTP specification.

    Looked at is what it sends, how it ends, and whether it prints the same for the same tokens in another form.
    """
    from lmtool.cli.conformance.reporting import Reports, choose, finish, known_of, tell, tell_list
    from lmtool.cli.output import Output
    from lmtool.conformance.case import cases as all_cases
    from lmtool.conformance.client_suite import Runs, run_case
    from lmtool.errors import UsageError

    out, cases = Output.of(common), choose("client", grade, only)
    if listing:
        tell_list(out, cases)
        return
    if not command:
        raise UsageError("there is no client to run", 'such as:  lmtool conformance client -- lmtool chat -n 3 "Hi"')
    known, ids = known_of("client", known_failing, known_flaky), _ids(tokens)
    runs = Runs(command, patience, ids)
    if await runs.learn(all_cases("client")[0]) is None:
        out.warn("the client prints something else each time; that it reads answers well is judged by its status alone")
    out.note(f"{len(cases)} cases for {' '.join(command)}", "")
    outcomes = []
    for case in cases:
        outcome, ran = await run_case(case, runs, known)
        outcomes.append(tell(out, outcome, ran.seen, report))
    finish(out, outcomes, Reports(junit, json, markdown, report))


def _ids(text: str) -> tuple[int, ...]:
    from lmtool.errors import UsageError

    words = re.split(r"[\s,]+", text.strip())
    if len(words) < 3 or not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"--tokens {text!r} is no list of three token ids", "such as --tokens 11,12,13")
    return tuple(int(word) for word in words)
