"""What `lab gpu` found: as JSON, as bars that are met or not, and as a card for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lmtool.measure.bench.result import Metric, outcome, save

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.gpu.settings import GpuBench, Section

SHORT_CONTEXT = 4096
"""Tokens up to which a decode step counts for the bars."""
ONE_STREAM_SHARE, CROWD_SHARE = 0.85, 0.70
"""Of the bandwidth's ceiling, of one stream and of 64."""
OVER_TRANSFORMERS = 5.0
SLOWER_DETERMINISTIC = 1.3


@dataclass(frozen=True, slots=True)
class Bar:
    """A goal, and whether it is met; None where it was not measured."""

    name: str
    goal: str
    measured: str
    is_met: bool | None


@dataclass
class GpuReport:
    """The results of one run."""

    bench: GpuBench
    sections: tuple[Section, ...]
    machine: dict[str, Any] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By section."""
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By section: `state` (done, failed, left out, not run), `seconds`, and what a failure says."""
    interrupted: bool = False
    began_in_worker: bool = False
    """True if the worker at hand has run a section."""

    def part(self, section: str, part: dict[str, Any]) -> None:
        """Add some of a section's result: lists grow, objects are united, all else is replaced."""
        merge(self.results.setdefault(section, {}), part)

    def ended(self, section: str, answer: dict[str, Any], seconds: float) -> None:
        """Record how a section ended. answer: a worker's."""
        failed = answer.get("failed")
        state = "failed" if failed else "left out" if "left_out" in self.results.get(section, {}) else "done"
        self.states[section] = {"state": state, "seconds": round(seconds, 2), **(failed or {})}

    def failed(self, section: str) -> bool:
        """True if this section was run, and failed."""
        return self.states.get(section, {}).get("state") == "failed"

    def not_run(self, section: str, reason: str) -> None:
        """Record that a section was not begun."""
        self.states[section] = {"state": "not run", "error": reason}

    def line(self, section: str) -> str:
        """How a section ended, for people."""
        state = self.states[section]
        more = state.get("error") or self.results.get(section, {}).get("left_out") or ""
        seconds = f" after {state['seconds']:.0f} s" if "seconds" in state else ""
        return f"{state['state']}{seconds}{': ' if more else ''}{str(more).partition(chr(10))[0][:200]}"

    def outcome(self) -> dict[str, Any]:
        """The report as `result.outcome` has it, with shares of the ceilings."""
        results = with_shares(self.results, self.bench.dtype)
        details = {**self._details(results), "bars": [asdict(bar) for bar in self.bars()]}
        return outcome("gpu", details, metrics(results))

    def _details(self, results: dict[str, dict[str, Any]]) -> dict[str, Any]:
        sections = {
            section.name: {**self.states.get(section.name, {"state": "not run"}), **results.get(section.name, {})}
            for section in self.sections
        }
        return {"settings": asdict(self.bench), "machine": self.machine, "sections": sections}

    def save(self, file: Path) -> None:
        """Write it as JSON. Raises `FileError`.

        What was measured is kept whatever it is: where no shares and goals can be made of it, the file says why.
        """
        try:
            found = self.outcome()
        except (ArithmeticError, LookupError, TypeError, ValueError) as problem:
            more = {"report_error": f"{type(problem).__name__}: {problem}"}
            found = outcome("gpu", {**self._details(self.results), **more}, {})
        save(file, found)

    def bars(self) -> list[Bar]:
        """The goals, in the order of the card; a CPU meets none and misses none."""
        results = with_shares(self.results, self.bench.dtype)
        bars = [
            _tests_bar(results.get("tests")),
            _share_bar(results, "one stream, of the bandwidth", 1, ONE_STREAM_SHARE),
            _share_bar(results, f"{self.bench.crowd} streams, of the bandwidth", self.bench.crowd, CROWD_SHARE),
            _transformers_bar(results, self.bench.crowd),
            _deterministic_bar(results),
            _crowd_bar(results),
            _compiled_bar(results),
            _blocks_bar(results),
        ]
        return [replace(bar, is_met=None) for bar in bars] if self.bench.device == "cpu" else bars


def merge(into: dict[str, Any], part: dict[str, Any]) -> None:
    """Add a part to a result in place, see `GpuReport.part`."""
    for name, value in part.items():
        known = into.get(name)
        if isinstance(known, list) and isinstance(value, list):
            known.extend(value)
        elif isinstance(known, dict) and isinstance(value, dict):
            merge(known, value)
        else:
            into[name] = value


