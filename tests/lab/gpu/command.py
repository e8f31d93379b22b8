"""`lab gpu`: all that is to be known of lmtool on a GPU, in one command and one file."""

from __future__ import annotations

from pathlib import Path

import typer

from lmtool.cli.common_options import Common
from lmtool.settings.option import option
from tests.lab.soak.command import INTERRUPTED, stop_on_signal

PANEL = "Measurement"
TOLERANCE = 0.05
"""How much worse a figure may be than in the file that it is compared with."""


async def gpu(
    common: Common,
    *,
    file: Path = option(
        Path("bench-gpu.json"), "Where all figures go, after each section.", "Outcome", flag="--json", metavar="FILE"
    ),
    compare: Path | None = option(None, "Show what has changed since this file.", "Outcome", metavar="FILE"),
    device: str = option("cuda", "cuda, cuda:N; or cpu, to try the command.", PANEL, metavar="NAME"),
    model: str | None = option(
        None,
        "Of most sections, random: with a name of `bench engine`.",
        PANEL,
        metavar="NAME",
        shown_default="random:llama-8b; on a CPU random:llama-tiny",
    ),
    only: str | None = option(None, "These sections alone.", PANEL, metavar="NAME,NAME"),
    seconds: float = option(560.0, "Time of the whole run.", PANEL, metavar="S", minimum=1),
) -> None:
    """Test and measure lmtool on a GPU: tests, decode, prompts, sampling, determinism, transformers beside it.

    Needs no network and no model: weights are random, made on the device. A section that fails, or takes too long, is
    recorded, and the others go on.
    """
    from lmtool.cli.console import print_rich
    from lmtool.measure.bench.result import changes, read
    from tests.lab.gpu.report import gpu_card, metrics
    from tests.lab.gpu.run import run
    from tests.lab.gpu.settings import GpuBench, check_model, chosen

    out = common.output()
    sections = chosen([] if only is None else [name.strip() for name in only.split(",")])
    small = device == "cpu"
    model = model or ("random:llama-tiny" if small else "random:llama-8b")
    check_model(model)
    before = {} if compare is None else read(compare, "gpu")
    bench = GpuBench.small(device, model, seconds) if small else GpuBench(device=device, model=model, seconds=seconds)
    with stop_on_signal() as stop:
        report = await run(bench, sections, file, out.note, stop)
    print_rich(out, lambda _columns: gpu_card(report))
    for change in changes(before, metrics(report.results), TOLERANCE):
        out.line(f"{'worse' if change.worse else 'as good'}: {change.name} {change.before:.4g} → {change.now:.4g}")
    out.line(f"\nall figures: {file}")  # a line of its own: a path in a card may be wrapped
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)
