"""Loading, and decode steps: as a graph, as a runner's step, as an engine's; the kernels of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from lmtool.inference.engine.kv_cache import BLOCK_TOKENS
from lmtool.inference.engine.plan import Plan, Sequence, Span

if TYPE_CHECKING:
    from tests.lab.gpu.sections.bench import Bench
    from tests.lab.gpu.sections.resident import Resident

SPARE = 0.95
"""Share of the blocks that a crowd may fill: its streams grow while others' prompts are computed."""
MOST_PROMPT_TOKENS = 300_000
"""Of a crowd whose engine steps are timed: more take too long to compute."""
SHOWN_KERNELS = 16


def load(bench: Bench) -> Iterator[dict[str, Any]]:
    """The main model: which attention, how many graphs, blocks and seconds."""
    before = bench.device.free_bytes()
    resident = bench.engine()
    yield {"free_bytes_before": before, **resident.describe()}


def decode(bench: Bench) -> Iterator[dict[str, Any]]:
    """Steps of the main model for all numbers of streams and contexts, the most telling ones first."""
    settings = bench.settings
    cells = [(streams, context) for context in settings.contexts for streams in settings.batches]
    yield from _cells(bench, bench.engine(), sorted(cells, key=lambda cell: cell[0] * cell[1]))


def small(bench: Bench) -> Iterator[dict[str, Any]]:
    """Steps of the smaller model, whose host time counts more."""
    settings, resident = bench.settings, bench.engine(bench.settings.small_model)
    yield {"load": resident.describe()}
    yield from _cells(bench, resident, [(streams, settings.contexts[0]) for streams in settings.batches])


def _cells(bench: Bench, resident: Resident, cells: list[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    for streams, context in cells:
        compiled = len(bench.compiled.names)
        row = {"streams": streams, "context": context, **read_by(resident, streams, context)}
        needed = streams * -(-(context + 1) // BLOCK_TOKENS)
        if context >= resident.context or needed > SPARE * resident.blocks:
            yield {"rows": [{**row, "left_out": f"needs {needed} blocks, and there are {resident.blocks}"}]}
            continue
        row |= runner_times(bench, resident, streams, context)
        yield {"rows": [{**row, **_engine_times(bench, resident, streams, context)}]}
        yield {"compiled_while_serving": bench.compiled.names[compiled:]}


def read_by(resident: Resident, streams: int, context: int) -> dict[str, float]:
    """What a decode step must read and compute at least: `bytes` and `operations`."""
    config, weights = resident.config, resident.product_weights()
    stored = streams * context * resident.block_bytes / BLOCK_TOKENS
    attention = 4 * streams * context * config.heads * config.head_dim * len(config.windows)
    return {"bytes": resident.weight_bytes() + stored, "operations": 2 * streams * weights + attention}


def runner_times(bench: Bench, resident: Resident, streams: int, context: int) -> dict[str, Any]:
    """Milliseconds of a captured pass replayed, of a runner's whole step, and of the host to launch that."""
    moment, device = bench.settings.moment, bench.device
    step = decode_step(resident, streams, context)
    row = {
        "runner_ms": 1e3 * device.times(step, moment).median,
        "launch_ms": 1e3 * device.host_seconds(step, 10),
    }
    again = replay(resident, streams)
    return row if again is None else {**row, "graph_ms": 1e3 * device.times(again, moment).median}


def decode_step(resident: Resident, streams: int, context: int) -> Callable[[], object]:
    """The runner's step of one position behind `context` others of each stream, on whatever is stored there.

    The engine must be idle; prompts of other sections do not begin like what is overwritten here.
    """
    width = -(-(context + 1) // BLOCK_TOKENS)
    spans = []
    for number in range(streams):
        ids = resident.prompts(1, context + 1, "replay", number)[0]
        sequence = Sequence(number, ids, context, context + 2)
        sequence.blocks = list(range(1 + number * width, 1 + (number + 1) * width))
        sequence.computed = context
        spans.append(Span(sequence, context, 1))
    return partial(resident.runner.run, Plan(spans))


def replay(resident: Resident, streams: int) -> Callable[[], object] | None:
    """The captured pass of the last step of that many streams, on what that left; None without graphs."""
    graphs = getattr(resident.runner, "graphs", None)
    return None if graphs is None or graphs.max_rows < streams else partial(graphs.replay, streams)


def _engine_times(bench: Bench, resident: Resident, streams: int, context: int) -> dict[str, Any]:
    if streams * context > MOST_PROMPT_TOKENS:
        return {"engine_left_out": f"{streams * context} tokens of prompts would take too long"}
    prompts = resident.prompts(streams, context, "decode")
    measured = resident.decode(prompts, bench.settings.output)
    host = measured.host_seconds
    return {
        "engine_ms": 1e3 * measured.step_seconds,
        "host_ms": None if host is None else 1e3 * host,
        "tokens_per_s": streams / measured.step_seconds,
        "first_tokens_s": measured.first_token_seconds,
    }


def profile(bench: Bench) -> Iterator[dict[str, Any]]:
    """The longest kernels of one graph, or of a runner's step where there is none."""
    resident, settings = bench.engine(), bench.settings
    context = settings.contexts[1]
    for streams in (1, settings.crowd):
        if streams * -(-(context + 1) // BLOCK_TOKENS) > resident.blocks:
            continue
        step = decode_step(resident, streams, context)
        step()
        again = replay(resident, streams)
        kernels = bench.device.profile(again or step)
        yield {
            "graphs": [
                {
                    "streams": streams,
                    "context": context,
                    "of_a_graph": again is not None,
                    "sum_us": sum(one["us"] for one in kernels),
                    "calls": sum(one["calls"] for one in kernels),
                    "kernels": kernels[:SHOWN_KERNELS],
                }
            ]
        }