def with_shares(results: dict[str, dict[str, Any]], dtype: str) -> dict[str, dict[str, Any]]:
    """The results; rows of decode steps have their ceilings and shares of them, where these were measured."""
    ceilings = results.get("ceilings", {})
    bandwidth = max(ceilings.get("copy_bytes_per_s", 0.0), ceilings.get("read_bytes_per_s", 0.0))
    rate = ceilings.get("flop_per_s", {}).get(dtype)
    if not bandwidth:
        return results
    return {
        name: {**result, "rows": [_with_shares(row, bandwidth, rate) for row in result["rows"]]}
        if "rows" in result and name in {"decode", "small", "deterministic"}
        else result
        for name, result in results.items()
    }


def _with_shares(row: dict[str, Any], bandwidth: float, rate: float | None) -> dict[str, Any]:
    if "bytes" not in row:
        return row
    limit = 1e3 * row["bytes"] / bandwidth
    mixed = limit if rate is None else max(limit, 1e3 * row["operations"] / rate)
    kinds = [kind for kind in ("graph", "runner", "engine") if row.get(f"{kind}_ms")]
    shares = {f"{kind}_of_bandwidth": limit / row[f"{kind}_ms"] for kind in kinds}
    mixed_shares = {f"{kind}_of_limit": mixed / row[f"{kind}_ms"] for kind in kinds}
    return {**row, "bandwidth_ms": limit, "limit_ms": mixed, **shares, **mixed_shares}


def metrics(results: dict[str, dict[str, Any]]) -> dict[str, Metric]:
    """The figures by which two runs are compared."""
    found = {}
    for section in ("decode", "small", "deterministic"):
        for row in _rows(results, section):
            for kind in ("graph_ms", "engine_ms", "host_ms"):
                if row.get(kind):
                    found[f"{section} {row['streams']} x {row['context']}: {kind}"] = Metric(row[kind], "lower")
    for row in _rows(results, "samplers"):
        found[f"samplers {row['sampling']}: engine_ms"] = Metric(row["engine_ms"], "lower")
    for row in _rows(results, "prefill"):
        found[f"prefill {row['tokens']}: tokens_per_s"] = Metric(row["tokens_per_s"], "higher")
    if tests := results.get("tests", {}):
        found["tests passed"] = Metric(tests.get("passed", 0), "higher")
    return found


