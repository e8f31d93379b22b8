"""Random schemas of every dialect, to their ends: `python -m tests.inference.guide.dialect_run [COUNT] [FIRST]`.

Each schema of `schema_maker` that names its dialect is compiled strict, and three texts are drawn from its masks. Says
how many schemas were refused, by reason, and how many finished texts are not valid: for jsonschema's class of that
dialect, which does nothing but count, or for the server's own validation, which would end the answer with an error.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from lmtool.core.constraint import json_schema
from lmtool.core.errors import ConstraintError, LmtoolError
from lmtool.inference.guide.answer_check import validate
from lmtool.inference.guide.llguidance import ConstraintBackend
from tests.inference.guide import awkward
from tests.inference.guide.schema_maker import Maker, Schema
from tests.inference.guide.strict_run import problem_of, sentence

TEXTS = 3
_MOST_TOKENS = 200
_ALL_STEPS = 1 << 60


@dataclass
class Figures:
    """What came of the schemas."""

    schemas: int = 0
    texts: Counter[str] = field(default_factory=Counter)
    """How they ended."""
    refused: Counter[str] = field(default_factory=Counter)
    """Schemas, by what is said."""
    invalid: list[tuple[int, Schema, str, str]] = field(default_factory=list)
    """Number, schema, text, and why it is not valid."""

    def __str__(self) -> str:
        taken = self.schemas - self.refused.total()
        lines = [f"{self.schemas} schemas, {taken} taken; texts: {dict(self.texts)}; {len(self.invalid)} not valid"]
        lines += [f"  refused {count:5} {reason}" for reason, count in self.refused.most_common()]
        lines += [f"  INVALID {at}: {json.dumps(schema)}\n{text}\n{why}" for at, schema, text, why in self.invalid]
        return "\n".join(lines)


def run(count: int, first: int, backend: ConstraintBackend) -> Figures:
    """Follow `count` schemas from number `first` on. backend: over `awkward`'s vocabulary."""
    figures, walker = Figures(), awkward.Walker(backend)
    for number in range(first, first + count):
        schema, rng = Maker(number).schema_of_a_dialect(), random.Random(number)
        figures.schemas += 1
        constraint = json_schema(schema)
        try:
            compiled = backend.compile(constraint)
        except LmtoolError as error:
            figures.refused[sentence(error.message)] += 1
            continue
        for _ in range(TEXTS):
            try:
                text = walker.walk(compiled, rng, _MOST_TOKENS)
            except ConstraintError:  # only what no text matches, which is found out late
                figures.texts["failed"] += 1
                continue
            figures.texts["cut" if text is None else "ended"] += 1
            if text is not None and (why := _problem(schema, text.decode())) is not None:
                figures.invalid.append((number, schema, text.decode(), why))
    return figures


def _problem(schema: Schema, text: str) -> str | None:
    """Why a finished text is not valid, for either."""
    if (own := validate(json_schema(schema), text, _ALL_STEPS).error) is not None:
        return own.message
    try:
        return problem_of(schema, text)
    except OverflowError:  # jsonschema divides floats; numbers beyond them are for the server's own to judge
        return None


def main(words: list[str]) -> int:
    """Print the figures; how many texts are not valid."""
    began, backend = time.process_time(), awkward.backend()
    figures = run(int(words[0]) if words else 10_000, int(words[1]) if len(words) > 1 else 0, backend)
    backend.close()
    sys.stdout.write(f"{figures}\n{time.process_time() - began:.0f} s of CPU\n")
    return len(figures.invalid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
