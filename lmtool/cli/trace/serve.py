"""`lmtool trace serve`: the server of a recording, without its model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lmtool.cli.common_options import ServerCommon
from lmtool.cli.trace.files import read_recording
from lmtool.serving.access_config import AccessConfig
from lmtool.serving.config import ListenConfig
from lmtool.settings.option import option


async def serve(
    common: ServerCommon,
    access: AccessConfig,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Traces whose requests can be answered.")],
    host: str = option("127.0.0.1", "Interface to listen on; 0.0.0.0 is every one."),
    port: int = option(8080, "0 takes a free one.", short="-p", minimum=0, maximum=65535),
    unix: str | None = option(None, "Listen on this Unix socket, not on a port.", metavar="PATH"),
    grpc_port: int | None = option(
        None, "Play Evergreen sessions over gRPC on this port too; 0 takes a free one.", minimum=0, maximum=65535
    ),
    match: Literal["exact", "prompt", "order"] = option(
        "exact", "All fields, only model and prompt, or the n-th answer for the n-th request."
    ),
    ignore: list[str] | None = option(None, "A field that may differ; repeatable.", metavar="FIELD"),
    on_miss: Literal["error", "nearest", "close", "hang", "forward"] = option(
        "error", "Answer to a request that is not recorded."
    ),
    to: str | None = option(None, "The real server, for --on-miss forward.", metavar="URL"),
    speed: str = option("1", "Times as fast as recorded.", metavar="N|max"),
    max_gap: float | None = option(None, "Longest wait between two pieces of an answer.", metavar="S", minimum=0),
    chaos: str = option("", "Faults to inject: batch, delay, fields, commands, cut; all.", metavar="LIST"),
    seed: int = option(0, "Seed for --chaos."),
    once: bool = option(False, "Use each recorded answer only once."),
    reuse: bool = option(False, "The default since there is --once.", hidden=True),  # scripts pass it
) -> None:
    """Answer requests as they were answered when they were recorded: a mock server for tests of clients.

    --api-key is asked for, and shown to the server of --to unless its URL has another, ws://user:KEY@HOST:PORT/.
    """
    from lmtool.core.errors import UsageError
    from lmtool.serving import interrupts, listening
    from lmtool.trace.matching import Chaos, Matcher, Pace, parse_chaos
    from lmtool.trace.player import Player
    from lmtool.trace.proxy import parse_target

    if (to is None) == (on_miss == "forward"):
        raise UsageError("--on-miss forward and --to URL belong together", "give both, or neither")
    if once and reuse:
        raise UsageError("--once and --reuse contradict each other", "leave --reuse out, it is the default")
    out, pace, trouble = common.output(), Pace(parse_speed(speed), max_gap), Chaos(parse_chaos(chaos), seed)
    recorded = [request for file in files for request in read_recording(out, file).requests]
    matcher = Matcher(recorded, match, ignore=ignore or (), once=once)
    target = None if to is None else parse_target(to, common.api_key)
    place = ListenConfig(host, port, unix)
    place.check(common.typed)
    policy = access.policy(place, common.api_key)
    for sentence in policy.warnings(public=place.public):
        out.warn(sentence)
    player = Player(matcher, pace, "error" if on_miss == "forward" else on_miss, out.warn, trouble, target, policy)
    if grpc_port is not None and player.sessions is None:
        raise UsageError("--grpc-port plays Evergreen sessions, and there is none in these recordings", "leave it out")
    sockets = listening.bind(place)
    await player.listen(sockets)
    over_grpc = None if grpc_port is None or player.sessions is None else await player.sessions.listen(host, grpc_port)
    with interrupts.watch() as interrupt:
        address = _address(listening.url(place, sockets), {one.protocol for one in recorded})
        out.note(f"answering {len(recorded)} recorded requests at {address}    Ctrl-C ends it", "")
        if over_grpc is not None:
            out.note(f"and Evergreen over gRPC at {over_grpc}", "")
        await interrupt.first.wait()
    await player.close()
    unused = len(matcher.unused)
    out.note(
        f"{player.answered} requests answered · {player.missed} not recorded · {unused} recorded requests unused", ""
    )


def _address(url: str, protocols: set[str]) -> str:
    """Address for clients: a base URL for SDKs if nothing but HTTP was recorded."""
    return f"http{url.removeprefix('ws')}" if protocols == {"http"} and url.startswith("ws") else url


def parse_speed(text: str) -> float | None:
    """A factor on the recorded speed; None for `max`. Raises `UsageError`."""
    from lmtool.core.errors import UsageError

    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise UsageError(f"--speed {text} is not a speed", "a number above 0, or max")
    return speed
