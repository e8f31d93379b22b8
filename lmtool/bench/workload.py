"""What a load test asks for: prompts and lengths, the same for a seed; and the named scenarios."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.constraint import json_schema
from lmtool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.types import Constraint

Scenario: TypeAlias = Literal["S1", "S2", "S3", "S4", "S5", "S6", "S7"]

BRANCHES = 16
CONTINUATIONS = 64
SCORED_LEN = 8
LONG_PROMPT = 4096
LANDING_STREAMS = 16
COLD_PROMPT = 200
"""Tokens of a prompt whose first token is waited for."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request."""

    prompt: tuple[int, ...]
    output_len: int
    """Tokens to generate; eos ends nothing."""
    scored: tuple[int, ...] = ()
    """With these the request is to score them, and generates nothing."""
    drawn: int | None = None
    """Seed of tokens that are drawn; None: the likeliest ones."""
    constraint: Constraint | None = None
    """What the text is held to."""

    @property
    def length(self) -> int:
        """Most tokens of prompt and output together."""
        return len(self.prompt) + self.output_len + len(self.scored)


@dataclass(frozen=True, slots=True)
class Shape:
    """The lengths of a scenario."""

    prompt_len: int
    output_len: int
    meaning: str


SCENARIOS: dict[Scenario, Shape] = {
    "S1": Shape(16, 128, "short prompts"),
    "S2": Shape(512, 128, "long prompts"),
    "S3": Shape(200, 100, "lengths drawn from log-normal distributions, these their medians"),
    "S4": Shape(512, 32, f"{BRANCHES} branches off one prefix"),
    "S5": Shape(512, 0, f"{CONTINUATIONS} continuations of one prefix, scored"),
    "S6": Shape(LONG_PROMPT, 128, f"one long prompt landing in {LANDING_STREAMS} streams of short ones"),
    "S7": Shape(16, 128, "streams held to a JSON schema, beside as many free ones"),
}


def shape(scenario: Scenario, prompt_len: int | None, output_len: int | None) -> Shape:
    """A scenario's lengths, those given in place of its own."""
    own = SCENARIOS[scenario]
    given = {"prompt_len": prompt_len, "output_len": output_len}
    return replace(own, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type] # ints


def jobs(scenario: Scenario, lengths: Shape, count: int, vocab_size: int, seed: int) -> list[Job]:
    """At least `count` requests; whole groups where a scenario has groups. For S6 and S7: `landing`, `drawn`."""
    draw = random.Random(f"{seed} {scenario}")  # noqa: S311  # no secret
    if scenario == "S4":
        return _grouped(
            count, BRANCHES, lambda: _ids(draw, lengths.prompt_len, vocab_size), _branch(draw, lengths, vocab_size)
        )
    if scenario == "S5":
        return _grouped(
            count, CONTINUATIONS, lambda: _ids(draw, lengths.prompt_len, vocab_size), _scored(draw, vocab_size)
        )
    if scenario == "S3":
        return [_drawn(draw, lengths, vocab_size) for _ in range(count)]
    return [Job(_ids(draw, lengths.prompt_len, vocab_size), lengths.output_len) for _ in range(count)]


def landing(lengths: Shape, vocab_size: int, seed: int) -> tuple[list[Job], list[Job]]:
    """S6: the short streams, and two long prompts, one for a quiet server and one that lands among the streams."""
    draw = random.Random(f"{seed} S6")  # noqa: S311  # no secret
    short = [Job(_ids(draw, 16, vocab_size), lengths.output_len) for _ in range(LANDING_STREAMS)]
    return short, [Job(_ids(draw, lengths.prompt_len, vocab_size), 1) for _ in range(2)]


def drawn(lengths: Shape, count: int, vocab_size: int, seed: int, constraint: Constraint | None = None) -> list[Job]:
    """S7: requests whose tokens are drawn, so that nothing repeats itself."""
    draw = random.Random(f"{seed} S7")  # noqa: S311  # no secret
    return [
        Job(_ids(draw, lengths.prompt_len, vocab_size), lengths.output_len, drawn=number, constraint=constraint)
        for number in range(count)
    ]


def schema(number: int) -> Constraint:
    """A list of objects that is longer than any answer; another one for another number."""
    properties = {
        f"name{number}": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "kind": {"enum": ["apple", "pear", "plum"]},
        "ripe": {"type": "boolean"},
    }
    one = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return json_schema({"type": "array", "items": one, "minItems": 500})


def arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Seconds from the start at which requests of a Poisson process of `rate` a second come."""
    draw = random.Random(f"{seed} arrivals")  # noqa: S311  # no secret
    times, now = [], 0.0
    for _ in range(count):
        now += draw.expovariate(rate)
        times.append(now)
    return times


def check_fits(all_jobs: list[Job], context_length: int | None) -> None:
    """Raise `UsageError` when a request is longer than the model's context."""
    longest = max((job.length for job in all_jobs), default=0)
    if context_length is not None and longest > context_length:
        raise UsageError(
            f"a request of {longest} tokens does not fit into the model's context of {context_length}",
            "shorter ones: --prompt-len and --output-len",
        )


def _ids(draw: random.Random, length: int, vocab_size: int) -> tuple[int, ...]:
    low = min(3, vocab_size - 1)  # the first ids are special ones in most vocabularies
    return tuple(draw.randrange(low, vocab_size) for _ in range(length))


def _grouped(
    count: int, size: int, prefix: Callable[[], tuple[int, ...]], member: Callable[[tuple[int, ...]], Job]
) -> list[Job]:
    found: list[Job] = []
    while len(found) < count:
        shared = prefix()
        found += [member(shared) for _ in range(size)]
    return found


def _branch(draw: random.Random, lengths: Shape, vocab_size: int) -> Callable[[tuple[int, ...]], Job]:
    return lambda shared: Job(shared + _ids(draw, 1, vocab_size), lengths.output_len)


def _scored(draw: random.Random, vocab_size: int) -> Callable[[tuple[int, ...]], Job]:
    return lambda shared: Job(shared, 0, _ids(draw, SCORED_LEN, vocab_size))


def _drawn(draw: random.Random, lengths: Shape, vocab_size: int) -> Job:
    prompt = max(1, min(4 * lengths.prompt_len, round(lengths.prompt_len * draw.lognormvariate(0, 1))))
    output = max(1, min(512, round(lengths.output_len * draw.lognormvariate(0, 1))))
    return Job(_ids(draw, prompt, vocab_size), output)


@dataclass(frozen=True, slots=True)
class ServeBench:
    """What is to be measured. Fields match the flags of `lmtool bench serve`."""

    scenario: Scenario = "S1"
    prompt_len: int | None = None
    """None: the scenario's."""
    output_len: int | None = None
    concurrency: tuple[int, ...] = (1, 8, 64)
    rate: tuple[float, ...] = ()
    """Requests a second; these make an open loop in place of the closed one."""
    requests: int | None = None
    """In each phase; None: four for each that runs at once."""
    warmup: int = 2
    """Requests before the first phase, one after the other."""
    goal_ttft_ms: float = 1000.0
    seed: int = 0

    @property
    def shape(self) -> Shape:
        """The lengths."""
        return shape(self.scenario, self.prompt_len, self.output_len)
