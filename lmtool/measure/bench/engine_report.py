"""Settings and results of `bench engine`: as objects, as JSON, and as a card for people."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from lmtool.measure.bench.contest import WAITS, standings
from lmtool.measure.bench.contestants import AUTO
from lmtool.measure.bench.result import Metric, outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.measure.bench.checkpoint import Checkpoint
    from lmtool.measure.bench.contest import Agreement, Round, Standing
    from lmtool.measure.bench.contestants import Contestant
    from lmtool.measure.bench.record import Spread

TITLES = (
    *("", "decode tok/s", "of limit", "ours ÷ it", "per CPU-s", "ours ÷ it", "prefill"),
    *("first s", "all first s", "ITL s", "longest s"),
    "ids",
)
"""Of the card's columns; those of the second line are `contest.WAITS`."""
CHOICES = (range(len(TITLES)), (*range(7), 11), (*range(4), 11), (0, 1, 3))
"""Columns that a card has: the first choice that fits, or the last one. Whose ids are wrong is also told below it."""
PADDING = 2
"""Of a column, both sides."""


@dataclass(frozen=True, slots=True)
class EngineBench:
    """Settings of one run. Fields match the flags of `lmtool bench engine`."""

    model: str
    """A folder, a hub name, or `random:NAME`."""
    contestants: tuple[Contestant, ...]
    """Ours first."""
    batch: tuple[int, ...] = (1, 8, 32)
    prompt_len: int = 16
    output_len: int = 33
    rounds: int = 5
    threads: int = 1
    cpus: tuple[int, ...] = ()
    """Processors that every engine is confined to; none: no limit."""
    seed: int = 0
    timeout: float = 600.0
    """Seconds that one load or one run may take."""
    device: str = "cpu"
    """Of every engine: cpu, cuda or cuda:N."""

    @property
    def on_gpu(self) -> bool:
        """True if engines compute on a GPU: random weights are made there, and what is timed is the wall's clock."""
        return self.device != "cpu"

    def with_auto_dtype(self, dtype: str) -> EngineBench:
        """The same with `AUTO` replaced by this dtype; contestants that are then equal take part once."""
        contestants = (replace(one, dtype=dtype) if one.dtype == AUTO else one for one in self.contestants)
        return replace(self, contestants=tuple(dict.fromkeys(contestants)))


@dataclass
class EngineReport:
    """The results of one run."""

    bench: EngineBench
    model_name: str
    checkpoint: Checkpoint
    bandwidth: float
    """Bytes per second."""
    products: dict[str, float]
    """Floating-point (or integer) operations per second, by dtype."""
    abouts: dict[str, dict[str, Any]]
    agreements: dict[str, Agreement]
    failures: dict[str, str] = field(default_factory=dict)
    """Contestant to the reason why it was left out."""
    rounds: dict[int, list[Round]] = field(default_factory=dict)
    """By batch size, unsteady ones included."""
    device_name: str = ""
    """Of a GPU."""
    resident: dict[str, int] = field(default_factory=dict)
    """Peak memory of each contestant, in bytes."""

    @property
    def ours(self) -> str:
        """The name of the contestant that the others are compared with."""
        return self.bench.contestants[0].name

    def standings(self, batch: int) -> dict[str, Standing]:
        """By contestant; empty where no round was steady."""
        return standings(self.rounds.get(batch, []), self.ours)

    def limit(self, name: str, batch: int) -> float:
        """Upper bound of decoded tokens per second, by memory bandwidth and arithmetic."""
        dtype = next(one.dtype for one in self.bench.contestants if one.name == name)
        return batch / self.checkpoint.step_seconds(batch, dtype, self.bandwidth, self.products[dtype])

    def share_of_limit(self, name: str, batch: int, standing: Standing) -> float:
        """Measured decoding speed over its upper bound."""
        return standing.rates["decode"].median / self.limit(name, batch)

    def is_valid(self, name: str) -> bool:
        """True if the contestant's ids were right."""
        agreement = self.agreements.get(name)
        return agreement is not None and agreement.holds


def as_outcome(report: EngineReport) -> dict[str, Any]:
    """The report as `result.outcome` has it."""
    bench = report.bench
    rows, metrics = list[dict[str, Any]](), dict[str, Metric]()
    for batch in bench.batch:
        for name, standing in report.standings(batch).items():
            rows.append(_result(report, name, batch, standing))
            if name == report.ours:
                share = report.share_of_limit(name, batch, standing)
                metrics[f"b{batch}.decode_of_limit"] = Metric(share, "higher")
                metrics[f"b{batch}.prefill_tok_per_cpu_s"] = Metric(standing.rates["prefill_cpu"].median, "higher")
            elif report.is_valid(name) and report.is_valid(report.ours):
                metrics[f"b{batch}.decode_over_{name}"] = Metric(standing.ratios["decode"].median, "higher")
    details = {
        "model": report.model_name,
        "parameters": report.checkpoint.parameters,
        "settings": {
            name: getattr(bench, name) for name in ("prompt_len", "output_len", "rounds", "threads", "cpus", "seed")
        },
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "device": report.device_name or bench.device,
            "bandwidth_bytes_per_s": report.bandwidth,
            "product_flop_per_s": report.products,
        },
        "contestants": {
            name: {**about, "rss_bytes": report.resident.get(name)} for name, about in report.abouts.items()
        },
        "failures": report.failures,
        "results": rows,
    }
    return outcome("engine", details, metrics)


