"""`lmtool conformance client`: any LMTP client against the specification."""

from __future__ import annotations

from typing import Annotated

import typer

from lmtool.cli.common_options import Common
from lmtool.cli.conformance.suite_options import SuiteOptions, choose, finish, parse_ids, show, show_list
from lmtool.settings.option import option


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
    suite: SuiteOptions,
    tokens: str = option("11,12,13", "Three token ids to answer with, that its tokenizer has.", metavar="IDS"),
    timeout_s: float = option(
        30.0, "Longest run; a client that lasts longer hangs.", flag="--timeout", metavar="S", minimum=0.1
    ),
) -> None:
    """Run a client against a scripted server, once a case; 1 if it breaks a rule of the LMTP specification.

    Looked at is what it sends, how it ends, and whether it prints the same for the same tokens in another form.
    """
    from lmtool.core.errors import UsageError
    from lmtool.measure.conformance.case import cases as all_cases
    from lmtool.measure.conformance.client_suite import ClientRuns, run_case
    from lmtool.measure.conformance.results import read_known
    from lmtool.settings.terminal import PassingNote

    out, cases = common.output(), choose("client", suite)
    if suite.listing:
        show_list(out, cases)
        return
    if not command:
        raise UsageError("there is no client to run", 'such as:  lmtool conformance client -- lmtool chat -n 3 "Hi"')
    known, ids = (
        read_known("client", suite.known_failing, suite.known_flaky),
        parse_ids(tokens, "--tokens", 3, "11,12,13"),
    )
    runs = ClientRuns(command, timeout_s, ids)
    progress = PassingNote(out)
    progress.show("running it twice, to see whether it prints the same")
    try:
        learnt = await runs.learn(all_cases("client")[0])
    finally:
        progress.clear()
    if learnt is None:
        out.warn("the client prints something else each time; that it reads answers well is judged by its status alone")
    out.note(f"{len(cases)} cases for {' '.join(command)}", "")
    outcomes = []
    for number, case in enumerate(cases, 1):
        progress.show(f"{number} of {len(cases)}: {case.id}")
        try:
            outcome, run = await run_case(case, runs, known)
        finally:
            progress.clear()
        outcomes.append(show(out, outcome, run.transcript, suite.report))
    finish(out, outcomes, suite)
