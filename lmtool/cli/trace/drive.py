"""`lmtool trace drive`: be the client of a recording, against a real server."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from lmtool.cli.common_options import ClientCommon
from lmtool.cli.trace.files import FORCE, TraceFile, read_events
from lmtool.cli.trace.serve import parse_speed
from lmtool.settings.option import option


async def drive(
    common: ClientCommon,
    file: TraceFile,
    to: str | None = option(None, "The server.", shown_default="--endpoint", metavar="URL"),
    level: Literal["shape", "ids", "numbers", "time"] | None = option(
        None, "What must be equal.", shown_default="as the recording says, or numbers"
    ),
    tol_logprob: float | None = option(None, "Largest difference between equal logprobs.", metavar="NATS", minimum=0),
    tie_eps: float | None = option(None, "Tokens whose logprobs differ by less may swap.", metavar="NATS", minimum=0),
    speed: str = option(
        "max", "max: send as soon as possible; a number: also keep the recorded times.", metavar="N|max"
    ),
    timeout_s: float = option(60.0, "Longest wait for an answer.", flag="--timeout", metavar="S", minimum=0),
    model: str | None = option(None, "Request this model instead of the recorded one.", short="-m", metavar="NAME"),
    save: Path | None = option(None, "Save the replay as a trace.", metavar="FILE"),
    force: bool = FORCE,
    json: bool = option(False, "One JSON object a request."),
) -> None:
    """Send the recorded requests to a server, by cause and not by clock; compare each answer with the recorded one.

    Streams that were sampled without a seed are compared in form, and their recorded tokens are scored. Status 1 where
    a check does not hold.
    """
    from dataclasses import replace

    from lmtool import __version__
    from lmtool.trace.proxy import parse_target
    from lmtool.trace.replaying import ReplayOptions, replay, save_replay, with_model
    from lmtool.trace.writer import exists

    out, target = common.output(), parse_target(to or common.address, common.api_key)
    header, events = read_events(out, file)
    if save is not None and save.exists() and (not force or save.samefile(file)):  # noqa: ASYNC240 - at once
        raise exists(save, force=True)
    options = ReplayOptions.of(
        header, level=level, tol_logprob=tol_logprob, tie_eps=tie_eps, timeout=timeout_s, speed=parse_speed(speed)
    )
    comparisons, replayed = await replay(events if model is None else with_model(events, model), target, options)
    for one in comparisons:
        out.line(one.as_json() if json else str(one))
    if save is not None:
        by = f"lmtool {__version__}"
        save_replay(save, replace(header, by=by, at="client", created=None, times="measured"), events, replayed)
        out.note(f"the replay is in {save}:  lmtool trace diff {file} {save}")
    failed = sum(one.verdict == "fail" for one in comparisons)
    out.note(f"{len(comparisons)} requests · {failed} failed · level {options.level}", "")
    if failed:
        raise typer.Exit(1)
