"""`lmtool bench serve`: latency and throughput of a server, under loads of several sizes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import typer

from lmtool.cli.bench.reporting import Report, parse_numbers
from lmtool.cli.common_options import ClientCommon
from lmtool.measure.bench.workload import LOAD, ServeBench
from lmtool.settings.option import option

if TYPE_CHECKING:
    from lmtool.measure.bench.targets import HttpApi, Server


async def serve(
    common: ClientCommon,
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]",
            help="An LMTP endpoint, or http://.../v1 for an OpenAI-compatible server.",
            show_default=False,
        ),
    ] = None,
    *,
    model: str | None = option(None, "Which served model.", short="-m", metavar="NAME"),
    bench: ServeBench,
    concurrency: str = option("1,8,64", "Closed loop: streams at once.", LOAD, metavar="N,N"),
    rate: str | None = option(None, "Open loop: requests a second (Poisson).", LOAD, metavar="R,R"),
    vocab_size: int | None = option(
        None, "Prompts are random ids below this.", LOAD, shown_default="the model's", metavar="N", minimum=4
    ),
    api: Literal["chat", "completions"] = option("chat", "API of an HTTP server: prompts as text, or as ids.", LOAD),
    report: Report,
) -> None:
    """Put a server under load; show latencies, throughput, goodput, and tokens per CPU-second of a local server.

    Goodput counts the tokens of requests whose first token was in time and whose time per token is at most twice that
    of a request alone, which the warm-up measures.
    """
    from lmtool.measure.bench.serve_run import as_outcome, run, serve_card

    out = common.output()
    before = report.before("serve")
    bench = replace(bench, concurrency=parse_numbers(concurrency, "--concurrency"), rate=_rates(rate))
    async with _server(url or common.address, common.api_key, model, vocab_size, api) as server:
        measured = await run(bench, server, out.note)
    report.finish(out, lambda columns: serve_card(measured, columns), as_outcome(measured), before)


@asynccontextmanager
async def _server(
    address: str, api_key: str | None, model: str | None, vocab_size: int | None, api: HttpApi
) -> AsyncIterator[Server]:
    """The server at an address, connected, with its model's description."""
    from lmtool.core.errors import ServerError
    from lmtool.core.types import ModelInfo
    from lmtool.measure.bench.targets import ModelTarget, OpenAITarget, Server
    from lmtool.net.access.outgoing import authorization
    from lmtool.protocol.lmtp.client import LmtpClient

    stdio = address.startswith("stdio:")
    url, header = (address, None) if stdio else authorization(address, api_key)
    if url.startswith(("http://", "https://")) and urlsplit(url).path.rstrip("/").endswith("/v1"):
        target = OpenAITarget(url, api=api, authorization=header)
        try:
            target.model = model or next(iter(await target.models()), "")
            if not target.model:
                raise ServerError(f"{url} serves no model")
            yield Server(target, url, target.model, vocab_size or 1000, None, _process(url))
        finally:
            await target.close()
        return
    async with LmtpClient(address, api_key=api_key) as client:
        info = await client.info_or_none(model, patient=None in (model, vocab_size))
        info = info or ModelInfo(model or "", "", "unknown")
        size, own = vocab_size or info.vocab_size or 1000, ModelTarget(client, model, plain=client.plain)
        yield Server(own, url, info.model, size, info.context_length, _process(url))


def _process(url: str) -> int | None:
    """The process behind a URL of this machine."""
    from lmtool.measure.bench.targets import listener

    if url.startswith("stdio:"):
        return None
    parts = urlsplit(url if "://" in url else f"ws://{url}")
    if parts.port is None or parts.hostname not in {None, "127.0.0.1", "localhost", "::1"}:
        return None
    return listener(parts.port)


def _rates(text: str | None) -> tuple[float, ...]:
    """`0.5,2` as numbers. Raises `UsageError`."""
    from lmtool.core.errors import UsageError

    if text is None:
        return ()
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate <= 1e6 for rate in rates):
        raise UsageError(f"--rate {text!r} is no list of numbers above 0", "such as --rate 0.5,2")
    return rates
