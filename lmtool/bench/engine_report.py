"""What `bench engine` is asked to measure, and what it found out, as objects and as JSON."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lmtool.bench.contest import Agreement, Round, Standing, standings
from lmtool.bench.contestants import AUTO
from lmtool.bench.result import Metric, outcome

if TYPE_CHECKING:
    from lmtool.bench.checkpoint import Checkpoint
    from lmtool.bench.contestants import Contestant


@dataclass(frozen=True, slots=True)
class EngineBench:
    """What is to be measured. Fields match the flags of `lmtool bench engine`."""

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
    """Processors that every engine is confined to; none: whatever the system gives."""
    seed: int = 0
    timeout: float = 600.0
    """Seconds that one load or one visit may take."""

    def decided(self, dtype: str) -> EngineBench:
        """The same where `AUTO` means this dtype; a contestant that is there twice then takes part once."""
        named = (replace(one, dtype=dtype) if one.dtype == AUTO else one for one in self.contestants)
        return replace(self, contestants=tuple(dict.fromkeys(named)))


@dataclass
class EngineReport:
    """Everything that was found out."""

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
    """Contestant to the reason why it takes no part."""
    rounds: dict[int, list[Round]] = field(default_factory=dict)
    """By batch size, those that were disturbed included."""
    resident: dict[str, int] = field(default_factory=dict)
    """Most bytes of memory each contestant has held."""

    @property
    def ours(self) -> str:
        """The name of the contestant that the others are compared with."""
        return self.bench.contestants[0].name

    def standings(self, batch: int) -> dict[str, Standing]:
        """By contestant; empty where every round was disturbed."""
        return standings(self.rounds.get(batch, []), self.ours)

    def limit(self, name: str, batch: int) -> float:
        """Decoded tokens per second that memory and arithmetic allow a contestant."""
        dtype = next(one.dtype for one in self.bench.contestants if one.name == name)
        return batch / self.checkpoint.step_seconds(batch, dtype, self.bandwidth, self.products[dtype])

    def counts(self, name: str) -> bool:
        """Whether the contestant's ids were right."""
        found = self.agreements.get(name)
        return found is not None and found.holds


def as_outcome(report: EngineReport) -> dict[str, Any]:
    """The report as `result.outcome` has it."""
    bench = report.bench
    rows, metrics = list[dict[str, Any]](), dict[str, Metric]()
    for batch in bench.batch:
        for name, standing in report.standings(batch).items():
            share = standing.decode.median / report.limit(name, batch)
            rows.append(_row(report, name, batch, standing, share))
            if name == report.ours:
                metrics[f"b{batch}.decode_of_limit"] = Metric(share, "higher")
                metrics[f"b{batch}.prefill_tok_per_cpu_s"] = Metric(standing.prefill_cpu.median, "higher")
            elif report.counts(name) and report.counts(report.ours):
                metrics[f"b{batch}.decode_over_{name}"] = Metric(standing.ratios["decode"].median, "higher")
    details = {
        "model": report.model_name,
        "parameters": report.checkpoint.parameters,
        "settings": {
            "prompt_len": bench.prompt_len,
            "output_len": bench.output_len,
            "rounds": bench.rounds,
            "threads": bench.threads,
            "cpus": list(bench.cpus),
            "seed": bench.seed,
        },
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "bandwidth_bytes_per_s": report.bandwidth,
            "product_flop_per_s": report.products,
        },
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "contestants": {
            name: {**about, "rss_bytes": report.resident.get(name)} for name, about in report.abouts.items()
        },
        "failures": report.failures,
        "results": rows,
    }
    return outcome("engine", details, metrics)


def _row(report: EngineReport, name: str, batch: int, standing: Standing, share: float) -> dict[str, Any]:
    found = report.agreements[name]
    rounds = report.rounds[batch]
    ratios = {kind: {"median": one.median, "min": one.low, "max": one.high} for kind, one in standing.ratios.items()}
    return {
        "contestant": name,
        "batch": batch,
        "decode_tok_per_s": standing.decode.median,
        "decode_tok_per_cpu_s": standing.decode_cpu.median,
        "decode_of_limit": share,
        "prefill_tok_per_s": standing.prefill.median,
        "prefill_tok_per_cpu_s": standing.prefill_cpu.median,
        "ours_over_this": ratios,
        "rounds": {"steady": sum(one.steady for one in rounds), "disturbed": sum(not one.steady for one in rounds)},
        "ids": {"agree": found.holds, "checked": found.checked, "wrong": found.wrong, "of": found.of},
    }
