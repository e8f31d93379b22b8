"""`lmtool audit`: checks that a server's logprobs are correct."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.common_options import ClientCommon
from lmtool.settings.option import option

if TYPE_CHECKING:
    from lmtool.measure.audit.auditing import AuditReport

REPORTS = "Reports"
STRICTNESS = "Strictness"


async def audit(
    common: ClientCommon,
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]",
            help="http://HOST:PORT/v1 for the OpenAI-compatible routes, ws://HOST:PORT for LMTP.",
            show_default="--endpoint",
        ),
    ] = None,
    *,
    model: str | None = option(None, "Audit this served model.", short="-m", metavar="NAME"),
    prompt: tuple[str, ...] = option(
        (), "Use this prompt; up to three, the last one may be repetitive.", metavar="TEXT"
    ),
    only: tuple[str, ...] = option((), "Run only this check; repeatable.", metavar="CHECK"),
    claim: Literal["raw", "processed"] | None = option(
        None, "Kind of logprobs required; by default either, used consistently.", STRICTNESS
    ),
    tolerance: float = option(
        0.1,
        "Allowed difference of two computations, in nats; more for bfloat16.",
        STRICTNESS,
        metavar="NATS",
        minimum=0,
    ),
    draws: int = option(40, "Number of answers sampled to compare frequencies.", STRICTNESS, metavar="N", minimum=4),
    seconds: float = option(55.0, "Send no more requests after this time.", STRICTNESS, metavar="SECONDS", minimum=1),
    timeout_s: float = option(
        30.0, "Longest wait for an answer.", STRICTNESS, flag="--timeout", metavar="SECONDS", minimum=0.1
    ),
    json: bool = option(False, "Print one JSON object.", REPORTS),
    junit: Path | None = option(None, "Write a JUnit file.", REPORTS, metavar="FILE"),
    report: Path = option(Path("report"), "Save traces of failures here.", REPORTS, metavar="FOLDER"),
    trace: Path | None = option(None, "Save the whole conversation as one trace.", REPORTS, metavar="FILE"),
) -> None:
    """Check by requests alone that a server's logprobs are correct; exit with 1 if they are not.

    Checks their sums, whether they are raw or processed, the effect of parameters, prompts against answers, streams,
    concurrent requests, seeds, token counts, and token frequencies. Features that the server lacks are listed.
    """
    from lmtool.core.errors import UsageError
    from lmtool.measure.audit import card
    from lmtool.measure.audit.auditing import AuditConfig
    from lmtool.measure.audit.auditing import audit as run
    from lmtool.measure.audit.checks import NAMES
    from lmtool.measure.audit.interview import Pace
    from lmtool.settings.terminal import PassingNote
    from lmtool.trace.writer import write_text

    if len(prompt) > 3:
        raise UsageError(f"{len(prompt)} prompts were given, but at most 3 are used", "omit some")
    for name in only:
        if name not in NAMES:
            raise UsageError(f"unknown check {name!r}", f"checks: {', '.join(NAMES)}")
    out = common.output()
    progress = PassingNote(out)
    config = AuditConfig(model, tuple(prompt), claim, tolerance, timeout_s, Pace(seconds, draws), tuple(only) or NAMES)
    try:
        audited = await run(url or common.address, common.api_key, config, progress.show)
    finally:
        progress.clear()
    if trace is not None:
        card.save_whole(audited, trace)
    proofs = card.save_proofs(audited, report)
    if junit is not None:
        write_text(junit, card.junit(audited, proofs))
    if json:
        out.write(card.as_json(audited, proofs))
    else:
        columns = shutil.get_terminal_size((100, 24)).columns
        for text, style in card.lines(audited, proofs, columns):
            out.write_styled(text, style)
            out.line()
    _finish(audited)


def _finish(report: AuditReport) -> None:
    """Exit with status 1 for a failure; raise `ServerError` if there was nothing to audit."""
    from lmtool.core.errors import ServerError

    if report.breaches:
        raise typer.Exit(1)
    if not report.audited:
        hints = [f"{wire.facts.name}: {wire.reason or wire.facts.no_logprobs}" for wire in report.wires]
        raise ServerError(f"the server at {report.url} sends no logprobs to audit", *hints)
