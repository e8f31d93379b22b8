"""`lmtool bench`: our engine compared with others, or a server under load; reports and compares with earlier runs."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer

from lmtool.cli.common_options import ClientCommon, Common
from lmtool.cli.console import print_rich
from lmtool.core.errors import ServerError, UsageError
from lmtool.measure.bench.workload import LOAD, ServeBench
from lmtool.settings.option import option
from lmtool.settings.terminal import Output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lmtool.measure.bench.result import Metric
    from lmtool.measure.bench.targets import HttpApi, Server

MEASUREMENT = "Measurement"
_OUTCOME = "Outcome"


@dataclass(frozen=True, slots=True)
class Report:
    """Output of a benchmark's outcome: JSON, a saved file, a comparison."""

    json_only: bool = option(False, "Print the JSON line only; a pipe gets it after the card.", _OUTCOME, flag="--json")
    save: Path | None = option(None, "Save the outcome as JSON.", _OUTCOME, metavar="FILE")
    compare: Path | None = option(None, "Exit with 1 if worse than this outcome.", _OUTCOME, metavar="FILE")
    tolerance: float = option(0.1, "How much worse still passes.", _OUTCOME, metavar="SHARE", minimum=0)

    def before(self, kind: str) -> Mapping[str, Metric]:
        """Metrics to compare with, read before anything is measured. Raises `FileError` for no outcome of this kind."""
        from lmtool.measure.bench.result import read

        return {} if self.compare is None else read(self.compare, kind)

    def finish(
        self,
        out: Output,
        card: Callable[[int], RenderableType],
        result: Mapping[str, Any],
        before: Mapping[str, Metric],
    ) -> None:
        """Print and save the outcome. Exits with status 1 when it is worse than before beyond the tolerance.

        card: called with the number of columns. Raises `UsageError` when the two runs have no figure in common.
        """
        from lmtool.measure.bench.result import Metric, changes
        from lmtool.measure.bench.result import save as write

        if self.save is not None:
            write(self.save, result)
        now = {name: Metric(entry["value"], entry["better"]) for name, entry in result["metrics"].items()}
        compared = changes(before, now, self.tolerance)
        if not self.json_only:
            print_rich(out, card)
            for change in compared:
                sign = "worse" if change.worse else "as good"
                out.line(f"{sign}: {change.name} {change.before:.4g} → {change.now:.4g}")
        if self.json_only or not out.terminal:  # people read the card, programs --save and --json
            rows = [{"name": one.name, "before": one.before, "now": one.now, "worse": one.worse} for one in compared]
            out.line(json.dumps({**result, "compared": rows} if before else result, ensure_ascii=False))
        if before and not compared:
            raise UsageError("the two runs have no figure in common", "compare with a run of the same settings")
        if any(one.worse for one in compared):
            raise typer.Exit(1)


