"""A comparison as it is printed, by `diff`, `drive` and `verify` alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmtool.trace.comparison import Comparison


def as_json(one: Comparison) -> str:
    """One JSON object."""
    findings = [
        {"verdict": f.verdict, "level": f.level, "token": f.position, "message": f.message} for f in one.findings
    ]
    return json.dumps({"stream": one.stream, "kind": one.kind, "verdict": one.verdict, "findings": findings})


def as_lines(one: Comparison) -> str:
    """The verdict, and a line for each finding."""
    return "\n".join([f"{one.verdict:<10} {one.stream:<7} {one.kind}", *(f"    {finding}" for finding in one.findings)])