def _rows(results: dict[str, dict[str, Any]], section: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = results.get(section, {}).get("rows", [])
    return rows


def _tests_bar(tests: dict[str, Any] | None) -> Bar:
    name, goal = "tests marked cuda", "none fails"
    if not tests or "passed" not in tests:
        return Bar(name, goal, "", None)
    said = f"{tests['passed']} passed, {tests['failed']} failed, {tests['skipped']} skipped"
    if tests["unfinished"]:
        return Bar(name, goal, f"{said}; {len(tests['unfinished'])} processes did not end", is_met=False)
    return Bar(name, goal, said, tests["failed"] == 0 if tests["passed"] or tests["failed"] else None)


def _share_bar(results: dict[str, dict[str, Any]], name: str, streams: int, goal: float) -> Bar:
    rows = [row for row in _rows(results, "decode") if row["streams"] == streams and row["context"] <= SHORT_CONTEXT]
    shares = [(row["engine_of_bandwidth"], row["context"]) for row in rows if "engine_of_bandwidth" in row]
    if not shares:
        return Bar(name, f"{goal:.0%}", "", None)
    least, context = min(shares)
    return Bar(name, f"{goal:.0%}", f"{least:.0%} (behind {context} tokens)", least >= goal)


def _transformers_bar(results: dict[str, dict[str, Any]], streams: int) -> Bar:
    name, goal = f"times transformers' continuous batching at {streams}", f"{OVER_TRANSFORMERS:g}"
    batching = [row for row in _rows(results, "transformers") if row["way"] == "continuous batching"]
    theirs = {row["context"]: row["tokens_per_s"] for row in batching}
    ours = [row for row in _rows(results, "decode") if row["streams"] == streams and row["context"] in theirs]
    ratios = [row["tokens_per_s"] / theirs[row["context"]] for row in ours if row.get("tokens_per_s")]
    if not ratios:
        return Bar(name, goal, "", None)
    return Bar(name, goal, f"{ratios[0]:.1f}", ratios[0] >= OVER_TRANSFORMERS)


def _deterministic_bar(results: dict[str, dict[str, Any]]) -> Bar:
    name, goal = "--deterministic takes, of the time without", f"at most {SLOWER_DETERMINISTIC:g}"
    plain = {(row["streams"], row["context"]): row.get("engine_ms") for row in _rows(results, "decode")}
    ratios = [
        (row["engine_ms"] / time, row["streams"])
        for row in _rows(results, "deterministic")
        if (time := plain.get((row["streams"], row["context"])))
    ]
    if not ratios:
        return Bar(name, goal, "", None)
    most, streams = max(ratios)
    return Bar(name, goal, f"{most:.2f} (at {streams})", most <= SLOWER_DETERMINISTIC)


def _crowd_bar(results: dict[str, dict[str, Any]]) -> Bar:
    found = [results[name]["crowd"]["equal"] for name in ("deterministic", "bias") if "crowd" in results.get(name, {})]
    said = f"{sum(found)} of {len(found)} models" if found else ""
    return Bar("--deterministic: the same bits alone and in a crowd", "all", said, all(found) if found else None)


def _compiled_bar(results: dict[str, dict[str, Any]]) -> Bar:
    rows = _rows(results, "arrival")
    count = sum(len(row["compiled"]) for row in rows)
    gap = max((row["longest_gap_ms"] for row in rows), default=0.0)
    said = f"{count}; longest gap {gap:.0f} ms" if rows else ""
    return Bar("kernels compiled when a prompt lands", "0", said, count == 0 if rows else None)


def _blocks_bar(results: dict[str, dict[str, Any]]) -> Bar:
    loads = [one["blocks"] for one in results.get("second_load", {}).get("loads", [])]
    if len(loads) < 2:
        return Bar("blocks of a second load", "equal", "", None)
    return Bar("blocks of a second load", "equal", f"{loads[0]} and {loads[1]}", loads[0] == loads[1])


def gpu_card(report: GpuReport) -> Group:
    """The report for a terminal."""
    results = with_shares(report.results, report.bench.dtype)
    device = report.machine.get("device", {})
    packages = ", ".join(f"{name} {version}" for name, version in report.machine.get("packages", {}).items())
    parts: list[Text | Table] = [
        Text(f"{device.get('name', 'device')} · {report.bench.model} · {report.bench.dtype}", "bold"),
        Text(packages, "dim"),
        Text(_ceiling_line(results), "dim"),
        Text(),
        _bars_table(report.bars()),
    ]
    if _rows(results, "decode"):
        parts += [Text(), _decode_table(_rows(results, "decode"))]
    troubles = list(_troubles(report))
    parts += [Text(), *(Text(line, "yellow") for line in troubles)] if troubles else []
    return Group(*parts)


def _ceiling_line(results: dict[str, dict[str, Any]]) -> str:
    found = results.get("ceilings", {})
    if "copy_bytes_per_s" not in found:
        return "ceilings were not measured"
    products = ", ".join(f"{dtype} {rate / 1e12:.3g} T/s" for dtype, rate in found.get("flop_per_s", {}).items())
    copied, read = found["copy_bytes_per_s"] / 1e9, found["read_bytes_per_s"] / 1e9
    return f"copies {copied:.4g} GB/s, reads {read:.4g} GB/s, products {products}"


def _bars_table(bars: list[Bar]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("", "goal", "measured", ""):
        table.add_column(title)
    for bar in bars:
        verdict = {True: "met", False: "not met", None: "not measured"}[bar.is_met]
        table.add_row(
            bar.name, bar.goal, bar.measured, verdict, style={True: "green", False: "red", None: "dim"}[bar.is_met]
        )
    return table


def _decode_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for title in ("streams", "behind", "limit ms", "graph ms", "engine ms", "host ms", "tok/s", "of bandwidth"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row["streams"]),
            str(row["context"]),
            *(_number(row.get(kind)) for kind in ("bandwidth_ms", "graph_ms", "engine_ms", "host_ms", "tokens_per_s")),
            f"{row['engine_of_bandwidth']:.0%}" if "engine_of_bandwidth" in row else "",
        )
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _troubles(report: GpuReport) -> Iterator[str]:
    """Sections that failed or were not run, and tests that failed."""
    for section in report.sections:
        if report.states.get(section.name, {}).get("state") in {"failed", "not run", "left out"}:
            yield f"{section.name}: {report.line(section.name)}"
        elif section.name not in report.states:
            yield f"{section.name}: not run"
    for failure in report.results.get("tests", {}).get("failures", [])[:20]:
        yield f"{failure['test']}: {failure.get('why', '')}"
