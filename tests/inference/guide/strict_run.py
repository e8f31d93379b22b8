"""Random schemas followed to their ends: `python -m tests.inference.guide.strict_run [COUNT] [FIRST]`.

Each schema of `schema_maker` is sent strict, at temperature 1. Says how many were refused, by keyword, how the others
ended, and how many of the finished answers are not valid: for a validator that does nothing but count (jsonschema, with
a reader that refuses repeated names), or for the server's own.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from lmtool.core.constraint import json_schema
from lmtool.core.interfaces import TokenModel
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.serving.composition import Loader
from tests.inference.guide.schema_maker import Maker, Schema

AT_ONCE = 32
MOST_TOKENS = 400


@dataclass
class Figures:
    """What came of the schemas."""

    sent: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """By what is said, with the keyword."""
    failed: Counter[str] = field(default_factory=Counter)
    """Errors after the first token."""
    invalid: list[tuple[int, Schema, str, str]] = field(default_factory=list)
    """Number, schema, answer, and why it is not valid."""

    @property
    def taken(self) -> int:
        """Schemas that were not refused."""
        return self.sent - self.refused.total()

    def __str__(self) -> str:
        head = f"{self.sent} schemas, {self.taken} taken ({self.taken / self.sent:.2%}), {dict(self.endings)}"
        lines = [f"{head}; {len(self.invalid)} finished answers not valid"]
        lines += [f"  refused {count:5} {reason}" for reason, count in self.refused.most_common()]
        lines += [f"  failed  {count:5} {reason}" for reason, count in self.failed.most_common()]
        lines += [f"  INVALID {at}: {json.dumps(schema)}\n{text}\n{why}" for at, schema, text, why in self.invalid]
        return "\n".join(lines)


def problem_of(schema: Schema, text: str) -> str | None:
    """Why a text is not valid, if so."""
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except ValueError as error:
        return str(error)
    kind = validator_for(schema, default=Draft202012Validator)
    found = next(iter(kind(as_python(schema)).iter_errors(value)), None)
    return None if found is None else f"{found.json_path}: {found.message[:100]}"


def as_python(schema: Any) -> Any:
    """A schema whose patterns mean to Python's `re` what they mean to ECMA-262, those that `schema_maker` draws."""
    if isinstance(schema, list):
        return [as_python(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    written = {name: part if name in {"const", "enum"} else as_python(part) for name, part in schema.items()}
    if isinstance(pattern := schema.get("pattern"), str):
        written["pattern"] = _as_python(pattern)
    if isinstance(patterns := written.get("patternProperties"), dict):
        written["patternProperties"] = {_as_python(name): part for name, part in patterns.items()}
    return written


def _as_python(pattern: str) -> str:
    return pattern.replace("$", r"\Z").replace(".", "[^\n\r\u2028\u2029]").replace(r"\d", "[0-9]")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError(f"a name occurs twice among {[name for name, _ in pairs]}")
    return made


def sentence(error: str) -> str:
    """An error without what is peculiar to its schema."""
    error = re.sub(r"#\S*|json-schema:\S*|; .*", "", error.removeprefix("the JSON Schema cannot be enforced: "))
    return re.sub(r"/[^/]*/|(?<=property )'[^']*'|(?<='pattern' )'.*'(?= cannot)|\[.*\]|\(\d+\)", "...", error)[:100]


async def follow(model: TokenModel, number: int, figures: Figures) -> None:
    """Send one schema, and judge what comes."""
    schema = Maker(number).schema()
    sampling = SamplingParams(max_tokens=MOST_TOKENS, temperature=1.0, seed=number)
    request = GenerateRequest(number, "The data:", sampling, text=True, constraint=json_schema(schema))
    outputs = [output async for output in stream(model, request)]
    text, last = "".join(output.text or "" for output in outputs), outputs[-1]
    figures.sent += 1
    if last.error is not None and len(outputs) == 1:
        figures.refused[sentence(last.error)] += 1
        return
    figures.endings[last.finish_reason or "error"] += 1
    if last.error is not None:
        figures.failed[sentence(last.error)] += 1
    why = problem_of(schema, text) if last.finish_reason == "stop" else None
    if last.error_code == "invalid_answer":
        why = last.error
    if why is not None:
        figures.invalid.append((number, schema, text, why))


async def run(count: int, first: int = 0) -> Figures:
    """Follow `count` schemas from number `first` on."""
    model = await asyncio.to_thread(Loader(EngineConfig(threads=1)).load, str(MODEL_DIR), lambda _: None)
    figures, room = Figures(), asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with room:
            await follow(model, number, figures)

    try:
        await asyncio.gather(*map(one, range(first, first + count)))
    finally:
        await asyncio.to_thread(model.close)
    return figures


def main(words: list[str]) -> int:
    """Print the figures; how many answers are not valid."""
    began = time.perf_counter()
    figures = asyncio.run(run(int(words[0]) if words else 10_000, int(words[1]) if len(words) > 1 else 0))
    sys.stdout.write(f"{figures}\nin {time.perf_counter() - began:.0f} s\n")
    return len(figures.invalid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
