"""`lmtool conformance server`: any LMTP server against the specification."""

from __future__ import annotations

from typing import Annotated

import typer

from lmtool.cli.common_options import ClientCommon
from lmtool.cli.conformance.suite_options import SuiteOptions, choose, finish, parse_ids, show, show_list
from lmtool.settings.option import option

MODEL = "The server's model"


async def server(
    common: ClientCommon,
    url: Annotated[str | None, typer.Argument(metavar="URL", help="The server.", show_default="--endpoint")] = None,
    *,
    suite: SuiteOptions,
    model: str | None = option(None, "Its name; default: what the server tells.", MODEL, short="-m", metavar="NAME"),
    prompt: str | None = option(None, "Four token ids that it takes.", MODEL, metavar="IDS"),
    eos: int | None = option(None, "Its eos token.", MODEL, metavar="ID", minimum=0),
    timeout_s: float = option(10.0, "Longest wait in a case.", flag="--timeout", metavar="S", minimum=0.1),
) -> None:
    """Check a server against each rule of the LMTP specification; 1 if it breaks one.

    The conversation of a case that fails is kept as a trace. Extensions that the server does not announce are skipped.
    """
    from lmtool.core.errors import UsageError
    from lmtool.measure.conformance.results import read_known
    from lmtool.measure.conformance.server_suite import ask_server, run_case
    from lmtool.protocol.lmtp.endpoint import SocketEndpoint, parse
    from lmtool.settings.terminal import PassingNote

    out, cases = common.output(), choose("server", suite)
    if suite.listing:
        show_list(out, cases)
        return
    known, endpoint = (
        read_known("server", suite.known_failing, suite.known_flaky),
        parse(url or common.address, common.api_key),
    )
    if not isinstance(endpoint, SocketEndpoint):
        raise UsageError("the suite speaks WebSocket, not to a command", "serve on a port and give its URL")
    ids = None if prompt is None else parse_ids(prompt, "--prompt", 4, '"15496 11 314 716"')
    progress = PassingNote(out)
    progress.show(f"asking {endpoint.url} what it serves")
    try:
        under_test = await ask_server(endpoint, timeout_s, model=model, prompt=ids, eos=eos)
    finally:
        progress.clear()
    out.note(f"{len(cases)} cases for {endpoint.url} · model {under_test.model}", "")
    outcomes = []
    for number, case in enumerate(cases, 1):
        progress.show(f"{number} of {len(cases)}: {case.id}")
        try:
            outcome, transcript = await run_case(endpoint, under_test, case, known, timeout_s)
        finally:
            progress.clear()
        outcomes.append(show(out, outcome, transcript, suite.report))
    finish(out, outcomes, suite)
