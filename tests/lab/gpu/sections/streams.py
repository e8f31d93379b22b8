"""Streams of an engine: prompts alone, ways to sample, a prompt that lands among others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lmtool.core.types import SamplingParams
from lmtool.measure.bench.device import watched_syncs
from tests.lab.gpu.sections.kernels import LeftOut, need_triton, prompt_attention

if TYPE_CHECKING:
    from tests.lab.gpu.sections.bench import Bench
    from tests.lab.gpu.sections.resident import Crowd, Resident

SAMPLINGS = {
    "greedy": SamplingParams(top_logprobs=0),
    "temperature": SamplingParams(temperature=0.8, seed=1, top_logprobs=0),
    "top_k and top_p": SamplingParams(temperature=0.8, seed=1, top_k=40, top_p=0.9, top_logprobs=0),
    "top_p": SamplingParams(temperature=0.8, seed=1, top_p=0.9, top_logprobs=0),
    "min_p": SamplingParams(temperature=0.8, seed=1, min_p=0.05, top_logprobs=0),
    "penalties": SamplingParams(repetition_penalty=1.1, presence_penalty=0.1, top_logprobs=0),
    "20 alternatives": SamplingParams(top_logprobs=20),
}
"""The first four are those whose figures are compared."""
REPEATS = 3


def prefill(bench: Bench) -> Iterator[dict[str, Any]]:
    """Prompts alone: the engine's tokens and operations per second, then attention's by itself."""
    resident = bench.engine()
    for length in bench.settings.prompt_tokens:
        if length >= resident.context:
            continue
        resident.run(resident.prompts(1, length, "warm"), 1)
        runs = [resident.run(resident.prompts(1, length, "prefill", turn), 1) for turn in range(REPEATS)]
        seconds = sorted(one.stamps[0][0] - one.start for one in runs)[REPEATS // 2]
        operations = prompt_operations(resident, length)
        yield {
            "rows": [
                {
                    "tokens": length,
                    "first_token_ms": 1e3 * seconds,
                    "tokens_per_s": length / seconds,
                    "flop_per_s": operations / seconds,
                }
            ]
        }
    try:
        yield from prompt_attention(bench)
    except LeftOut as reason:
        yield {"attention_left_out": str(reason)}


def prompt_operations(resident: Resident, length: int) -> float:
    """Floating-point operations of a prompt's pass: its layers' products, and attention to what each position sees."""
    config = resident.config
    layers = resident.product_weights() - config.vocabulary * config.hidden
    return 2.0 * length * layers + 2.0 * length * length * config.heads * config.head_dim * len(config.windows)


def samplers(bench: Bench) -> Iterator[dict[str, Any]]:
    """Engine steps of many streams by the way they sample, and where torch waits for the device meanwhile."""
    settings, resident = bench.settings, bench.engine()
    for name, sampling in SAMPLINGS.items():
        prompts = resident.prompts(settings.crowd, settings.contexts[0], "samplers", name)
        measured = resident.decode(prompts, settings.output, [sampling] * settings.crowd)
        host = measured.host_seconds
        row = {
            "sampling": name,
            "streams": settings.crowd,
            "engine_ms": 1e3 * measured.step_seconds,
            "host_ms": None if host is None else 1e3 * host,
        }
        with watched_syncs(bench.device.device) as syncs:
            resident.decode(resident.prompts(4, 20, "syncs", name), 4, [sampling] * 4)
        yield {"rows": [{**row, "waits_inside": sorted(set(syncs))[:8], "waits": len(syncs)}]}


def host(bench: Bench) -> Iterator[dict[str, Any]]:
    """What `lab host` measures, on this processor: CPU time of the engine's thread a step, without a GPU."""
    from tests.lab.host.worker import GRAPHS, SAMPLING, Host

    need_triton()
    for streams in bench.settings.batches:
        for sampling in SAMPLING:
            found = Host().measure(GRAPHS, streams, sampling, bench.settings.contexts[0], bench.settings.output)
            yield {"rows": [{"streams": streams, "sampling": sampling, "us": found["us"]}]}


def arrival(bench: Bench) -> Iterator[dict[str, Any]]:
    """The longest gap of streams when a prompt lands among them, and kernels compiled then: there must be none."""
    settings, resident = bench.settings, bench.engine()
    newcomer = min(settings.newcomer, resident.context - settings.output - 1)
    for turn in range(2):
        compiled = len(bench.compiled.names)
        prompts = resident.prompts(settings.crowd - 1, settings.contexts[0], "arrival", turn)
        landing = resident.prompts(1, newcomer, "newcomer", turn)[0]
        crowd, landed = resident.land(prompts, landing, settings.output)
        first = crowd.stamps[-1][0]
        yield {
            "rows": [
                {
                    "streams": settings.crowd - 1,
                    "prompt": newcomer,
                    "gap_before_ms": 1e3 * _gaps(crowd, 0, landed, 50),
                    "longest_gap_before_ms": 1e3 * _gaps(crowd, 0, landed, 100),
                    "longest_gap_ms": 1e3 * _gaps(crowd, landed, first, 100),
                    "first_token_ms": 1e3 * (first - landed),
                    "compiled": bench.compiled.names[compiled:],
                }
            ]
        }
    yield {"compiled_since_start": len(bench.compiled.names), "compile_seconds": bench.compiled.seconds}


def _gaps(crowd: Crowd, start: float, end: float, percent: int) -> float:
    """Of the gaps between tokens that end within this time, all streams but the newcomer, in seconds."""
    gaps = sorted(
        later - earlier
        for own in crowd.stamps[:-1]
        for earlier, later in itertools.pairwise(own[1:])
        if start < later and earlier < end
    )
    return gaps[min(len(gaps) - 1, len(gaps) * percent // 100)] if gaps else 0.0
