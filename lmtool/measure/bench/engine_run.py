"""Runs `bench engine`: starts the contestants, checks their ids, times them round by round."""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import LmtoolError, ResourceError
from lmtool.inference.engine.random_model import PREFIX
from lmtool.measure.bench.checkpoint import Checkpoint, read_checkpoint
from lmtool.measure.bench.contest import Agreement, Round, agreement, clearest_prompts, rotate, timing
from lmtool.measure.bench.contestants import AUTO, MAKES_RANDOM
from lmtool.measure.bench.engine_report import EngineBench, EngineReport
from lmtool.measure.bench.peer_process import PeerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from lmtool.measure.bench.contest import Timing
    from lmtool.measure.bench.contestants import Contestant

CALIBRATION_SECONDS = 0.3
WARM_UP_TOKENS = 256
"""Most tokens of a prompt in the round that warms up: it takes what long prompts take, and tells nothing."""
CHECKED_STREAMS = 8
"""Most streams whose ids are compared, all together and the first one alone as well."""
CHECKED_TOKENS = 16
CANDIDATES = 64
"""Most prompts that they are chosen from, see `clearest_prompts`."""
CHECKED_PROMPT_TOKENS = 4096
"""Tokens of all these prompts together, unless two prompts have more."""


async def run(bench: EngineBench, note: Callable[[str], None]) -> EngineReport:
    """Run the whole contest. note: called with each line of progress.

    Raises `LmtoolError` when our engine or the reference cannot run; a peer that fails is left out and named.
    """
    async with contextlib.AsyncExitStack() as stack:
        work = stack.enter_context(tempfile.TemporaryDirectory(prefix="lmtool-bench-"))
        if bench.on_gpu:
            await _check_device(bench)
        source = await _source(bench, work, note)
        right = await _right_ids(bench, {}, {}, source, note) if bench.on_gpu else None  # alone: it is twice as large
        bench, ours = await _start_ours(bench, source, work, stack, note)
        peers = {one.name: _process(bench, one, source, work) for one in bench.contestants[1:]}
        for peer in peers.values():
            await stack.enter_async_context(peer)
        failures = await _start_peers(bench, peers, note)
        processes = {bench.contestants[0].name: ours, **peers}
        ceiling = await stack.enter_async_context(PeerProcess("ceiling", sys.executable, _machine_settings(bench)))
        await ceiling.start(bench.timeout)
        bandwidth, products = await _machine_limits(bench, ceiling)
        right = right or await _right_ids(bench, processes, failures, source, note)
        agreements = await _check_ids(bench, processes, failures, right)
        running = {one: process for one, process in processes.items() if one not in failures}
        abouts = {one: process.about for one, process in running.items()}
        report = EngineReport(bench, source.name, source.checkpoint, bandwidth, products, abouts, agreements, failures)
        report.device_name = str(ceiling.about.get("device", ""))
        for batch in bench.batch:
            report.rounds[batch] = await _rounds(report, running, ceiling, batch, note)
        return report


async def _check_device(bench: EngineBench) -> None:
    """Raise `ResourceError` where there is no such device, before any model is made."""
    async with PeerProcess("maker", sys.executable, {"threads": bench.threads}) as maker:
        await maker.start(bench.timeout)
        await maker.call(bench.timeout, "find_device", device=bench.device)


@dataclass(frozen=True, slots=True)
class _Source:
    """The model of a contest."""

    name: str
    """For people."""
    model: str
    """For engines that make a random one where they compute it."""
    folder: str
    """For all others; empty where none takes part."""
    checkpoint: Checkpoint

    def of(self, peer: str) -> str:
        """What an engine loads."""
        return self.model if peer in MAKES_RANDOM else self.folder


async def _source(bench: EngineBench, work: str, note: Callable[[str], None]) -> _Source:
    """The model, made or downloaded if necessary. Random ones on a GPU are on disk for engines that read files only."""
    if (name := _folder_name(bench.model)) is not None:
        return _Source(name, bench.model, bench.model, read_checkpoint(Path(bench.model)))
    async with PeerProcess("maker", sys.executable, {"threads": bench.threads}) as maker:
        await maker.start(bench.timeout)
        if not bench.model.startswith(PREFIX):
            found = str((await maker.call(bench.timeout, "fetch", name=bench.model))["folder"])
            return _Source(bench.model, found, found, read_checkpoint(Path(found)))
        made, folder = {"name": bench.model.removeprefix(PREFIX), "folder": f"{work}/model"}, f"{work}/model"
        if not bench.on_gpu:
            note(f"making {bench.model}")
            await maker.call(bench.timeout, "make", **made, seed=bench.seed)
            return _Source(bench.model, folder, folder, read_checkpoint(Path(folder)))
        if all(one.peer in MAKES_RANDOM for one in bench.contestants):
            folder = ""
        else:
            note(f"writing {bench.model} for engines that read files")
            await maker.call(bench.timeout, "make", **made, seed=0, dtype="bfloat16", device=bench.device)
        counts = await maker.call(bench.timeout, "count", name=bench.model)
        return _Source(bench.model, bench.model, folder, Checkpoint(**counts))


