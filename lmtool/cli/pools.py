"""`lmtool pools`: the pools of a gateway and the state of their models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from lmtool.cli.common_options import ClientCommon
from lmtool.cli.models import align_columns
from lmtool.core.errors import UnknownModelError
from lmtool.core.logprobs.numbers import duration
from lmtool.settings.option import option

REFRESH = 1.0
"""Seconds between two looks under --watch."""
CLEAR = "\x1b[H\x1b[J"


async def pools(
    common: ClientCommon,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this pool.")] = None,
    watch: bool = option(False, "Show it again each second, until Ctrl-C."),
    json: bool = option(False, "Print JSON, one line each time."),
) -> None:
    """List the pools of the server at --endpoint: their models, health, counts and costs."""
    import asyncio
    import json as codec
    import sys

    from lmtool.gateway.pools.client import PoolsClient

    out = common.output()
    async with PoolsClient(common.address, common.api_key) as client:
        while True:
            found = _named(await client.status(), name)
            if json:
                out.line(codec.dumps(found, ensure_ascii=False))
            else:
                head = CLEAR if watch and sys.stdout.isatty() else ""
                out.line(head + "\n\n".join("\n".join(lines(pool)) for pool in found))
            if not watch:
                return
            await asyncio.sleep(REFRESH)


def _named(found: Sequence[Mapping[str, Any]], name: str | None) -> list[Mapping[str, Any]]:
    """The pool of a name, or all of them. Raises `UnknownModelError`."""
    named = [pool for pool in found if name in (None, pool["id"])]
    if not named and name is not None:
        raise UnknownModelError(
            f"there is no pool {name!r:.100}", f"pools there: {', '.join(one['id'] for one in found)}"
        )
    return named


def lines(pool: Mapping[str, Any]) -> list[str]:
    """A pool for people: a line of its own, and one for each model."""
    head = f"{pool['id']}  {pool['strategy']}"
    if "requests" in pool:  # of all clients: for keys with `admin`
        head += f"  requests {pool['requests']}"
    if pool.get("cached"):
        head += f"  cached {pool['cached']}"
    if pool.get("p50_seconds") is not None:
        head += f"  p50 {duration(pool['p50_seconds'])}"
    if pool.get("cost") is not None:
        head += f"  cost {pool['cost']:.4f}"
    return [head, *(f"  {row}" for row in align_columns([_row(model) for model in pool["models"]]))]


def _row(model: Mapping[str, Any]) -> list[str]:
    state = model["state"]
    if state == "resting":
        state = f"resting {model['resting_seconds']:.0f} s ({model['reason']})"
    cost = "" if model.get("cost") is None else f"cost {model['cost']:.4f}"
    calls = f"{model['ok']} ok" if "ok" in model else ""
    counts = [calls, f"{model['failed']} failed" if model.get("failed") else "", cost]
    return [model["id"], model["provider"], model["model"] or "", state, *counts]
