"""`lmtool bench engine`: our engine beside other engines on the same weights, as ratios within each round."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Literal

import typer

from lmtool.cli.bench.reporting import Report, parse_numbers
from lmtool.cli.common_options import Common
from lmtool.settings.option import option

PANEL = "Measurement"


async def engine(
    common: Common,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="A folder, a hub name, or random: with llama-100m, -1b, -8b, -tiny, qwen2-0.5b or gpt2.  "
            "[default: the embedded model]",
            show_default=False,
        ),
    ] = None,
    *,
    peer: list[str] | None = option(
        None,
        "transformers, transformers-cb, llamacpp, ctranslate2, vllm, openvino-genai, onnxruntime-genai, mistralrs, "
        "or none; NAME:DTYPE=PYTHON (repeatable).",
        PANEL,
        shown_default="whatever is installed",
        metavar="NAME",
    ),
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "int4"] = option(
        "auto", "Number format of all weights, unless --peer names another; auto: that of serve.", PANEL
    ),
    device: str = option("cpu", "Where all engines compute: cpu, cuda, cuda:N.", PANEL, metavar="NAME"),
    batch: str = option("1,8,32", "Streams at once.", PANEL, metavar="N,N"),
    prompt_len: int = option(16, "Tokens.", PANEL, metavar="N", minimum=1),
    output_len: int = option(33, "Tokens.", PANEL, metavar="N", minimum=2),
    rounds: int = option(5, "Valid rounds of all engines.", PANEL, metavar="N", minimum=1),
    threads: int = option(1, "CPU threads of each engine.", PANEL, metavar="N", minimum=1),
    cpus: str | None = option(None, "Confine every engine to these processors.", PANEL, metavar="N,N"),
    seed: int = option(0, "Of prompts and random weights.", PANEL, metavar="N"),
    patience: float = option(600.0, "Longest load or run.", PANEL, flag="--timeout", metavar="S", minimum=1),
    report: Report,
) -> None:
    """Measure our engine, as it is served, beside others: same weights, rotated rounds, ratios with their spread.

    A peer is valid only if its greedy ids are those of transformers in float32, up to near ties; a round only if a
    calibration kernel is as fast after it as before. Processors are numbered from 0. On a GPU random weights
    are made in its memory, the same for each engine.
    """
    from lmtool.measure.bench.contestants import contestants, need_own_packages
    from lmtool.measure.bench.engine_report import EngineBench, as_outcome, engine_card
    from lmtool.measure.bench.engine_run import run
    from lmtool.serving.model_names import served

    out = common.output()
    need_own_packages()
    before = report.before("engine")
    on_gpu = _is_gpu(device)
    participants, missing = contestants(peer or (), dtype, on_gpu=on_gpu)
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


def _is_gpu(device: str) -> bool:
    """Whether a device is a GPU. Raises `UsageError` for a name that is none."""
    from lmtool.inference.engine.config import EngineConfig

    if device == "auto":
        from lmtool.core.errors import UsageError

        raise UsageError("--device auto: engines would not agree on it", "choose cpu or cuda")
    return EngineConfig(device=device).device != "cpu"


@contextlib.contextmanager
def _cancel_on_sigterm() -> Iterator[None]:
    """Let SIGTERM cancel the block as Ctrl-C does: peers are ended, converted models deleted."""
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


def _processors(text: str | None) -> tuple[int, ...]:
    """`0,2` as processors. Raises `UsageError` for one that this process may not use."""
    import os

    from lmtool.core.errors import UsageError

    if text is None:
        return ()
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) in allowed for part in parts):
        raise UsageError(f"--cpus {text!r} is no list of processors of this machine", f"known: {sorted(allowed)}")
    return tuple(int(part) for part in parts)