def _folder_name(model: str) -> str | None:
    return Path(model).resolve().name if Path(model).is_dir() else None


def _machine_settings(bench: EngineBench) -> dict[str, Any]:
    return {"threads": bench.threads, "cpus": list(bench.cpus), "device": bench.device}


def _process(bench: EngineBench, one: Contestant, source: _Source, work: str) -> PeerProcess:
    own = Path(work) / one.name.replace(":", "-")
    own.mkdir()
    settings = {
        **_machine_settings(bench),
        "model": source.of(one.peer),
        "work": str(own),
        "dtype": one.dtype,
        "streams": max(*bench.batch, _affordable(bench, CHECKED_STREAMS)),
        "tokens": bench.prompt_len + max(bench.output_len, CHECKED_TOKENS) + 1,
    }
    return PeerProcess(one.peer, one.python, settings)


async def _start_ours(
    bench: EngineBench, source: _Source, work: str, stack: contextlib.AsyncExitStack, note: Callable[[str], None]
) -> tuple[EngineBench, PeerProcess]:
    """Load our engine; its dtype replaces `AUTO` everywhere."""
    ours = bench.contestants[0]
    process = await stack.enter_async_context(_process(bench, ours, source, work))
    note(f"loading {ours.name}")
    await process.start(bench.timeout)
    dtype = process.about["dtype"]
    if ours.dtype == AUTO:
        note(f"{ours.name} is {dtype} here, by {process.about['kernels']}")
    return bench.with_auto_dtype(dtype), process


async def _start_peers(
    bench: EngineBench, peers: dict[str, PeerProcess], note: Callable[[str], None]
) -> dict[str, str]:
    """Load the peers, one after the other; the reasons of those that fail."""
    failures = {}
    for name, process in peers.items():
        note(f"loading {name}")
        try:
            await process.start(bench.timeout)
        except LmtoolError as problem:
            failures[name] = problem.message
            note(f"{name} is left out: {problem.message}")
    return failures


async def _machine_limits(bench: EngineBench, ceiling: PeerProcess) -> tuple[float, dict[str, float]]:
    """Bytes per second, and operations per second by dtype."""
    products = {}
    for dtype in sorted({one.dtype for one in bench.contestants}):
        answer = await ceiling.call(bench.timeout, "product", dtype=dtype, seconds=1.0)
        products[dtype] = float(answer["flop_per_s"])
    return await _bandwidth(bench, ceiling, 1.0), products


async def _bandwidth(bench: EngineBench, ceiling: PeerProcess, seconds: float = CALIBRATION_SECONDS) -> float:
    answer = await ceiling.call(bench.timeout, "bandwidth", seconds=seconds)
    return float(answer["bytes_per_s"])


@contextlib.asynccontextmanager
async def _reference(
    bench: EngineBench, processes: dict[str, PeerProcess], failures: dict[str, str], source: _Source
) -> AsyncIterator[PeerProcess]:
    """Transformers in float32: the contestant if it is one, else a process for this only."""
    name = "transformers:float32"
    if name in processes and name not in failures:
        yield processes[name]
        return
    settings = {**_machine_settings(bench), "model": source.of("transformers"), "dtype": "float32"}
    async with PeerProcess("transformers", sys.executable, settings) as process:
        await process.start(bench.timeout)
        yield process


@dataclass(frozen=True, slots=True)
class _RightIds:
    """What the reference says behind some prompts."""

    prompts: list[list[int]]
    output: int
    """Tokens of each."""
    ids: list[list[int]]
    """Of each prompt, then of the first one again."""
    gaps: list[list[float]]


