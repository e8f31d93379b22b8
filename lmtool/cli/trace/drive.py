"""`lmtool trace drive`: be the client of a recording, against a real server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.invocation import Common
from lmtool.cli.trace.files import Force, TraceFile, read_whole
from lmtool.cli.trace.outcome import as_json, as_lines
from lmtool.cli.trace.serve import speed_of

if TYPE_CHECKING:
    from lmtool.trace.header import Header


async def drive(
    common: Common,
    file: TraceFile,
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="The server.", show_default="--endpoint")
    ] = None,
    level: Annotated[
        Literal["shape", "ids", "numbers", "time"] | None,
        typer.Option("--level", help="How much must be equal.", show_default="as the recording says, or numbers"),
    ] = None,
    tol_logprob: Annotated[
        float | None,
        typer.Option("--tol-logprob", metavar="NATS", min=0, help="Log-probabilities this near are equal."),
    ] = None,
    tie_eps: Annotated[
        float | None, typer.Option("--tie-eps", metavar="NATS", min=0, help="Tokens this near may change places.")
    ] = None,
    speed: Annotated[
        str, typer.Option("--speed", metavar="N|max", help="max: by cause alone; a number: by the clock as well.")
    ] = "max",
    patience: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0, help="Longest wait for what does not come.")
    ] = 60.0,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="Ask for this model instead of the recorded.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Keep what came as a trace.", show_default=False)
    ] = None,
    force: Force = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a request.")] = False,
) -> None:
    """Send the recorded requests to a server, by cause and not by clock; compare each answer with the recorded one.

    Streams that were sampled without a seed are compared in form, and their recorded tokens are scored. Status 1 where
    a check does not hold.
    """
    from lmtool.cli.output import Output
    from lmtool.trace.keeping import keep
    from lmtool.trace.proxy import parse_target
    from lmtool.trace.replaying import demand_of, renamed, replay
    from lmtool.trace.writer import exists

    out, target = Output.of(common), parse_target(to or common.address, common.api_key)
    header, events = read_whole(out, file)
    if save is not None and save.exists() and (not force or save.samefile(file)):
        raise exists(save, force=True)
    demand = demand_of(
        header, level=level, tol_logprob=tol_logprob, tie_eps=tie_eps, patience=patience, speed=speed_of(speed)
    )
    replayed = await replay(events if model is None else renamed(events, model), target, demand)
    for one in replayed.comparisons:
        out.line(as_json(one) if json else as_lines(one))
    if save is not None:
        keep(save, _kept_header(header), events, replayed.events)
        out.note(f"what came is in {save}:  lmtool trace diff {file} {save}")
    failed = sum(one.verdict == "fail" for one in replayed.comparisons)
    out.note(f"{len(replayed.comparisons)} requests · {failed} failed · level {demand.level}", "")
    if failed:
        raise typer.Exit(1)


def _kept_header(header: Header) -> Header:
    from dataclasses import replace

    from lmtool import __version__

    return replace(header, by=f"lmtool {__version__}", at="client", created=None, times="measured", redacted=())
