"""Whole models against each other: deterministic or not, a second load, fp8, errors against float32, transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.random_model import random_model
from lmtool.settings.option import options_of
from tests.lab.gpu.sections.kernels import LeftOut
from tests.lab.gpu.sections.steps import decode_step, runner_times

if TYPE_CHECKING:
    from torch import Tensor

    from tests.lab.gpu.sections.bench import Bench
    from tests.lab.gpu.sections.resident import Resident

SCORED_TOKENS = 200
ROUNDS = 2
"""Runs of a peer, of which the fastest counts."""


def deterministic(bench: Bench) -> Iterator[dict[str, Any]]:
    """The main model under `--deterministic`: its steps, and whether streams are the same alone and in a crowd."""
    settings, resident = bench.settings, bench.engine(deterministic=True)
    yield {"load": resident.describe()}
    for streams in (1, settings.crowd):
        prompts = resident.prompts(streams, settings.contexts[0], "deterministic")
        measured = resident.decode(prompts, settings.output)
        host = measured.host_seconds
        row = {
            "streams": streams,
            "context": settings.contexts[0],
            "engine_ms": 1e3 * measured.step_seconds,
            "host_ms": None if host is None else 1e3 * host,
        }
        yield {"rows": [row | runner_times(bench, resident, streams, settings.contexts[0])]}
    yield {"crowd": compare_with_crowd(resident, settings.crowd, settings.output)}


def bias(bench: Bench) -> Iterator[dict[str, Any]]:
    """A model with biases, whose products are other kernels, alone and in a crowd under `--deterministic`."""
    resident = bench.engine(bench.settings.biased_model, deterministic=True)
    yield {"load": resident.describe()}
    yield {"crowd": compare_with_crowd(resident, bench.settings.crowd, bench.settings.output)}


def compare_with_crowd(resident: Resident, count: int, output: int) -> dict[str, Any]:
    """Some streams alone, then among `count` of other lengths: how many ids and logprobs differ, and from where on."""
    lengths = [7 + 13 * number % 90 for number in range(count)]
    prompts = [resident.prompts(1, length, "crowd", number)[0] for number, length in enumerate(lengths)]
    chosen = (0, count // 2, count - 1)
    alone = [resident.run([prompts[number]], output) for number in chosen]
    crowd = resident.run(prompts, output)
    first = None
    wrong_ids = wrong_logprobs = 0
    for own, number in zip(alone, chosen, strict=True):
        pairs = list(
            zip(
                zip(own.ids[0], own.logprobs[0], strict=True),
                zip(crowd.ids[number], crowd.logprobs[number], strict=True),
                strict=True,
            )
        )
        wrong_ids += sum(one[0] != other[0] for one, other in pairs)
        wrong_logprobs += sum(one[1] != other[1] for one, other in pairs)
        differs = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
        first = differs if first is None else first
    return {
        "equal": not wrong_ids and not wrong_logprobs,
        "tokens": output * len(chosen),
        "ids_that_differ": wrong_ids,
        "logprobs_that_differ": wrong_logprobs,
        "first_difference": first,
    }


def second_load(bench: Bench) -> Iterator[dict[str, Any]]:
    """One model loaded, closed and loaded again: as many blocks and as much free memory as before."""
    name = bench.settings.biased_model
    for _ in range(2):
        bench.drop()
        free = bench.device.free_bytes()
        resident = bench.engine(name)
        resident.run(resident.prompts(2, 20, "second"), 2)
        yield {"loads": [{"free_bytes": free, "blocks": resident.blocks, "seconds": resident.load_seconds}]}
    bench.drop()
    yield {"free_bytes_after": bench.device.free_bytes()}


def selfcheck(bench: Bench) -> Iterator[dict[str, Any]]:
    """Logprobs of random ids by the smaller model: ours, and the library's attentions, against its own in float32."""
    name, device = bench.settings.small_model, bench.device
    bench.drop()
    ids = random_ids(name, SCORED_TOKENS)
    exact = _scores(bench, name, ids, torch.float32, "eager")
    others = {f"transformers {kind}": _scores(bench, name, ids, bench.dtype, kind) for kind in ("eager", "sdpa")}
    device.free_bytes()
    resident = bench.engine(name)
    others["lmtool"] = torch.tensor(resident.score(ids))
    yield {"model": name, "tokens": len(ids), "log": resident.log}
    for what, scores in others.items():
        yield {"nats_from_float32": {what: _distance(scores, exact)}}


