"""`bench engine` itself: starts the contestants, checks their ids, visits them round by round."""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.bench.checkpoint import Checkpoint, read_checkpoint
from lmtool.bench.contest import Agreement, Round, agreement, clearest, rotated, timing
from lmtool.bench.contestants import AUTO
from lmtool.bench.engine_report import EngineBench, EngineReport
from lmtool.bench.worker import Worker
from lmtool.errors import LmtoolError, ResourceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from lmtool.bench.contest import Timing
    from lmtool.bench.contestants import Contestant

CALIBRATION_SECONDS = 0.3
CHECKED_STREAMS = 8
"""Most streams whose ids are compared, all together and the first one alone as well."""
CHECKED_TOKENS = 16
CANDIDATES = 64
"""Most prompts that they are chosen from, see `clearest`."""
CHECKED_PROMPT_TOKENS = 4096
"""Tokens of all these prompts together, unless two prompts have more."""
RANDOM = "random:"


async def run(bench: EngineBench, tell: Callable[[str], None]) -> EngineReport:
    """Do it all. tell: is told what is going on, a line at a time.

    Raises `LmtoolError` when ours or the reference cannot run; a peer that fails is left out and named.
    """
    async with contextlib.AsyncExitStack() as stack:
        work = stack.enter_context(tempfile.TemporaryDirectory(prefix="lmtool-bench-"))
        folder, name = await _model(bench, work, tell)
        bench, ours = await _start_ours(bench, folder, work, stack, tell)
        peers = {one.name: _worker(bench, one, folder, work) for one in bench.contestants[1:]}
        for worker in peers.values():
            await stack.enter_async_context(worker)
        failures = await _start(bench, peers, tell)
        started = {bench.contestants[0].name: ours, **peers}
        ceiling = await _ceiling(bench, stack)
        measured = await _measure_ceiling(bench, ceiling)
        agreements = await _check(bench, started, failures, folder, tell)
        abouts = {one: started[one].about for one in started if one not in failures}
        report = EngineReport(bench, name, read_checkpoint(Path(folder)), *measured, abouts, agreements, failures)
        running = {one: worker for one, worker in started.items() if one not in failures}
        for batch in bench.batch:
            report.rounds[batch] = await _rounds(report, running, ceiling, batch, tell)
        return report


async def _model(bench: EngineBench, work: str, tell: Callable[[str], None]) -> tuple[str, str]:
    """The folder of the model, made or fetched where it is none yet, and its name."""
    if (known := _shown(bench.model)) is not None:
        return bench.model, known
    async with Worker("maker", sys.executable, {"threads": bench.threads}) as maker:
        await maker.start(bench.timeout)
        if not bench.model.startswith(RANDOM):
            found = await maker.ask(bench.timeout, do="fetch", **{"with": {"name": bench.model}})
            return str(found["folder"]), bench.model
        tell(f"making {bench.model}")
        told = {"name": bench.model.removeprefix(RANDOM), "folder": f"{work}/model", "seed": bench.seed}
        await maker.ask(bench.timeout, do="make", **{"with": told})
        return f"{work}/model", bench.model


def _shown(model: str) -> str | None:
    """A folder's last part; None for what is no folder."""
    return Path(model).resolve().name if Path(model).is_dir() else None


def _worker(bench: EngineBench, one: Contestant, folder: str, work: str) -> Worker:
    own = Path(work) / one.name.replace(":", "-")
    own.mkdir()
    settings = {
        "model": folder,
        "work": str(own),
        "dtype": one.dtype,
        "threads": bench.threads,
        "cpus": list(bench.cpus),
        "streams": max(*bench.batch, _as_many(bench, CHECKED_STREAMS)),
        "tokens": bench.prompt_len + max(bench.output_len, CHECKED_TOKENS) + 1,
    }
    return Worker(one.peer, one.python, settings)


async def _start_ours(
    bench: EngineBench, folder: str, work: str, stack: contextlib.AsyncExitStack, tell: Callable[[str], None]
) -> tuple[EngineBench, Worker]:
    """Load ours, and decide which dtype the peers have that were given none."""
    ours = bench.contestants[0]
    worker = await stack.enter_async_context(_worker(bench, ours, folder, work))
    tell(f"loading {ours.name}")
    await worker.start(bench.timeout)
    bench = bench.decided(worker.about["dtype"])
    if ours.dtype == AUTO:
        tell(f"{ours.name} is {worker.about['dtype']} here, by {worker.about['kernels']}")
    return bench, worker


async def _ceiling(bench: EngineBench, stack: contextlib.AsyncExitStack) -> Worker:
    settings = {"threads": bench.threads, "cpus": list(bench.cpus)}
    worker = await stack.enter_async_context(Worker("ceiling", sys.executable, settings))
    await worker.start(bench.timeout)
    return worker


async def _start(bench: EngineBench, workers: dict[str, Worker], tell: Callable[[str], None]) -> dict[str, str]:
    """Load the peers, one after the other; those that cannot, and why."""
    failures = {}
    for name, worker in workers.items():
        tell(f"loading {name}")
        try:
            await worker.start(bench.timeout)
        except LmtoolError as problem:
            failures[name] = problem.message
            tell(f"{name} takes no part: {problem.message}")
    return failures


