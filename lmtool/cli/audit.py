"""`lmtool audit`: whether a server's logprobs are true."""

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
STRICTNESS = "How strictly"


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
    model: str | None = option(None, "Which served model.", short="-m", metavar="NAME"),
    prompt: tuple[str, ...] = option(
        (), "Ask with this text; up to three, the last may repeat itself.", metavar="TEXT"
    ),
    only: tuple[str, ...] = option((), "Make this check alone; repeatable.", metavar="CHECK"),
    claim: Literal["raw", "processed"] | None = option(
        None, "What logprobs must be of; else any that is one thing throughout.", STRICTNESS
    ),
    tolerance: float = option(
        0.1,
        "Nats between two computations of one number; bfloat16 may need more.",
        STRICTNESS,
        metavar="NATS",
        minimum=0,
    ),
    draws: int = option(40, "Answers drawn to compare frequencies.", STRICTNESS, metavar="N", minimum=4),
    seconds: float = option(55.0, "Ask no more after this time.", STRICTNESS, metavar="S", minimum=1),
    timeout_s: float = option(
        30.0, "Longest wait for anything from the server.", STRICTNESS, flag="--timeout", metavar="S", minimum=0.1
    ),
    json: bool = option(False, "Print one JSON object.", REPORTS),
    junit: Path | None = option(None, "Write a JUnit file.", REPORTS, metavar="FILE"),
    report: Path = option(Path("report"), "Where traces of breaches are kept.", REPORTS, metavar="FOLDER"),
    trace: Path | None = option(None, "Keep all that was said as one trace.", REPORTS, metavar="FILE"),
) -> None:
    """Check over the wire alone that a server's logprobs are true; 1 if they are not.

    Sums, raw or processed, what parameters do, prompts against answers, streams, crowds, seeds, counts, and whether
    tokens come as often as their probabilities say. What a server does not offer is named.
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
        raise UsageError(f"{len(prompt)} prompts; an audit asks with at most 3", "leave some out")
    for name in only:
        if name not in NAMES:
            raise UsageError(f"there is no check {name!r}", f"the checks: {', '.join(NAMES)}")
    out = common.output()
    progress = PassingNote(out)
    config = AuditConfig(model, tuple(prompt), claim, tolerance, timeout_s, Pace(seconds, draws), tuple(only) or NAMES)
    try:
        found = await run(url or common.address, common.api_key, config, progress.show)
    finally:
        progress.clear()
    if trace is not None:
        card.save_whole(found, trace)
    proofs = card.save_proofs(found, report)
    if junit is not None:
        write_text(junit, card.junit(found, proofs))
    if json:
        out.write(card.as_json(found, proofs))
    else:
        columns = shutil.get_terminal_size((100, 24)).columns
        for text, style in card.lines(found, proofs, columns):
            out.write_styled(text, style)
            out.line()
    _finish(found)


def _finish(found: AuditReport) -> None:
    """End with status 1 for a breach, with an error where there was nothing to audit."""
    from lmtool.core.errors import ServerError

    if found.breaches:
        raise typer.Exit(1)
    if not found.audited:
        hints = [f"{wire.facts.name}: {wire.reason or wire.facts.no_logprobs}" for wire in found.wires]
        raise ServerError(f"the server at {found.url} gives no logprobs that could be audited", *hints)