async def _right_ids(
    bench: EngineBench,
    processes: dict[str, PeerProcess],
    failures: dict[str, str],
    source: _Source,
    note: Callable[[str], None],
) -> _RightIds:
    """The reference's greedy ids."""
    note("comparing greedy ids" if processes else "computing greedy ids in float32")
    output = min(bench.output_len, CHECKED_TOKENS)
    candidates = _prompts(bench, source.checkpoint, _affordable(bench, CANDIDATES), "check")
    async with _reference(bench, processes, failures, source) as reference:
        first = await reference.call(bench.timeout, "reference", prompts=candidates, output=1)
        leads = [gaps[0] for gaps in first["gaps"]]
        prompts = clearest_prompts(candidates, leads, _affordable(bench, CHECKED_STREAMS))
        right = await reference.call(bench.timeout, "reference", prompts=prompts, output=output)
    ids, gaps = ([*right[key], right[key][0]] for key in ("ids", "gaps"))
    return _RightIds(prompts, output, ids, gaps)


async def _check_ids(
    bench: EngineBench, processes: dict[str, PeerProcess], failures: dict[str, str], right: _RightIds
) -> dict[str, Agreement]:
    """Compare greedy ids of every contestant with the reference's, of streams together and of one alone."""
    agreements = {}
    for one in bench.contestants:
        if one.name in failures:
            continue
        try:
            ids: list[list[int]] = []
            for part in (right.prompts, right.prompts[:1]):
                answer = await processes[one.name].call(bench.timeout, "greedy", prompts=part, output=right.output)
                ids += answer["ids"]
        except LmtoolError as problem:
            failures[one.name] = problem.message
            continue
        agreements[one.name] = agreement(right.ids, right.gaps, ids, one.dtype)
    if bench.contestants[0].name in failures:
        raise ResourceError(failures[bench.contestants[0].name])
    return agreements


def _affordable(bench: EngineBench, prompts: int) -> int:
    """This number of prompts, or fewer where they are long."""
    return max(2, min(prompts, CHECKED_PROMPT_TOKENS // bench.prompt_len))


def _prompts(
    bench: EngineBench, checkpoint: Checkpoint, count: int, *salt: object, most: int | None = None
) -> list[list[int]]:
    """Random ids, the same for a seed and a salt. most: ids of a prompt, where the contest's own are longer."""
    draw = random.Random(repr((bench.seed, *salt)))  # noqa: S311  # no secret
    low = min(3, checkpoint.vocab_size - 1)
    length = min(bench.prompt_len, most or bench.prompt_len)
    return [[draw.randrange(low, checkpoint.vocab_size) for _ in range(length)] for _ in range(count)]


async def _rounds(
    report: EngineReport,
    processes: dict[str, PeerProcess],
    ceiling: PeerProcess,
    batch: int,
    note: Callable[[str], None],
) -> list[Round]:
    """Until `bench.rounds` are steady, twice as many at most; one more before them to warm up."""
    bench, rounds = report.bench, list[Round]()
    for turn in range(-1, 2 * bench.rounds):
        before = await _bandwidth(bench, ceiling)
        timings = {}
        for name in rotate(list(processes), max(turn, 0)):
            timing = await _time_one(report, processes, name, batch, turn)
            if timing is not None:
                timings[name] = timing
        if turn < 0:
            continue
        in_order = {name: timings[name] for name in processes if name in timings}
        rounds.append(Round(in_order, before, await _bandwidth(bench, ceiling)))
        steady = sum(one.steady for one in rounds)
        note(f"batch {batch}: {steady} of {bench.rounds} rounds" + ("" if rounds[-1].steady else ", one unsteady"))
        if steady == bench.rounds:
            break
    return rounds


async def _time_one(
    report: EngineReport, processes: dict[str, PeerProcess], name: str, batch: int, turn: int
) -> Timing | None:
    """One run of one contestant, to warm up where `turn` is below 0; a peer that fails leaves the contest."""
    bench = report.bench
    most = WARM_UP_TOKENS if turn < 0 else None
    first, then = (_prompts(bench, report.checkpoint, batch, turn, part, most=most) for part in ("first", "then"))
    try:
        answer = await processes[name].call(bench.timeout, "timed", first=first, then=then, output=bench.output_len)
        report.resident[name] = int(answer["rss_bytes"])
        return timing(answer, batch * bench.prompt_len, bench.output_len)
    except (LmtoolError, ValueError) as problem:
        if name == report.ours:
            raise problem if isinstance(problem, LmtoolError) else ResourceError(f"{name}: {problem}") from None
        report.failures[name] = str(problem)
        del processes[name]
        return None