async def _measure_ceiling(bench: EngineBench, ceiling: Worker) -> tuple[float, dict[str, float]]:
    products = {}
    for dtype in sorted({one.dtype for one in bench.contestants}):
        told = await ceiling.ask(bench.timeout, do="product", **{"with": {"dtype": dtype, "seconds": 1.0}})
        products[dtype] = float(told["flop_per_s"])
    return await _bandwidth(bench, ceiling, 1.0), products


async def _bandwidth(bench: EngineBench, ceiling: Worker, seconds: float = CALIBRATION_SECONDS) -> float:
    told = await ceiling.ask(bench.timeout, do="bandwidth", **{"with": {"seconds": seconds}})
    return float(told["bytes_per_s"])


@contextlib.asynccontextmanager
async def _reference(
    bench: EngineBench, workers: dict[str, Worker], failures: dict[str, str], folder: str
) -> AsyncIterator[Worker]:
    """Transformers in float32: a contestant where it is one, else a worker for this only."""
    name = "transformers:float32"
    if name in workers and name not in failures:
        yield workers[name]
        return
    settings = {"model": folder, "dtype": "float32", "threads": bench.threads, "cpus": list(bench.cpus)}
    async with Worker("transformers", sys.executable, settings) as worker:
        await worker.start(bench.timeout)
        yield worker


async def _check(
    bench: EngineBench,
    workers: dict[str, Worker],
    failures: dict[str, str],
    folder: str,
    tell: Callable[[str], None],
) -> dict[str, Agreement]:
    """Greedy ids of every contestant against the reference's, of streams together and of one alone."""
    tell("comparing greedy ids")
    output = min(bench.output_len, CHECKED_TOKENS)
    candidates = _prompts(bench, read_checkpoint(Path(folder)), _as_many(bench, CANDIDATES), "check")
    async with _reference(bench, workers, failures, folder) as reference:

        async def ask(prompts: list[list[int]], output: int) -> dict[str, Any]:
            wanted = {"prompts": prompts, "output": output}
            return await reference.ask(bench.timeout, do="reference", **{"with": wanted})

        leads = [gaps[0] for gaps in (await ask(candidates, 1))["gaps"]]
        prompts = clearest(candidates, leads, _as_many(bench, CHECKED_STREAMS))
        told = await ask(prompts, output)
    found = {}
    for one in bench.contestants:
        if one.name in failures:
            continue
        try:
            ids = await _greedy(bench, workers[one.name], prompts, output)
        except LmtoolError as problem:
            failures[one.name] = problem.message
            continue
        right, gaps = [*told["ids"], told["ids"][0]], [*told["gaps"], told["gaps"][0]]
        found[one.name] = agreement(right, gaps, ids, one.dtype)
    if bench.contestants[0].name in failures:
        raise ResourceError(failures[bench.contestants[0].name])
    return found


def _as_many(bench: EngineBench, prompts: int) -> int:
    """So many prompts, or fewer where they are long."""
    return max(2, min(prompts, CHECKED_PROMPT_TOKENS // bench.prompt_len))


async def _greedy(bench: EngineBench, worker: Worker, prompts: list[list[int]], output: int) -> list[list[int]]:
    """Ids of all prompts together, then of the first one alone."""
    ids: list[list[int]] = []
    for part in (prompts, prompts[:1]):
        told = await worker.ask(bench.timeout, do="greedy", prompts=part, output=output)
        ids += told["ids"]
    return ids


def _prompts(bench: EngineBench, checkpoint: Checkpoint, count: int, *salt: object) -> list[list[int]]:
    """Random ids, the same for a seed and a salt."""
    draw = random.Random(repr((bench.seed, *salt)))  # noqa: S311  # no secret
    low = min(3, checkpoint.vocab_size - 1)
    return [[draw.randrange(low, checkpoint.vocab_size) for _ in range(bench.prompt_len)] for _ in range(count)]


async def _rounds(
    report: EngineReport, workers: dict[str, Worker], ceiling: Worker, batch: int, tell: Callable[[str], None]
) -> list[Round]:
    """As many steady rounds as asked for, from twice as many at most; one more before them to warm up."""
    bench, rounds = report.bench, list[Round]()
    for turn in range(-1, 2 * bench.rounds):
        before = await _bandwidth(bench, ceiling)
        timings = {}
        for name in rotated(list(workers), max(turn, 0)):
            found = await _visit(report, workers, name, batch, turn)
            if found is not None:
                timings[name] = found
        if turn < 0:
            continue
        rounds.append(
            Round(
                {name: timings[name] for name in workers if name in timings}, before, await _bandwidth(bench, ceiling)
            )
        )
        steady = sum(one.steady for one in rounds)
        tell(f"batch {batch}: {steady} of {bench.rounds} rounds" + ("" if rounds[-1].steady else ", one disturbed"))
        if steady == bench.rounds:
            break
    return rounds


async def _visit(report: EngineReport, workers: dict[str, Worker], name: str, batch: int, turn: int) -> Timing | None:
    """One run of one contestant; a peer that fails leaves the contest."""
    bench = report.bench
    first, then = (_prompts(bench, report.checkpoint, batch, turn, part) for part in ("first", "then"))
    try:
        told = await workers[name].ask(bench.timeout, do="timed", first=first, then=then, output=bench.output_len)
        report.resident[name] = int(told["rss_bytes"])
        return timing(told, batch * bench.prompt_len, bench.output_len)
    except (LmtoolError, ValueError) as problem:
        if name == report.ours:
            raise problem if isinstance(problem, LmtoolError) else ResourceError(f"{name}: {problem}") from None
        report.failures[name] = str(problem)
        del workers[name]
        return None
