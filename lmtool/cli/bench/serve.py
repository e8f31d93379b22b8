"""`lmtool bench serve`: how fast a server answers, under loads of several sizes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import typer

from lmtool.cli.bench.reporting import Compare, JsonOnly, Save, Tolerance
from lmtool.cli.invocation import Common

if TYPE_CHECKING:
    from lmtool.bench.targets import Server

LOAD = "Load"


async def serve(
    common: Common,
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]",
            help="An LMTP endpoint, or http://.../v1 for an OpenAI-compatible server.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", metavar="NAME", help="Which served model.")] = None,
    scenario: Annotated[
        Literal["S1", "S2", "S3", "S4", "S5", "S6", "S7"],
        typer.Option(
            help="S1 short, S2 long prompts, S3 mixed, S4 16 branches of a prefix, S5 scoring, S6 a 4k prompt landing, "
            "S7 held to a schema.",
            rich_help_panel=LOAD,
        ),
    ] = "S1",
    concurrency: Annotated[
        str, typer.Option(metavar="N,N", help="Closed loop: streams at once.", rich_help_panel=LOAD)
    ] = "1,8,64",
    rate: Annotated[
        str | None, typer.Option(metavar="R,R", help="Open loop: requests a second (Poisson).", rich_help_panel=LOAD)
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="In each phase.", show_default="four for each at once", rich_help_panel=LOAD
        ),
    ] = None,
    prompt_len: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens.", show_default="the scenario's", rich_help_panel=LOAD),
    ] = None,
    output_len: Annotated[
        int | None,
        typer.Option(min=2, metavar="N", help="Tokens.", show_default="the scenario's", rich_help_panel=LOAD),
    ] = None,
    warmup: Annotated[
        int, typer.Option(min=0, metavar="N", help="Requests before, one by one.", rich_help_panel=LOAD)
    ] = 2,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            min=4, metavar="N", help="Prompts are random ids below.", show_default="the model's", rich_help_panel=LOAD
        ),
    ] = None,
    goal_ttft: Annotated[
        float, typer.Option(min=0, metavar="MS", help="Goodput: longest wait for a token.", rich_help_panel=LOAD)
    ] = 1000.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of prompts and arrivals.", rich_help_panel=LOAD)] = 0,
    json_only: JsonOnly = False,
    save: Save = None,
    compare: Compare = None,
    tolerance: Tolerance = 0.1,
) -> None:
    """Put a server under load; tell latencies, throughput, goodput, and tokens per CPU-second of a local server.

    Goodput counts the tokens of requests whose first one came in time and whose gaps (99 in 100) are at most twice
    those of a stream alone, which the warm-up measures.
    """
    from lmtool.bench.serve_card import serve_card
    from lmtool.bench.serve_run import as_outcome, run
    from lmtool.bench.workload import ServeBench
    from lmtool.cli.bench.reporting import earlier, finish, numbers
    from lmtool.cli.output import Output

    out = Output.of(common)
    before = earlier(compare, "serve")
    bench = ServeBench(
        scenario=scenario,
        prompt_len=prompt_len,
        output_len=output_len,
        concurrency=numbers(concurrency, "--concurrency"),
        rate=_rates(rate),
        requests=requests,
        warmup=warmup,
        goal_ttft_ms=goal_ttft,
        seed=seed,
    )
    async with _server(url or common.address, common.api_key, model, vocab_size) as server:
        report = await run(bench, server, out.note)
    finish(
        out,
        lambda columns: serve_card(report, columns),
        as_outcome(report),
        before,
        json_only=json_only,
        save=save,
        tolerance=tolerance,
    )


@asynccontextmanager
async def _server(
    address: str, api_key: str | None, model: str | None, vocab_size: int | None
) -> AsyncIterator[Server]:
    """The server at an address, connected and asked what it serves."""
    from lmtool.access.outgoing import authorization
    from lmtool.bench.targets import ModelTarget, OpenAITarget, Server
    from lmtool.cli.wiring import connect
    from lmtool.errors import ServerError
    from lmtool.types import ModelInfo

    stdio = address.startswith("stdio:")
    url, shown = (address, None) if stdio else authorization(address, api_key)
    if url.startswith(("http://", "https://")) and urlsplit(url).path.rstrip("/").endswith("/v1"):
        target = OpenAITarget(url, authorization=shown)
        try:
            target.model = model or next(iter(await target.models()), "")
            if not target.model:
                raise ServerError(f"{url} serves no model")
            yield Server(target, url, target.model, vocab_size or 1000, None, _process(url))
        finally:
            await target.close()
        return
    async with connect(address, api_key=api_key) as client:
        info = await client.info_if_told(model, patient=None in (model, vocab_size))
        info = info or ModelInfo(model or "", "", "unknown")
        size, own = vocab_size or info.vocab_size or 1000, ModelTarget(client, model, plain=client.plain)
        yield Server(own, url, info.model, size, info.context_length, _process(url))


def _process(url: str) -> int | None:
    """The process behind a URL of this machine."""
    from lmtool.bench.processes import listener

    if url.startswith("stdio:"):
        return None
    parts = urlsplit(url if "://" in url else f"ws://{url}")
    if parts.port is None or parts.hostname not in {None, "127.0.0.1", "localhost", "::1"}:
        return None
    return listener(parts.port)


def _rates(text: str | None) -> tuple[float, ...]:
    """`0.5,2` as numbers. Raises `UsageError`."""
    from lmtool.errors import UsageError

    if text is None:
        return ()
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate <= 1e6 for rate in rates):
        raise UsageError(f"--rate {text!r} is no list of numbers above 0", "such as --rate 0.5,2")
    return rates