def _result(report: EngineReport, name: str, batch: int, standing: Standing) -> dict[str, Any]:
    agreement, rounds = report.agreements[name], report.rounds[batch]
    ratios = {kind: {"median": one.median, "min": one.low, "max": one.high} for kind, one in standing.ratios.items()}
    waits = {kind: one.median for kind, one in standing.waits.items()}
    return {
        "contestant": name,
        "batch": batch,
        "decode_tok_per_s": standing.rates["decode"].median,
        "decode_tok_per_cpu_s": standing.rates["decode_cpu"].median,
        "decode_of_limit": report.share_of_limit(name, batch, standing),
        "prefill_tok_per_s": standing.rates["prefill"].median,
        "prefill_tok_per_cpu_s": standing.rates["prefill_cpu"].median,
        "ours_over_this": ratios,
        "first_token_s": {"mean": waits["first_mean"], "last": waits["first_last"]} if waits else None,
        "inter_token_s": {"median": waits["itl"], "longest": waits["gap"]} if waits else None,
        "rounds": {"steady": sum(one.steady for one in rounds), "disturbed": sum(not one.steady for one in rounds)},
        "ids": {
            "agree": agreement.holds,
            "checked": agreement.checked,
            "wrong": agreement.wrong,
            "of": agreement.of,
        },
    }


def engine_card(report: EngineReport, columns: int) -> Group:
    """The report for a terminal of this width: a table for each batch size."""
    bench = report.bench
    weights = report.checkpoint.parameters
    size = f"{weights / 1e6:.0f} M" if weights >= 1e6 else f"{weights / 1e3:.0f} K"
    where = report.device_name or f"{bench.threads} thread{'s' * (bench.threads > 1)}"
    head = f"{report.model_name} · {size} weights · {where}"
    products = ", ".join(f"{dtype} {rate / 1e9:.0f} G/s" for dtype, rate in report.products.items())
    about = report.abouts.get(report.ours, {})
    ours = f"{report.ours} by {about['kernels']} · " if about.get("kernels") else ""
    machine = f"{ours}memory {report.bandwidth / 1e9:.1f} GB/s · products {products}"
    parts: list[Text | Table] = [Text(head, "bold"), Text(machine, "dim")]
    for batch in bench.batch:
        parts += [Text(), _title(report, batch), _table(report, batch, columns)]
    notes = [f"{name}: {reason}" for name, reason in report.failures.items()]
    notes += [
        f"{name}: {'ids differ from' if agreement.wrong else 'no ids could be compared with'} transformers float32, "
        "its figures are not valid"
        for name, agreement in report.agreements.items()
        if not agreement.holds
    ]
    return Group(*parts, *(Text(note, "yellow") for note in notes))


def _title(report: EngineReport, batch: int) -> Text:
    rounds = report.rounds.get(batch, [])
    unsteady = sum(not one.steady for one in rounds)
    dropped = f", {unsteady} unsteady left out" if unsteady else ""
    shape = f"{report.bench.prompt_len} in, {report.bench.output_len} out"
    return Text(f"batch {batch}  ({shape}; {len(rounds) - unsteady} rounds{dropped})")


def _table(report: EngineReport, batch: int, columns: int) -> Table | Text:
    standings = report.standings(batch)
    if not standings:
        return Text("no round was steady; measure again when the machine is quiet", "yellow")
    rows = [
        (
            name,
            f"{standing.rates['decode'].median:.1f}",
            f"{report.share_of_limit(name, batch, standing):.0%}",
            ratio(standing.ratios.get("decode")),
            f"{standing.rates['decode_cpu'].median:.1f}",
            ratio(standing.ratios.get("decode_cpu")),
            f"{standing.rates['prefill'].median:.0f}",
            *(seconds(standing.waits.get(kind)) for kind in WAITS),
            _verdict(report.agreements[name]),
        )
        for name, standing in standings.items()
    ]
    shown = _fitting([TITLES, *rows], columns)
    table = Table(box=None, pad_edge=False, padding=(0, PADDING // 2))
    for place in shown:
        table.add_column(TITLES[place], justify="right" if place else "left", no_wrap=not place, overflow="fold")
    for row in rows:
        table.add_row(*(row[place] for place in shown), style=None if report.is_valid(row[0]) else "dim")
    return table


def _fitting(rows: Sequence[Sequence[str]], columns: int) -> Sequence[int]:
    """The first of the `CHOICES` that needs no more columns of the terminal than there are, or the last one."""
    widths = [max(map(cell_len, cells)) + PADDING for cells in zip(*rows, strict=True)]
    fitting = (choice for choice in CHOICES if sum(widths[place] for place in choice) - PADDING <= columns)
    return next(fitting, CHOICES[-1])


def _verdict(agreement: Agreement) -> str:
    if agreement.holds:
        return f"{agreement.checked}/{agreement.of}"
    return "differ" if agreement.wrong else "unchecked"


def ratio(spread: Spread | None) -> str:
    """`1.93 (1.88-1.97)`, or an empty string."""
    return f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})" if spread is not None else ""


def seconds(spread: Spread | None) -> str:
    """The median with three digits at least, or an empty string."""
    if spread is None:
        return ""
    return f"{spread.median:.0f}" if spread.median >= 100 else f"{spread.median:.3g}"