async def engine(
    common: Common,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="A folder, a hub name, or random: with llama-100m, -1b, -8b, -tiny, qwen2-0.5b or gpt2.  "
            "[default: the included model]",
            show_default=False,
        ),
    ] = None,
    *,
    peer: list[str] | None = option(
        None,
        "Compare with: transformers, transformers-cb, llamacpp, ctranslate2, vllm, openvino-genai, onnxruntime-genai, "
        "mistralrs, or none; NAME:DTYPE=PYTHON (repeatable).",
        MEASUREMENT,
        shown_default="whatever is installed",
        metavar="NAME",
    ),
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "int4"] = option(
        "auto", "Data type of all weights, unless --peer names another; auto: as serve chooses.", MEASUREMENT
    ),
    device: str = option("cpu", "Compute on: cpu, cuda, cuda:N.", MEASUREMENT, metavar="NAME"),
    batch: str = option("1,8,32", "Numbers of concurrent streams.", MEASUREMENT, metavar="N,N"),
    prompt_len: int = option(16, "Prompt tokens.", MEASUREMENT, metavar="N", minimum=1),
    output_len: int = option(33, "Output tokens.", MEASUREMENT, metavar="N", minimum=2),
    rounds: int = option(5, "Valid rounds of all engines.", MEASUREMENT, metavar="N", minimum=1),
    threads: int = option(1, "CPU threads per engine.", MEASUREMENT, metavar="N", minimum=1),
    cpus: str | None = option(None, "Run every engine on these processors only.", MEASUREMENT, metavar="N,N"),
    seed: int = option(0, "Seed of prompts and random weights.", MEASUREMENT, metavar="N"),
    patience: float = option(
        600.0, "Longest load or run.", MEASUREMENT, flag="--timeout", metavar="SECONDS", minimum=1
    ),
    report: Report,
) -> None:
    """Measure our engine, as it is served, against others: same weights, rotated rounds, ratios with their spread.

    A peer is valid only if its greedy ids are those of transformers in float32, up to near ties; a round only if a
    calibration kernel is as fast after it as before. Processors are numbered from 0. On a GPU, random weights are
    created in its memory, the same for each engine.
    """
    from lmtool.measure.bench.contestants import contestants, need_own_packages
    from lmtool.measure.bench.engine_report import EngineBench, as_outcome, engine_card
    from lmtool.measure.bench.engine_run import run
    from lmtool.serving.model_names import served

    out = common.output()
    need_own_packages()
    before = report.before("engine")
    participants, missing = contestants(peer or (), dtype, on_gpu=_is_gpu(device))
    for sentence in missing:
        out.note(sentence)
    bench = EngineBench(
        model=served(model).source,
        contestants=tuple(participants),
        batch=parse_numbers(batch, "--batch"),
        prompt_len=prompt_len,
        output_len=output_len,
        rounds=rounds,
        threads=threads,
        cpus=_processors(cpus),
        seed=seed,
        timeout=patience,
        device=device,
    )
    with _cancel_on_sigterm():
        measured = await run(bench, out.note)
    report.finish(out, lambda columns: engine_card(measured, columns), as_outcome(measured), before)


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
    model: str | None = option(None, "Use this served model.", short="-m", metavar="NAME"),
    bench: ServeBench,
    concurrency: str = option("1,8,64", "Closed loop: numbers of concurrent streams.", LOAD, metavar="N,N"),
    rate: str | None = option(None, "Open loop: requests per second (Poisson).", LOAD, metavar="R,R"),
    vocab_size: int | None = option(
        None, "Draw prompts from ids below this.", LOAD, shown_default="the model's", metavar="N", minimum=4
    ),
    api: Literal["chat", "completions"] = option(
        "chat", "API of an HTTP server: chat sends text, completions ids.", LOAD
    ),
    report: Report,
) -> None:
    """Put a server under load; show latencies, throughput, goodput, and tokens per CPU-second of a local server.

    Goodput counts the tokens of requests whose first token was in time and whose time per token is at most twice that
    of a single request, which the warm-up measures.
    """
    from lmtool.measure.bench.serve_run import as_outcome, run, serve_card

    out = common.output()
    before = report.before("serve")
    bench = replace(bench, concurrency=parse_numbers(concurrency, "--concurrency"), rate=_rates(rate))
    async with _server(url or common.address, common.api_key, model, vocab_size, api) as server:
        measured = await run(bench, server, out.note)
    report.finish(out, lambda columns: serve_card(measured, columns), as_outcome(measured), before)


def _is_gpu(device: str) -> bool:
    """True if a device is a GPU. Raises `UsageError` for a name that is no device."""
    from lmtool.inference.engine.config import EngineConfig

    if device == "auto":
        raise UsageError("--device auto: engines would not agree on it", "choose cpu or cuda")
    return EngineConfig(device=device).device != "cpu"


@contextlib.contextmanager
def _cancel_on_sigterm() -> Iterator[None]:
    """Let SIGTERM cancel the block as Ctrl-C does, so that peers are ended and converted models deleted."""
    import asyncio
    import signal

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    received: list[int] = []

    def end() -> None:
        received.append(signal.SIGTERM)
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        yield
    except asyncio.CancelledError:
        if received:
            raise typer.Exit(128 + received[0]) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@contextlib.asynccontextmanager
async def _server(
    address: str, api_key: str | None, model: str | None, vocab_size: int | None, api: HttpApi
) -> AsyncIterator[Server]:
    """The server at an address, connected, with its model's description."""
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
    """Id of the process that listens at a URL of this machine; None elsewhere."""
    from lmtool.measure.bench.targets import listener

    if url.startswith("stdio:"):
        return None
    parts = urlsplit(url if "://" in url else f"ws://{url}")
    if parts.port is None or parts.hostname not in {None, "127.0.0.1", "localhost", "::1"}:
        return None
    return listener(parts.port)


def parse_numbers(text: str, name: str) -> tuple[int, ...]:
    """`1,8,32` as numbers, each once. Raises `UsageError` that names the option."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= 1_000_000 for part in parts):
        raise UsageError(f"{name} {text!r} is not a list of positive numbers", f"such as {name} 1,8,32")
    return tuple(dict.fromkeys(int(part) for part in parts))


def _processors(text: str | None) -> tuple[int, ...]:
    """`0,2` as processors. Raises `UsageError` for a processor that this process may not use."""
    if text is None:
        return ()
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) in allowed for part in parts):
        raise UsageError(f"--cpus {text!r} is not a list of processors of this machine", f"known: {sorted(allowed)}")
    return tuple(int(part) for part in parts)


def _rates(text: str | None) -> tuple[float, ...]:
    """`0.5,2` as numbers. Raises `UsageError`."""
    try:
        rates = () if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = (0.0,)
    if not all(0 < rate <= 1e6 for rate in rates):
        raise UsageError(f"--rate {text!r} is not a list of numbers above 0", "such as --rate 0.5,2")
    return rates
