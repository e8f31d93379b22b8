"""The scenario that compares free streams with held ones."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from lmtool.bench.record import Record
from lmtool.bench.scenarios import ROUNDS, held
from lmtool.bench.targets import Server
from lmtool.bench.workload import ServeBench
from lmtool.errors import ServerError, UsageError

if TYPE_CHECKING:
    from lmtool.bench.targets import OnToken
    from lmtool.bench.workload import Job

MANY = 3


class Answers:
    """Gives each request all of its tokens at once, or an error to those that are held."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.asked: list[Job] = []
        self._refuses = refuses

    async def send(self, job: Job, on_token: OnToken | None = None) -> Record:
        """See `Target`."""
        del on_token
        self.asked.append(job)
        record = Record(time.perf_counter())
        if self._refuses and job.constraint is not None:
            record.error = "no constraints here"
            return record
        record.stamps = [time.perf_counter()] * job.output_len
        record.tokens = job.output_len
        return record


def told(_line: str) -> None:
    """Nobody reads what is going on."""


def server(target: Answers, *, context: int | None = None) -> Server:
    return Server(target, "here", "answers", 300, context, None)


async def test_free_and_held_streams_take_turns() -> None:
    """As many of each, in rounds of which the first is not counted; then new prompts, new schemas, and both."""
    target = Answers()
    result = await held(ServeBench("S7", output_len=5), server(target), MANY, told)
    compared, new = target.asked[: 2 * MANY * (ROUNDS + 1)], target.asked[2 * MANY * (ROUNDS + 1) :]
    kinds = [job.constraint is not None for job in compared[::MANY]]
    assert kinds == [False, True, True, False, False, True, True, False, False, True, True, False]
    assert len({job.constraint for job in compared if job.constraint is not None}) == 1
    assert len({job.prompt for job in compared}) == len(compared)
    assert all(job.drawn is not None for job in target.asked)
    schemas = [job.constraint for job in new if job.constraint is not None]
    assert len(new) == 3 * ROUNDS
    assert len({*schemas, compared[MANY].constraint}) == len(schemas) + 1 == 2 * ROUNDS + 1
    assert result["completed"] == MANY * ROUNDS
    assert result["output_tokens"] == 5 * MANY * ROUNDS
    ratio = result["held_over_free"]
    assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]
    longer = max(result["new_prompt_ttft_ms"], result["new_schema_ttft_ms"])
    assert result["both_over_longer"] == pytest.approx(result["new_both_ttft_ms"] / longer)


async def test_a_round_shorter_than_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU time is counted in ticks: a ratio by it is told only where each round took one."""
    for ticks, compared in (([0.0, 0.01] * 2 * ROUNDS, True), ([0.0, 0.0] + [0.0, 0.01] * (2 * ROUNDS - 1), False)):
        monkeypatch.setattr(
            "lmtool.bench.targets.cpu_seconds", partial(lambda clock, _process: next(clock), iter(ticks))
        )
        answering = Server(Answers(), "here", "answers", 300, None, process=1)
        result = await held(ServeBench("S7", output_len=5), answering, MANY, told)
        assert ("held_over_free_cpu" in result) is compared


async def test_a_server_without_constraints() -> None:
    """What it says is told."""
    with pytest.raises(ServerError, match="no constraints here"):
        await held(ServeBench("S7"), server(Answers(refuses=True)), MANY, told)


async def test_a_context_that_is_too_short() -> None:
    """Told before anything is sent, or as soon as it is known."""
    with pytest.raises(UsageError, match="does not fit"):
        await held(ServeBench("S7"), server(Answers(), context=100), MANY, told)
