"""Measures MaskBench (guidance-ai/jsonschemabench, maskbench/data): `python -m tests.inference.guide.maskbench DIR`.

Every schema is compiled; every instance is followed as compact JSON in the embedded model's tokens, its properties in
the order in which they stand, or in another one that the schema gives them. A whole number that is written with a point
in a valid instance may be written without.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from lmtool.core.constraint import json_schema
from lmtool.core.errors import LmtoolError
from lmtool.inference.guide.llguidance import CompiledConstraint, ConstraintBackend
from lmtool.inference.tiny.path import MODEL_DIR
from tests.inference.guide.following import accepts, accepts_reordered, listed_properties, whole_numbers

_TRIES = {True: 400, False: 20}
"""Of one property before another, for a valid instance and for another one, of which there are many."""


@dataclass
class Figures:
    """What came of one pass."""

    schemas: int = 0
    compiled: int = 0
    all_right: int = 0
    accepted: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    refused: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    seconds: float = 0.0
    longest: float = 0.0
    reasons: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[tuple[str, bool]] = field(default_factory=list)
    reordered: int = 0
    """Of the valid instances that are accepted, those whose properties stand in another order than the schema's."""
    respelled: int = 0
    """Of the others, those that have a whole number with a point, and are accepted without it."""

    def __str__(self) -> str:
        return (
            f"{self.compiled} of {self.schemas} schemas compiled ({self.compiled / self.schemas:.1%}), "
            f"{self.all_right} with every instance judged right; "
            f"valid instances accepted: {self.accepted[True]}, {self.reordered} of them in the schema's order of "
            f"properties only, {self.respelled} with whole numbers as such only, refused: {self.refused[True]}; "
            f"invalid instances refused: {self.refused[False]}, accepted: {self.accepted[False]}; "
            f"{self.seconds:.1f} s of CPU for compiling, {self.longest:.2f} s for the longest"
        )


def measure(files: list[Path], backend: ConstraintBackend, *, strict: bool) -> Figures:
    """Compile each schema and judge its instances."""
    figures = Figures()
    for file in files:
        case = json.loads(file.read_text())
        figures.schemas += 1
        started = time.process_time()
        try:
            compiled = backend.compile(json_schema(case["schema"], strict=strict))
        except LmtoolError as error:
            figures.reasons[error.message[:100]] += 1
            figures.wrong.append((f"{file.name}: {error.message}", True))
            continue
        finally:
            taken = time.process_time() - started
            figures.seconds += taken
            figures.longest = max(figures.longest, taken)
        figures.compiled += 1
        listed = list(listed_properties(case["schema"]))
        figures.all_right += _judge(file.name, case["tests"], backend, compiled, listed, figures)
    return figures


def _judge(
    name: str,
    tests: list[dict[str, object]],
    backend: ConstraintBackend,
    compiled: CompiledConstraint,
    listed: list[list[str]],
    to: Figures,
) -> bool:
    right = True
    for test in tests:
        text = json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False)
        accepted, valid = accepts(backend, compiled, text), bool(test["valid"])
        if not accepted and accepts_reordered(backend, compiled, test["data"], _TRIES[valid], listed):
            accepted, to.reordered = True, to.reordered + valid
        elif valid and not accepted and "." in text:
            accepted = accepts_reordered(backend, compiled, whole_numbers(test["data"]), _TRIES[valid], listed)
            to.respelled += accepted
        (to.accepted if accepted else to.refused)[valid] += 1
        if accepted != valid:
            right = False
            to.wrong.append((f"{name}: {'valid refused' if valid else 'INVALID ACCEPTED'}", valid))
    return right


def main() -> None:
    """Print the figures of one folder, strict and lenient."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--mode", choices=["strict", "lenient", "both"], default="both")
    options.add_argument("--reasons", type=int, default=0, help="print so many reasons for refusals")
    options.add_argument("--wrong", type=Path, help="write each wrong judgement into this file")
    options.add_argument("--names", type=Path, help="measure only the schemas whose files this one names")
    given = options.parse_args()
    backend = ConstraintBackend((MODEL_DIR / "tokenizer.json").read_text(), 1536, [0, 2])
    files = sorted(given.folder.glob("*.json"))
    if given.names:
        files = [given.folder / name for name in given.names.read_text().split()]
    for mode in ["strict", "lenient"] if given.mode == "both" else [given.mode]:
        figures = measure(files, backend, strict=mode == "strict")
        sys.stdout.write(f"{mode}: {figures}\n")
        for reason, count in figures.reasons.most_common(given.reasons):
            sys.stdout.write(f"  {count:5} {reason}\n")
        if given.wrong:
            given.wrong.write_text("\n".join(sentence for sentence, _ in figures.wrong) + "\n")


if __name__ == "__main__":
    main()
