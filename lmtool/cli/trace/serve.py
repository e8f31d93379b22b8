"""`lmtool trace serve`: the server of a recording, without its model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lmtool.cli.invocation import Common
from lmtool.cli.serving.access import AllowHost, AllowOrigin, NoAuth
from lmtool.cli.trace.files import read_exchanges


async def serve(
    common: Common,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Traces whose requests can be answered.")],
    host: Annotated[str, typer.Option(help="Interface to listen on; 0.0.0.0 is every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")] = 8080,
    match: Annotated[
        Literal["exact", "prompt", "order"],
        typer.Option("--match", help="All fields, only model and prompt, or the n-th answer for the n-th request."),
    ] = "exact",
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="FIELD", help="A field that may differ; repeatable.")
    ] = None,
    on_miss: Annotated[
        Literal["error", "nearest", "close", "hang", "forward"],
        typer.Option("--on-miss", help="What a request gets that is not recorded."),
    ] = "error",
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="The real server, for --on-miss forward.")
    ] = None,
    speed: Annotated[str, typer.Option("--speed", metavar="N|max", help="Times as fast as recorded.")] = "1",
    max_gap: Annotated[
        float | None, typer.Option("--max-gap", metavar="S", min=0, help="Longest wait inside an answer.")
    ] = None,
    chaos: Annotated[
        str,
        typer.Option("--chaos", metavar="LIST", help="Trouble: batch, delay, fields, commands, cut; all."),
    ] = "",
    seed: Annotated[int, typer.Option("--seed", help="Of the trouble: the same seed, the same trouble.")] = 0,
    reuse: Annotated[bool, typer.Option("--reuse", help="Answer equal requests again when all are used.")] = False,
    allow_origin: AllowOrigin = None,
    allow_host: AllowHost = None,
    no_auth: NoAuth = False,
) -> None:
    """Answer requests as they were answered when they were recorded: a mock server for tests of clients.

    --api-key is asked for, and shown to the server of --to unless its URL has another, ws://user:KEY@HOST:PORT/.
    """
    from lmtool.cli.output import Output
    from lmtool.cli.serving import interrupts, listening
    from lmtool.cli.serving.access import AccessConfig
    from lmtool.errors import UsageError
    from lmtool.trace.chaos import Chaos
    from lmtool.trace.chaos import parse as parse_chaos
    from lmtool.trace.matching import Matcher
    from lmtool.trace.player import Pace, Player
    from lmtool.trace.proxy import parse_target

    if (to is None) == (on_miss == "forward"):
        raise UsageError("--on-miss forward and --to URL belong together", "give both, or neither")
    out, pace, trouble = Output.of(common), Pace(speed_of(speed), max_gap), Chaos(parse_chaos(chaos), seed)
    recorded = [exchange for file in files for exchange in read_exchanges(out, file)]
    matcher = Matcher(recorded, match, ignore=ignore or (), reuse=reuse)
    target = None if to is None else parse_target(to, common.api_key)
    place = listening.ListenConfig(host, port)
    door = AccessConfig(common.api_key, tuple(allow_origin or ()), tuple(allow_host or ()), no_auth)
    policy = door.policy(place)
    for sentence in policy.warnings(public=place.public):
        out.warn(sentence)
    player = Player(matcher, pace, "error" if on_miss == "forward" else on_miss, out.warn, trouble, target, policy)
    sockets = listening.bind(place)
    await player.listen(sockets)
    out.note(f"answering {len(recorded)} recorded requests at {listening.url(place, sockets)}    Ctrl-C ends it", "")
    with interrupts.watch() as asked:
        await asked.first.wait()
    await player.close()
    unused = len(matcher.unused)
    out.note(
        f"{player.answered} requests answered · {player.missed} not recorded · {unused} recorded ones not asked", ""
    )


def speed_of(text: str) -> float | None:
    """How many times as fast as recorded; None for `max`. Raises `UsageError`."""
    from lmtool.errors import UsageError

    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise UsageError(f"--speed {text} is no speed", "a number above 0, or max")
    return speed
