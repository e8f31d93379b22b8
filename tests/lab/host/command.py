"""`lab host`: the engine's Python, without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.cli.bench import Report, parse_numbers
from lmtool.cli.common_options import Common
from lmtool.settings.option import option

if TYPE_CHECKING:
    from tests.lab.host.run import HostBench

PANEL = "Measurement"


async def host(
    common: Common,
    *,
    streams: str = option("1,64,256", "Streams at once, at most 1024.", PANEL, metavar="N,N"),
    sampling: str = option("greedy,temperature,top-k,top-p", "Of all streams.", PANEL, metavar="KIND,KIND"),
    runner: str = option("cpu,paged,graphs", "Of the CPU, and the GPU's on CPU tensors.", PANEL, metavar="KIND,KIND"),
    context: int = option(128, "Tokens of a prompt.", PANEL, metavar="N", minimum=16, maximum=65536),
    steps: int = option(100, "Timed in each measurement.", PANEL, metavar="N", minimum=1, maximum=10_000),
    rounds: int = option(5, "Rounds of all measurements.", PANEL, metavar="N", minimum=1),
    against: str | None = option(None, "Another version's checkout, in each round.", PANEL, metavar="FOLDER"),
    patience: float = option(120.0, "Longest measurement.", PANEL, flag="--timeout", metavar="S", minimum=1),
    report: Report,
) -> None:
    """Measure what the engine itself takes for a step: CPU time of its thread, over a forward pass that costs nothing.

    The real engine, scheduler, sampler and outputs, handed to an event loop; no model, no GPU. Streams of `paged` run
    as on a GPU: decode steps recorded by size, the next one begun before the last one is read; that needs Triton. In
    `graphs` they sample, too, and cost nothing: what is left is the host's, but for CUDA's own calls.
    """
    from lmtool.serving.composition import need_serve_packages
    from tests.lab.host.run import as_outcome, host_card, run

    out = common.output()
    need_serve_packages()
    before = report.before("host")
    bench = _settings(streams, sampling, runner, context, steps, rounds, against, patience)
    measured = await run(bench, out.note)
    report.finish(out, lambda columns: host_card(measured, columns), as_outcome(measured), before)


def _settings(
    streams: str,
    sampling: str,
    runner: str,
    context: int,
    steps: int,
    rounds: int,
    against: str | None,
    patience: float,
) -> HostBench:
    """The options as settings. Raises `UsageError` that names the option."""
    from lmtool.core.errors import UsageError
    from tests.lab.host.run import RUNNERS, SAMPLING, HostBench, checkout

    counts = parse_numbers(streams, "--streams")
    if max(counts) > 1024:
        raise UsageError(f"--streams {max(counts)} is more than 1024", "a step computes no more at once by far")
    if against is not None:
        checkout(against)
    kinds, runners = _words(sampling, "--sampling", SAMPLING), _words(runner, "--runner", RUNNERS)
    return HostBench(counts, kinds, runners, context, steps, rounds, against, patience)


def _words(text: str, name: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """`a,b` as words. Raises `UsageError` that names the option."""
    from lmtool.core.errors import UsageError

    words = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if unknown := [word for word in words if word not in known]:
        raise UsageError(f"{name}: there is no {unknown[0]!r}", f"known: {', '.join(known)}")
    return words
