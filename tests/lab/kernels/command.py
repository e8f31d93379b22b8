"""`lab kernels`: matrix products on this CPU, without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.cli.bench import Report, parse_numbers
from lmtool.cli.common_options import Common
from lmtool.settings.option import option

if TYPE_CHECKING:
    from tests.lab.kernels.run import KernelsBench

PANEL = "Measurement"
MOST_WEIGHTS = 1 << 26


async def kernels(
    common: Common,
    *,
    shape: str = option("3072x768", "Outputs and inputs of the weights.", PANEL, metavar="OUTxIN"),
    formats: str = option("float32,bfloat16,int8,int4", "Of the weights.", PANEL, metavar="TYPE,TYPE"),
    rows: str = option("1,8,32,256", "Rows of inputs at once, at most 256.", PANEL, metavar="N,N"),
    rounds: int = option(5, "Rounds of both ways.", PANEL, metavar="N", minimum=1),
    seconds: float = option(0.1, "Duration of each measurement in a round.", PANEL, metavar="S", minimum=0.001),
    threads: int = option(1, "CPU threads.", PANEL, metavar="N", minimum=1, maximum=1024),
    report: Report,
) -> None:
    """Measure the C kernels' products beside oneDNN's, and beside what registers and memory allow.

    Both ways run right after each other in each round, on weights that no cache holds. Operations are 2 for each
    multiply-add; one thread is timed by the CPU's clock, several by the wall's. int8 and int4 have no peer.
    """
    from lmtool.serving.composition import need_serve_packages
    from tests.lab.kernels.run import as_outcome, kernels_card, run

    out = common.output()
    need_serve_packages()
    before = report.before("kernels")
    bench = _settings(shape, formats, rows, rounds, seconds, threads)
    measured = await run(bench, out.note)
    report.finish(out, lambda columns: kernels_card(measured, columns), as_outcome(measured), before)


def _settings(shape: str, formats: str, rows: str, rounds: int, seconds: float, threads: int) -> KernelsBench:
    """The options as settings. Raises `UsageError` that names the option."""
    from lmtool.core.errors import UsageError
    from tests.lab.kernels.run import FORMATS, KernelsBench

    sides = [int(part) if part.isdecimal() else 0 for part in shape.split("x")]
    if len(sides) != 2 or not all(0 < side <= MOST_WEIGHTS for side in sides) or sides[0] * sides[1] > MOST_WEIGHTS:
        raise UsageError(f"--shape {shape!r} is no shape of at most {MOST_WEIGHTS} weights", "such as 3072x768")
    kinds = tuple(dict.fromkeys(part.strip() for part in formats.split(",")))
    if unknown := [kind for kind in kinds if kind not in FORMATS]:
        raise UsageError(f"--formats: there is no {unknown[0]!r}", f"known: {', '.join(FORMATS)}")
    counts = parse_numbers(rows, "--rows")
    if max(counts) > 256:
        raise UsageError(f"--rows {max(counts)} is more than 256", "products of more rows are computed 256 at a time")
    return KernelsBench(sides[0], sides[1], kinds, counts, rounds, seconds, threads)
