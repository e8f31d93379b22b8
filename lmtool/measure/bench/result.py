"""A benchmark's outcome: one JSON object, saved to a file and compared with an earlier one."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lmtool.core.errors import FileError
from lmtool.trace.writer import write_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = "lmtool_bench"
VERSION = 1

Better: TypeAlias = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure by which two runs are compared."""

    value: float
    better: Better


@dataclass(frozen=True, slots=True)
class Change:
    """A metric of both runs."""

    name: str
    before: float
    now: float
    worse: bool
    """True if it is worse by more than the tolerance."""


def outcome(kind: str, details: Mapping[str, Any], metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """The object: format, kind of benchmark, its details, the time, and the figures to compare."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    values = {name: {"value": metric.value, "better": metric.better} for name, metric in metrics.items()}
    return {FORMAT: VERSION, "bench": kind, **details, "time": now, "metrics": values}


def read(path: Path, kind: str) -> dict[str, Metric]:
    """The metrics of a saved outcome. Raises `FileError` for any other file."""
    hint = "give a file that --save wrote"
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}", hint) from None
    except ValueError as error:
        raise FileError(f"{path} is no JSON ({error})", hint) from None
    if not isinstance(saved, dict) or saved.get(FORMAT) != VERSION:
        raise FileError(f"{path} is no outcome of this version of lmtool bench", hint)
    if saved.get("bench") != kind:
        raise FileError(f"{path} is an outcome of `bench {saved.get('bench')}`, not of `bench {kind}`", hint)
    try:
        return {name: _metric(entry) for name, entry in saved["metrics"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"{path} has metrics that cannot be read ({error!r})", hint) from None


def _metric(entry: Mapping[str, Any]) -> Metric:
    value = float(entry["value"])
    if entry["better"] not in {"higher", "lower"} or not math.isfinite(value):
        raise ValueError(entry)
    return Metric(value, entry["better"])


def save(path: Path, result: Mapping[str, Any]) -> None:
    """Write the object. Raises `FileError`."""
    write_text(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def changes(before: Mapping[str, Metric], now: Mapping[str, Metric], tolerance: float) -> list[Change]:
    """Every metric that both runs have, in the order of `now`. tolerance: a share of the earlier value.

    An earlier value of 0, such as the gap between tokens that came together, has no shares: nothing is worse than it.
    """
    compared = []
    for name, metric in now.items():
        if name in before:
            old = before[name].value
            loss = old - metric.value if metric.better == "higher" else metric.value - old
            compared.append(Change(name, old, metric.value, old != 0 and loss > tolerance * abs(old)))
    return compared
