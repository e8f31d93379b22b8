"""`lab inspect`: whether the inspector keeps up with a load, and how fast it reacts to keys."""

from __future__ import annotations

from dataclasses import dataclass

from lmtool.cli.bench import Report
from lmtool.cli.common_options import Common
from lmtool.settings.option import option

LOAD = "Load"


@dataclass(frozen=True, slots=True)
class LooserReport(Report):
    """Times of keys vary more than those of engines."""

    tolerance: float = option(0.3, "How much worse still passes.", "Outcome", metavar="SHARE", minimum=0)


def inspect(
    common: Common,
    *,
    rate: float = option(50_000.0, "Tokens a second.", LOAD, metavar="N", minimum=64),
    streams: int = option(64, "Streams of these tokens.", LOAD, metavar="N", minimum=1, maximum=1000),
    seconds: float = option(10.0, "Duration.", LOAD, metavar="S", minimum=0.5),
    tokens: int = option(1_000_000, "Tokens of the trace.", LOAD, metavar="N", minimum=64),
    size: str = option("160x45", "Size of the terminal.", LOAD, metavar="WxH"),
    seed: int = option(0, "Seed of the tokens.", LOAD, metavar="N"),
    report: LooserReport,
) -> None:
    """Run the inspector in a pseudo-terminal, on many live streams, then on a long trace; time its keys and its CPU.

    A key's time is from the press to the end of its action.
    """
    from lmtool.terminal.tui.headless import size_of
    from tests.lab.inspector.run import InspectBench, as_outcome, inspect_card, run

    out = common.output()
    before = report.before("inspect")
    columns, rows = size_of(size)
    measured = run(InspectBench(rate, streams, seconds, tokens, columns, rows, seed), out.note)
    report.finish(out, lambda width: inspect_card(measured, width), as_outcome(measured), before)
