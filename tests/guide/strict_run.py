"""Random schemas followed by the embedded model to their ends: `python -m tests.guide.strict_run [COUNT] [FIRST]`.

Each schema of `schema_maker` is sent strict, at temperature 1. Says how many were refused, by keyword, how the others
ended, and how many of the finished answers are not valid: the validator is jsonschema with a reader that refuses
repeated names, and does nothing but count.
"""

from __future__ import annotations

import asyncio
import collections
import json
import re
import sys
import time
from dataclasses import dataclass, field

from jsonschema import Draft202012Validator

from lmtool.cli.wiring import Loader
from lmtool.constraint import json_schema
from lmtool.engine.config import EngineConfig
from lmtool.ports import TokenModel, stream
from lmtool.tiny.path import MODEL_DIR
from lmtool.types import GenerateRequest, SamplingParams
from tests.guide.schema_maker import Maker, Schema

AT_ONCE = 32
MOST_TOKENS = 400


@dataclass
class Figures:
    """What came of the schemas."""

    sent: int = 0
    endings: collections.Counter[str] = field(default_factory=collections.Counter)
    refused: collections.Counter[str] = field(default_factory=collections.Counter)
    stuck: collections.Counter[str] = field(default_factory=collections.Counter)
    invalid: list[tuple[int, Schema, str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        taken = self.sent - sum(self.refused.values())
        head = f"{self.sent} schemas, {taken} taken ({taken / self.sent:.2%}), {dict(self.endings)}"
        lines = [f"{head}; {len(self.invalid)} finished answers not valid"]
        lines += [f"  refused {count:5} {reason}" for reason, count in self.refused.most_common()]
        lines += [f"  ended   {count:5} {reason}" for reason, count in self.stuck.most_common()]
        return "\n".join(lines)


def problem_of(schema: Schema, text: str) -> str | None:
    """Why a text is not valid, if so."""
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except ValueError as error:
        return str(error)
    found = next(iter(Draft202012Validator(schema).iter_errors(value)), None)
    return None if found is None else f"{found.json_path}: {found.message[:100]}"


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError(f"a name occurs twice among {[name for name, _ in pairs]}")
    return made


async def follow(model: TokenModel, number: int, figures: Figures) -> None:
    """Send one schema, and judge what comes."""
    schema = Maker(number).schema()
    sampling = SamplingParams(max_tokens=MOST_TOKENS, temperature=1.0, seed=number)
    request = GenerateRequest(number, "The data:", sampling, text=True, constraint=json_schema(schema))
    text, last = "", None
    async for output in stream(model, request):
        text += output.text or ""
        last = output
    assert last is not None
    figures.sent += 1
    if last.error is not None and not text:
        figures.refused[keyword_of(last.error)] += 1
        return
    figures.endings[last.finish_reason or "error"] += 1
    if last.error is not None:
        figures.stuck[last.error] += 1
    if last.finish_reason == "stop" and (problem := problem_of(schema, text)) is not None:
        figures.invalid.append((number, schema, text, problem))


def keyword_of(sentence: str) -> str:
    """A refusal without what is peculiar to its schema."""
    sentence = re.sub(r"#\S*|json-schema:\S*", "...", sentence)
    return re.sub(r"/[^/]*/|'[^']*' (?=cannot)|\[[^\]]*\]|property '[^']*'|'\^[^']*'", "...", sentence)[:110]


async def run(count: int, first: int) -> Figures:
    """Follow `count` schemas from number `first` on."""
    model = await asyncio.to_thread(Loader(EngineConfig()).load, str(MODEL_DIR), lambda _: None)
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
    count, first = int(words[0]) if words else 10_000, int(words[1]) if len(words) > 1 else 0
    began = time.perf_counter()
    figures = asyncio.run(run(count, first))
    sys.stdout.write(f"{figures}\nin {time.perf_counter() - began:.0f} s\n")
    for number, schema, text, problem in figures.invalid[:40]:
        sys.stdout.write(f"  {number}: {json.dumps(schema, ensure_ascii=False)}\n    {text}\n    {problem}\n")
    return len(figures.invalid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
