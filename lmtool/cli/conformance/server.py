"""`lmtool conformance server`: any LMTP server against the specification."""

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

SUBJECT = "The server's model"


async def server(
    common: Common,
    url: Annotated[str | None, typer.Argument(metavar="URL", help="The server.", show_default="--endpoint")] = None,
    *,
    grade: GradeOption = "must,compat,beyond",
    only: OnlyOption = None,
    listing: ListOption = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="NAME", help="Its name; default: what the server tells.", rich_help_panel=SUBJECT
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", metavar="IDS", help="Four token ids that it takes.", rich_help_panel=SUBJECT),
    ] = None,
    eos: Annotated[
        int | None,
        typer.Option("--eos", min=0, metavar="ID", help="Its eos token.", rich_help_panel=SUBJECT),
    ] = None,
    known_failing: FailingOption = None,
    known_flaky: FlakyOption = None,
    patience: Annotated[float, typer.Option("--timeout", metavar="S", min=0.1, help="Longest wait in a case.")] = 10.0,
    junit: JunitOption = None,
    json: JsonOption = None,
    markdown: MarkdownOption = None,
    report: ReportOption = FOLDER,
) -> None:
    """Hold a server to each rule of the LMTP specification; 1 if it breaks one.

    What was said in a case that fails is kept as a trace. Extensions that the server does not announce are skipped.
    """
    from lmtool.cli.conformance.reporting import Reports, choose, finish, known_of, tell, tell_list
    from lmtool.cli.output import Output
    from lmtool.conformance.server_suite import meet, run_case
    from lmtool.errors import UsageError
    from lmtool.lmtp.endpoint import SocketEndpoint, parse

    out, cases = Output.of(common), choose("server", grade, only)
    if listing:
        tell_list(out, cases)
        return
    known, endpoint = known_of("server", known_failing, known_flaky), parse(url or common.address, common.api_key)
    if not isinstance(endpoint, SocketEndpoint):
        raise UsageError("the suite speaks WebSocket, not to a command", "serve on a port and give its URL")
    subject = await meet(endpoint, patience, model=model, prompt=_ids(prompt), eos=eos)
    out.note(f"{len(cases)} cases for {endpoint.url} · model {subject.model}", "")
    outcomes = []
    for case in cases:
        outcome, seen = await run_case(endpoint, subject, case, known, patience)
        outcomes.append(tell(out, outcome, seen, report))
    finish(out, outcomes, Reports(junit, json, markdown, report))


def _ids(text: str | None) -> tuple[int, ...] | None:
    from lmtool.errors import UsageError

    if text is None:
        return None
    words = re.split(r"[\s,]+", text.strip())
    if len(words) < 4 or not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"--prompt {text!r} is no list of four token ids", 'such as --prompt "15496 11 314 716"')
    return tuple(int(word) for word in words)
