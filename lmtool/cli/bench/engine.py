"""`lmtool bench engine`: our engine beside its peers on the same weights, as ratios within each round."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Literal

import typer

from lmtool.cli.bench.reporting import Compare, JsonOnly, Save, Tolerance
from lmtool.cli.invocation import Common

WHAT = "What is measured"


async def engine(
    common: Common,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="A folder, a hub name, or random: with llama-100m, llama-1b, llama-tiny or gpt2.  "
            "[default: the embedded model]",
            show_default=False,
        ),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="transformers, transformers-cb, llamacpp, ctranslate2, vllm, or none; NAME:DTYPE=PYTHON (repeatable).",
            show_default="whatever is installed",
            rich_help_panel=WHAT,
        ),
    ] = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        typer.Option(
            help="Of everybody's weights, where --peer says no other; auto: as serve has them.", rich_help_panel=WHAT
        ),
    ] = "auto",
    batch: Annotated[str, typer.Option(metavar="N,N", help="Streams at once.", rich_help_panel=WHAT)] = "1,8,32",
    prompt_len: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens.", rich_help_panel=WHAT)] = 16,
    output_len: Annotated[int, typer.Option(min=2, metavar="N", help="Tokens.", rich_help_panel=WHAT)] = 33,
    rounds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Undisturbed visits of everybody.", rich_help_panel=WHAT)
    ] = 5,
    threads: Annotated[
        int, typer.Option(min=1, metavar="N", help="CPU threads of each engine.", rich_help_panel=WHAT)
    ] = 1,
    cpus: Annotated[
        str | None, typer.Option(metavar="N,N", help="Confine every engine to these processors.", rich_help_panel=WHAT)
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of prompts and random weights.", rich_help_panel=WHAT)] = 0,
    patience: Annotated[
        float, typer.Option("--timeout", min=1, metavar="S", help="Longest load or run.", rich_help_panel=WHAT)
    ] = 600.0,
    json_only: JsonOnly = False,
    save: Save = None,
    compare: Compare = None,
    tolerance: Tolerance = 0.1,
) -> None:
    """Measure our engine, as it is served, beside its peers: same weights, rotated rounds, ratios with their spread.

    A peer counts only if its greedy ids are those of transformers in float32, up to near ties. A round counts only if
    a calibration kernel is as fast after it as before. Numbers of processors begin with 0.
    """
    from lmtool.bench.contestants import contestants
    from lmtool.bench.engine_card import engine_card
    from lmtool.bench.engine_report import EngineBench, as_outcome
    from lmtool.bench.engine_run import run
    from lmtool.cli.bench.reporting import earlier, finish, numbers
    from lmtool.cli.output import Output
    from lmtool.cli.wiring import need_serve_packages

    out = Output.of(common)
    need_serve_packages()
    before = earlier(compare, "engine")
    taking_part, missing = contestants(peer or (), dtype)
    for sentence in missing:
        out.note(sentence)
    bench = EngineBench(
        model=_source(model),
        contestants=tuple(taking_part),
        batch=numbers(batch, "--batch"),
        prompt_len=prompt_len,
        output_len=output_len,
        rounds=rounds,
        threads=threads,
        cpus=_processors(cpus),
        seed=seed,
        timeout=patience,
    )
    with _ended_in_order():
        report = await run(bench, out.note)
    finish(
        out,
        lambda columns: engine_card(report, columns),
        as_outcome(report),
        before,
        json_only=json_only,
        save=save,
        tolerance=tolerance,
    )


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let SIGTERM end what runs inside as Ctrl-C does: workers are ended, converted models deleted."""
    import asyncio
    import signal

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    told: list[int] = []

    def end() -> None:
        told.append(signal.SIGTERM)
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        yield
    except asyncio.CancelledError:
        if told:
            raise typer.Exit(128 + told[0]) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _source(model: str | None) -> str:
    """What to load. Raises `UsageError` for a random model that is not known, `ModelLoadError` for no model at all."""
    from lmtool.bench.engine_run import RANDOM
    from lmtool.bench.peers.maker_peer import SHAPES
    from lmtool.cli.wiring import served
    from lmtool.errors import UsageError

    if model is None or not model.startswith(RANDOM):
        return served(model).source
    if model.removeprefix(RANDOM) not in SHAPES:
        known = ", ".join(RANDOM + name for name in SHAPES)
        raise UsageError(f"there is no {model!r}", f"known: {known}")
    return model


def _processors(text: str | None) -> tuple[int, ...]:
    """`0,2` as processors. Raises `UsageError` for one that this process may not use."""
    import os

    from lmtool.errors import UsageError

    if text is None:
        return ()
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) in allowed for part in parts):
        raise UsageError(f"--cpus {text!r} is no list of processors of this machine", f"known: {sorted(allowed)}")
    return tuple(int(part) for part in parts)
