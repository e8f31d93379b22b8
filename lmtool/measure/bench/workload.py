"""The requests of a load test: prompts and lengths, the same for a seed; and the named scenarios."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.core.constraint import json_schema
from lmtool.core.errors import UsageError
from lmtool.settings.option import option

if TYPE_CHECKING:
    from lmtool.core.types import Constraint

Scenario: TypeAlias = Literal["S1", "S2", "S3", "S4", "S5", "S6", "S7"]

LOAD = "Load"
BRANCHES = 16
CONTINUATIONS = 64
SCORED_LEN = 8
LONG_PROMPT = 4096
LANDING_STREAMS = 16
_COMMON_WORDS = (
    "the of and to in is that it was for on are as with his they at be this have from or one had by word but not what "
    "all were we when your can said there use an each which she do how their if will up other about out many then them "
)
_WORDS = _COMMON_WORDS.split()
COLD_PROMPT = 200
"""Tokens of a prompt whose time to the first token is measured."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request."""

    prompt: tuple[int, ...]
    output_len: int
    """Tokens to generate, ignoring eos."""
    scored: tuple[int, ...] = ()
    """To be scored: such a request generates nothing."""
    sample_seed: int | None = None
    """Seed of a sampled stream; None: greedy."""
    constraint: Constraint | None = None

    @property
    def length(self) -> int:
        """Tokens of prompt and output together."""
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
    "S3": Shape(200, 100, "log-normal lengths with these medians"),
    "S4": Shape(512, 32, f"{BRANCHES} branches off one prefix"),
    "S5": Shape(512, 0, f"{CONTINUATIONS} continuations of one prefix, scored"),
    "S6": Shape(LONG_PROMPT, 128, f"one long prompt landing in {LANDING_STREAMS} streams of short ones"),
    "S7": Shape(16, 128, "streams with a JSON schema, beside as many free ones"),
}


def jobs(scenario: Scenario, lengths: Shape, count: int, vocab_size: int, seed: int) -> list[Job]:
    """At least `count` requests; whole groups where a scenario has groups. S6 and S7 have `landing` and `sampled`."""
    draw = random.Random(f"{seed} {scenario}")  # noqa: S311  # no secret
    requests: list[Job] = []
    while len(requests) < count:
        if scenario == "S3":
            requests.append(_mixed(draw, lengths, vocab_size))
            continue
        prompt = _ids(draw, lengths.prompt_len, vocab_size)
        if scenario == "S4":
            requests += [Job(prompt + _ids(draw, 1, vocab_size), lengths.output_len) for _ in range(BRANCHES)]
        elif scenario == "S5":
            requests += [Job(prompt, 0, _ids(draw, SCORED_LEN, vocab_size)) for _ in range(CONTINUATIONS)]
        else:
            requests.append(Job(prompt, lengths.output_len))
    return requests


def landing(lengths: Shape, vocab_size: int, seed: int) -> tuple[list[Job], list[Job]]:
    """S6: the short streams, and two long prompts, one for a quiet server and one that lands among the streams."""
    draw = random.Random(f"{seed} S6")  # noqa: S311  # no secret
    short = [Job(_ids(draw, 16, vocab_size), lengths.output_len) for _ in range(LANDING_STREAMS)]
    return short, [Job(_ids(draw, lengths.prompt_len, vocab_size), 1) for _ in range(2)]


def sampled(lengths: Shape, count: int, vocab_size: int, seed: int, constraint: Constraint | None = None) -> list[Job]:
    """S7: requests with sampled tokens, so that no text repeats itself."""
    draw = random.Random(f"{seed} S7")  # noqa: S311  # no secret
    return [
        Job(_ids(draw, lengths.prompt_len, vocab_size), lengths.output_len, sample_seed=number, constraint=constraint)
        for number in range(count)
    ]


def schema(number: int) -> Constraint:
    """A list of objects, longer than any answer; a different schema for each number."""
    properties = {
        f"name{number}": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "kind": {"enum": ["apple", "pear", "plum"]},
        "ripe": {"type": "boolean"},
    }
    one = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return json_schema({"type": "array", "items": one, "minItems": 500})


def arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Arrival times of a Poisson process of `rate` requests a second, in seconds from the start."""
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


def words(prompt: tuple[int, ...]) -> str:
    """A text of one common English word for each id, about as many tokens; prompts that begin alike stay so."""
    return " ".join(_WORDS[number % len(_WORDS)] for number in prompt)


def _ids(draw: random.Random, length: int, vocab_size: int) -> tuple[int, ...]:
    low = min(3, vocab_size - 1)  # the first ids are special ones in most vocabularies
    return tuple(draw.randrange(low, vocab_size) for _ in range(length))


def _mixed(draw: random.Random, lengths: Shape, vocab_size: int) -> Job:
    prompt = max(1, min(4 * lengths.prompt_len, round(lengths.prompt_len * draw.lognormvariate(0, 1))))
    output = max(1, min(512, round(lengths.output_len * draw.lognormvariate(0, 1))))
    return Job(_ids(draw, prompt, vocab_size), output)


@dataclass(frozen=True, slots=True)
class ServeBench:
    """Settings of one run, most of them options of `lmtool bench serve`."""

    scenario: Scenario = option(
        "S1",
        "S1 short, S2 long prompts, S3 mixed, S4 16 branches of a prefix, S5 scoring, S6 a 4k prompt landing, "
        "S7 with a JSON schema.",
        LOAD,
    )
    prompt_len: int | None = option(
        None, "Tokens; in a chat, words.", LOAD, metavar="N", minimum=1, shown_default="the scenario's"
    )
    output_len: int | None = option(None, "Tokens.", LOAD, metavar="N", minimum=2, shown_default="the scenario's")
    concurrency: tuple[int, ...] = (1, 8, 64)
    rate: tuple[float, ...] = ()
    """Requests a second of an open loop, in place of the closed one."""
    requests: int | None = option(
        None, "Of each phase.", LOAD, metavar="N", minimum=1, shown_default="four times the concurrency"
    )
    warmup: int = option(2, "Requests before, one by one.", LOAD, metavar="N", minimum=0)
    goal_ttft_ms: float = option(
        1000.0,
        "Goodput: longest time to the first token.",
        LOAD,
        flag="--goal-ttft",
        metavar="MS",
        minimum=0,
    )
    goal_tpot_ms: float | None = option(
        None,
        "Goodput: longest time per token after the first.",
        LOAD,
        flag="--goal-tpot",
        metavar="MS",
        minimum=0,
        shown_default="twice that of a request alone",
    )
    seed: int = option(0, "Of prompts and arrivals.", LOAD, metavar="N")

    @property
    def shape(self) -> Shape:
        """The scenario's lengths, or those given."""
        own = SCENARIOS[self.scenario]
        prompt_len = own.prompt_len if self.prompt_len is None else self.prompt_len
        return Shape(prompt_len, own.output_len if self.output_len is None else self.output_len, own.meaning)