def random_ids(name: str, count: int) -> list[int]:
    """Ids spread over a model's vocabulary."""
    from lmtool.inference.engine.random_model import random_config

    size = random_config(name).vocab_size
    return [3 + (number * 2_654_435_761) % (size - 3) for number in range(1, count + 1)]


def _scores(bench: Bench, name: str, ids: Sequence[int], dtype: torch.dtype, attention: str) -> Tensor:
    """[T - 1] float32: logprobs of all ids but the first, by transformers' own pass."""
    model: Any = random_model(name, bench.dtype, bench.device.device, attention=attention).to(dtype)
    given = torch.tensor([list(ids)], device=bench.device.device)
    logits = model(input_ids=given, use_cache=False).logits[0].float()
    logprobs: Tensor = logits.log_softmax(-1)[:-1].gather(1, given[0, 1:, None])[:, 0].cpu()
    return logprobs


def _distance(scores: Tensor, exact: Tensor) -> dict[str, float]:
    difference = (scores.float() - exact).abs()
    return {"mean": float(difference.mean()), "max": float(difference.max())}


def transformers(bench: Bench) -> Iterator[dict[str, Any]]:
    """Transformers' `generate`, then its continuous batching, on the same weights and prompts of the same lengths."""
    from lmtool.measure.bench.peers.transformers_peer import BatchingPeer, Peer

    settings = bench.settings
    bench.drop()
    context, output = settings.contexts[0], settings.output
    common = {
        "model": settings.model,
        "device": settings.device,
        "dtype": settings.dtype,
        "threads": torch.get_num_threads(),
        "streams": settings.crowd,
        "tokens": context + output + 1,
    }
    with torch.inference_mode(mode=False):  # its threads have not that mode
        peer = Peer(common)
    yield {"versions": peer.about()["versions"]}
    for streams in (1, settings.crowd):
        yield {"rows": [{"way": "generate", **_timed(bench, peer, streams, context, output)}]}
    del peer
    bench.device.free_bytes()
    with torch.inference_mode(mode=False):
        batching = BatchingPeer(common)
    try:
        yield {
            "rows": [
                {
                    "way": "continuous batching",
                    **batching.details,
                    **_timed(bench, batching, settings.crowd, context, output),
                }
            ]
        }
    finally:
        batching.close()


def _timed(bench: Bench, peer: Any, streams: int, context: int, output: int) -> dict[str, Any]:
    from lmtool.measure.bench.peers.worker import timed

    ids = random_ids(bench.settings.model, (1 + 2 * ROUNDS) * streams * context)
    parts = [ids[start : start + context] for start in range(0, len(ids), context)]
    warm, *others = (parts[start : start + streams] for start in range(0, len(parts), streams))
    peer.generate(warm, output)
    answers = [timed(peer, first, then, output) for first, then in zip(others[::2], others[1::2], strict=True)]
    prefill, total = (min(answer[name] for answer in answers) for name in ("prefill_s", "total_s"))
    decode = max(total - prefill, 1e-9)
    return {
        "streams": streams,
        "context": context,
        "prefill_s": prefill,
        "step_ms": 1e3 * decode / (output - 1),
        "tokens_per_s": streams * (output - 1) / decode,
    }


def fp8(bench: Bench) -> Iterator[dict[str, Any]]:
    """The main model in fp8, each way that this engine has: its steps, and how far scores are from those in bf16."""
    ways = fp8_settings()
    if not ways or not bench.device.cuda:
        raise LeftOut("this engine has no fp8" if not ways else "fp8 is for GPUs")
    settings = bench.settings
    ids = random_ids(settings.model, SCORED_TOKENS)
    exact = torch.tensor(bench.engine().score(ids))
    for name, more in ways.items():
        resident = bench.engine(**more)
        error = _distance(torch.tensor(resident.score(ids)), exact)
        for streams in (1, settings.crowd):
            decode_step(resident, streams, settings.contexts[0])()
            prompts = resident.prompts(streams, settings.contexts[0], "fp8")
            seconds = resident.decode(prompts, settings.output).step_seconds
            yield {
                "rows": [
                    {
                        "way": name,
                        "streams": streams,
                        "engine_ms": 1e3 * seconds,
                        "nats_from_bf16": error,
                        "blocks": resident.blocks,
                    }
                ]
            }


def fp8_settings() -> dict[str, dict[str, str]]:
    """Name to settings of `EngineConfig` for each option that takes fp8."""
    ways = {}
    for name, option in options_of(EngineConfig).items():
        for word in option.choices:
            if word.startswith("fp8"):
                ways[f"{name}={word}"] = {name: word}
    if len(ways) > 1:
        ways["both"] = {name: word for way in ways.values() for name, word in way.items()}
    return ways
