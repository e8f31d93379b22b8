"""How long a waiting sequence will wait: estimates beside what came, on a clock that the scheduler's steps move."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import pytest

from lmtool.inference.engine.plan import Limits, Sequence
from lmtool.inference.engine.prefix_cache import BlockAllocator, PrefixCache
from lmtool.inference.engine.queue_estimate import QueueEstimate
from lmtool.inference.engine.scheduler import Scheduler
from tests.inference.engine.scheduling import EOS

LIMITS = Limits(16, 256, 32, 32, 256, prompt_share=2)
BASE, ROW, PROMPT = 0.02, 0.0005, 0.0004
"""Seconds of a step, and of each row and prompt token in it."""
GRACE = 0.5
"""Seconds that are added to both times before they are compared: a notice comes half a second late, rounded."""


@dataclass
class Arrival:
    at: float
    prompt: int
    limit: int
    length: int
    """Tokens that the answer has unless `limit` is less."""
    shared: int = 0
    """Tokens at the start of the prompt that others begin with as well."""


@dataclass
class Playing:
    """A load on the real scheduler; every estimate that a client would have been sent."""

    arrivals: list[Arrival]
    blocks: int = 100_000
    limits: Limits = LIMITS
    now: float = 0.0
    begun: dict[int, float] = field(default_factory=dict)
    told: list[tuple[int, float, float | None]] = field(default_factory=list)
    """Sequence, moment, estimate."""

    def play(self) -> list[float]:
        """How far off the estimates were: the larger time as a multiple of the smaller one."""
        cache = PrefixCache(self.limits.chunk_tokens)
        scheduler, waiting = Scheduler(self.limits, BlockAllocator(self.blocks), cache), dict[int, Sequence]()
        estimate, coming = QueueEstimate(self.limits.max_streams), sorted(self.arrivals, key=lambda one: one.at)
        lengths: dict[int, int] = {}
        asked: dict[int, float] = {}
        number = 0
        while coming or waiting or scheduler.running:
            while coming and coming[0].at <= self.now:
                one, number = coming.pop(0), number + 1
                ids = [1] * one.shared + [2 + number] * (one.prompt - one.shared)
                waiting[number] = Sequence(
                    number, ids, one.prompt, one.prompt + one.limit, stop_ids=frozenset({EOS}), client=number
                )
                lengths[number] = one.prompt + one.length
                scheduler.add(waiting[number])
                asked[number] = self.now + 0.5
            plan = scheduler.plan()
            estimate.learn(scheduler, plan, self.now)
            for key in [key for key, sequence in waiting.items() if scheduler.place(sequence) is None]:
                self.begun[key] = self.now
                del waiting[key]
            for key, sequence in waiting.items():
                if self.now >= asked[key]:
                    asked[key] = self.now + 5.0
                    self.told.append((key, self.now, estimate.seconds(scheduler.place(sequence) or 1)))
            if not plan.spans:
                self.now = max(self.now + 0.001, coming[0].at if coming else 0.0)
                continue
            prompt = sum(span.count for span in plan.spans if not span.sequence.decoding)
            self.now += BASE + ROW * len(plan.spans) + PROMPT * prompt
            sampled = [self._sample(lengths, span) for span in plan.spans]
            scheduler.commit(plan, sampled)
        return [
            max(estimated + GRACE, actual + GRACE) / (min(estimated, actual) + GRACE)
            for key, moment, estimated in self.told
            if estimated is not None
            for actual in (self.begun[key] - moment,)
        ]

    @staticmethod
    def _sample(lengths, span):
        if not span.logits:
            return []
        return [EOS if len(span.sequence.tokens) + 1 >= lengths[span.sequence.number] else 1]


def burst(random_: random.Random, count=120, **shape) -> list[Arrival]:
    return [arrival(random_, 0.0, **shape) for _ in range(count)]


def trickle(random_: random.Random, rate: float, count=200, **shape) -> list[Arrival]:
    at, made = 0.0, []
    for _ in range(count):
        at += random_.expovariate(rate)
        made.append(arrival(random_, at, **shape))
    return made


def arrival(
    random_: random.Random, at: float, prompts=(20, 200), limits=(100, 100), mean: float | None = None, log: float = 0.0
):
    limit = random_.choice(limits) if isinstance(limits, list) else random_.randint(*limits)
    length = (
        10**9
        if mean is None
        else max(1, round(random_.lognormvariate(0, log) * mean if log else random_.expovariate(1 / mean)))
    )
    return Arrival(at, random_.randint(*prompts), limit, length)


LOADS: dict[str, Callable[[random.Random], list[Arrival]]] = {
    "burst, all to their limit": burst,
    "burst of short and long limits": lambda r: burst(r, limits=[10, 400]),
    "burst that stops anywhere": lambda r: burst(r, limits=(512, 512), mean=80),
    "burst of answers of about one length": lambda r: burst(r, limits=(1024, 1024), mean=100, log=0.5),
    "burst of long prompts": lambda r: burst(r, prompts=(500, 2000), limits=(20, 60)),
    "crowds behind full places": lambda r: [
        Arrival(at, one.prompt, 400, one.length) for at in (0.0, 30.0, 60.0, 90.0) for one in burst(r, 24)
    ],
    "two bursts": lambda r: burst(r, 60) + [Arrival(20.0, one.prompt, 300, one.length) for one in burst(r, 60)],
    "trickle above what is served": lambda r: trickle(r, 8.0),
    "trickle of mixed lengths": lambda r: trickle(r, 5.0, limits=[10, 300], prompts=(10, 600)),
    "trickle that stops anywhere": lambda r: trickle(r, 8.0, limits=(512, 512), mean=90),
    "trickle of log-normal answers": lambda r: trickle(r, 6.0, limits=(2048, 2048), mean=100, log=0.8),
}


CACHED: dict[str, Callable[[random.Random], list[Arrival]]] = {
    "burst": lambda r: burst(r, limits=(20, 100)),
    "trickle": lambda r: trickle(r, 8.0, 60),
    "trickle that stops anywhere": lambda r: trickle(r, 8.0, 60, limits=(512, 512), mean=90),
}


@pytest.mark.parametrize("lengths", [[2000], [0, 2000]], ids=["all", "half of them"])
@pytest.mark.parametrize("load", CACHED)
def test_cached_prompts(load: str, lengths: list[int]) -> None:
    """The same where prompts begin alike, so that most of each need not be computed."""
    random_ = random.Random(0)
    arrivals = CACHED[load](random_)
    for one in arrivals:
        one.shared = random_.choice(lengths)
        one.prompt += one.shared
    playing = Playing(arrivals)
    off = sorted(playing.play())
    assert len(off) > 0.5 * len(playing.told) > 10
    assert median(off) <= 2.0
    assert off[len(off) * 9 // 10] <= 4.0


@pytest.mark.parametrize("blocks", [100_000, 90], ids=["room", "little memory"])
@pytest.mark.parametrize("load", LOADS)
def test_estimates(load: str, blocks: int) -> None:
    """Within a factor of two at the median and of four for nine of ten; where too little is known there is none."""
    plays = [Playing(LOADS[load](random.Random(seed)), blocks) for seed in range(2)]
    off = sorted(one for play in plays for one in play.play())
    told = sum(len(play.told) for play in plays)
    assert len(off) > 0.5 * told > 60
    assert median(off) <= 2.0
    assert off[len(off) * 9 // 10] <= 4.0
