"""The measured program of `lab host`: the engine, its Python and all, over a forward pass that costs nothing.

Runs the lmtool of the folder in its first argument, this one or another version; that folder's engine and the standard
library are all it imports. Calls and answers are JSON lines, as in `peers.worker`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from lmtool.core.types import TokenOutput
    from lmtool.inference.engine.engine import Engine
    from lmtool.inference.engine.model_runner import Batch

SAMPLING: dict[str, dict[str, float]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "top-k": {"temperature": 0.8, "top_k": 40},
    "top-p": {"temperature": 0.8, "top_p": 0.9},
}
PAGED, GRAPHS = "paged", "graphs"
VOCABULARY = 256
"""Few ids: what grows with them is the sampler's arithmetic, which is not the host's on a GPU."""
UNTIMED = 8
"""Full steps at the beginning that are not timed."""
SPARE = 64
"""Tokens that streams may have beyond the timed ones."""


class FreeForward:
    """Gives logits that were made before, and takes the time of its thread at each step."""

    def __init__(self, streams: int, steps: int, done: Callable[[], object]) -> None:
        """streams: rows of a full step. steps: full ones to time. done: called once, in the engine's thread."""
        import torch

        self._table = torch.randn(streams + 4099, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 4
        """[rows, V]; another part of it at each step, so that no text repeats itself."""
        self._full, self._left, self._done = streams, UNTIMED + steps, done
        self._turn, self._last = 0, 0.0
        self.rows = 0
        """Of the last pass."""
        self.running = False
        """True if steps count; before that a runner may check that it computes the same twice."""
        self.seconds: list[float] = []
        """CPU time of the thread from one full step to the next."""

    def logits(self, batch: Batch, attention: object) -> Tensor:  # see `Forward`
        """[rows, V] float32."""
        rows = self.rows = batch.logits
        self.begin(rows)
        if self.running:
            self._turn = (self._turn + rows + 1) % (len(self._table) - rows)
        return self._table[self._turn : self._turn + rows]

    def begin(self, rows: int) -> None:
        """Note that a step of this many rows begins."""
        now = time.thread_time()
        if not self.running:
            return
        if rows >= self._full and self._left > 0:
            if self._last:
                self.seconds.append(now - self._last)
                self._left -= 1
                if not self._left:
                    self._done()
            self._last = now
        else:
            self._last = 0.0


class Host:
    """What `lab host` calls."""

    def about(self) -> dict[str, Any]:
        """Versions, and the folder that lmtool was imported from."""
        import torch

        import lmtool

        torch.set_num_threads(1)
        folder = Path(lmtool.__file__).parents[1]
        return {
            "lmtool": lmtool.__version__,
            "folder": str(folder),
            "torch": str(torch.__version__),
            "python": sys.version.split()[0],
            "triton": find_spec("triton") is not None,
            "graphs": (folder / "lmtool/inference/engine/cuda/sampling.py").is_file(),
        }

    def measure(self, runner: str, streams: int, sampling: str, context: int, steps: int) -> dict[str, Any]:
        """Microseconds of CPU time that the engine's thread takes for a step of all streams, the mean of these steps.

        runner: `cpu`, `paged` or `graphs`, the latter two the GPU's on CPU tensors. In `paged` a captured step is the
        plain pass, and sampling is the CPU's. In `graphs` a captured step samples, and costs nothing: what is measured
        is what the host does beside the CUDA graph, records of the rows and reading included, but without CUDA's own
        calls. Versions whose CUDA graphs do not sample have no such runner.
        context: tokens of the longest prompt; the others are up to 15 shorter, so that they need blocks by turns.
        """
        return {"us": 1e6 * asyncio.run(_measure(runner, streams, sampling, context, steps))}


async def _measure(runner: str, streams: int, sampling: str, context: int, steps: int) -> float:
    """Seconds a step."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    forward = FreeForward(streams, steps, partial(loop.call_soon_threadsafe, done.set))
    longest = context + UNTIMED + steps + SPARE
    with _without_kernels(runner, forward):
        engine = _engine(forward, runner, streams, longest)
        forward.running = True
        await _generate(engine, streams, sampling, context, longest, done)
    timed = forward.seconds[UNTIMED:]
    return sum(timed) / len(timed)


async def _generate(
    engine: Engine, streams: int, sampling: str, context: int, longest: int, done: asyncio.Event
) -> None:
    """Run the streams until it is done. longest: positions that each may have."""
    from lmtool.core.types import GenerateRequest, SamplingParams

    gc.collect()
    gc.freeze()  # as a server does: what was imported is not looked through again
    engine.start()
    params: dict[str, Any] = SAMPLING[sampling]
    problems: list[str] = []

    def sink(outputs: Sequence[TokenOutput]) -> None:
        for output in outputs:
            if output.last:  # none ends before its time
                problems.append(output.error or str(output.finish_reason))
                done.set()

    try:
        for number in range(streams):
            prompt = tuple(3 + (number * 7 + place * 11) % (VOCABULARY - 3) for place in range(context - number % 16))
            settings = SamplingParams(max_tokens=longest - len(prompt), ignore_eos=True, seed=number, **params)
            engine.submit(GenerateRequest(number, prompt, settings), sink)
        await done.wait()
        if problems:
            raise RuntimeError(f"a stream ended early: {problems[0]}")
    finally:
        await asyncio.to_thread(engine.close)


def _engine(forward: FreeForward, kind: str, streams: int, longest: int) -> Engine:
    """An engine as `load_engine` makes it, but for the forward pass."""
    import torch

    from lmtool.core.types import ModelInfo
    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.engine import Engine
    from lmtool.inference.engine.kv_cache import BLOCK_TOKENS, KVCache, LayerShape, PagedCache
    from lmtool.inference.engine.model_runner import ModelRunner
    from lmtool.inference.engine.plan import Limits

    paged, cpu = kind in {PAGED, GRAPHS}, torch.device("cpu")
    blocks = streams * (-(-longest // BLOCK_TOKENS) + 1)
    layers = [(object(), LayerShape(1, 1, 1))]
    cache = (PagedCache if paged else KVCache)(layers, blocks, torch.float32, cpu)
    runner: ModelRunner
    if paged:
        from lmtool.inference.engine.cuda.attention_backends import AttentionBackend
        from lmtool.inference.engine.cuda.runner import CudaRunner

        backend = AttentionBackend("Triton", cast("Any", _never), "Triton", cast("Any", _never))
        runner = CudaRunner(forward, cache, cpu, BLOCK_TOKENS, 1, backend, deterministic=False)
        with torch.inference_mode():
            runner = runner.prepared(streams, longest, **({"samples": True} if kind == GRAPHS else {}))
        assert kind == PAGED or getattr(runner, "samples_ahead", False), "captured steps do not sample"
    else:
        runner = ModelRunner(forward, cache, cpu, BLOCK_TOKENS, 1, free_cuts=True)
    newer = {"cache_generated": True}  # unknown to older versions
    limits = Limits(
        max_streams=streams,
        max_batch_tokens=streams * longest,  # all prompts in one step: none is timed
        chunk_tokens=BLOCK_TOKENS,
        block_tokens=BLOCK_TOKENS,
        max_scored_rows=512,
        free_cuts=runner.free_cuts,
        **{name: value for name, value in newer.items() if name in {field.name for field in fields(Limits)}},
    )
    info = ModelInfo(
        model="free",
        constructor="",
        backend="transformers",
        vocab_size=VOCABULARY,
        context_length=longest,
        bos_token_id=1,
        eos_token_ids=(2,),
    )
    return Engine(runner, limits, blocks, info, EngineConfig(threads=1, speculation=not paged))


@contextmanager
def _without_kernels(kind: str, forward: FreeForward) -> Iterator[None]:
    """Launch nothing in captured steps: what is in a graph is the GPU's time, and this has none to run it.

    Those of `graphs` give each row the id 0.
    """
    with ExitStack() as stack:
        with suppress(ImportError):  # in versions whose graphs have no such kernel
            rows = import_module("lmtool.inference.engine.cuda.graphs")
            stack.enter_context(patch.object(rows, "place_rows", _do_nothing))  # called at each step: no slow mock
        if kind == GRAPHS:
            kernels = import_module("lmtool.inference.engine.cuda.kernels.sampling")
            stack.enter_context(patch.object(kernels, "sample_rows", partial(_sample_nothing, kernels.Samples)))
            stack.enter_context(patch.object(kernels, "count_tokens", _do_nothing))
            capture = import_module("lmtool.inference.engine.cuda.kernels.tiles").CaptureStream
            stack.enter_context(patch.object(capture, "capture", lambda _, run: _captured(run, forward)))
        yield


def _do_nothing(*_: object) -> None:
    """In place of a kernel."""


def _sample_nothing(
    kind: Any, _: Tensor, table: Tensor, *__: Tensor, samples: object = None, cuts: bool
) -> object:  # see `kernels.sampling`
    """Tokens and logprobs 0, as a GPU's memory has them that nothing was written to. kind: `Samples`."""
    import torch

    rows = len(table)
    return samples or kind(torch.zeros(rows, dtype=torch.int64), *torch.zeros(2, rows, 4, dtype=torch.int32))


def _captured(run: Callable[[], None], forward: FreeForward) -> Callable[[], None]:
    """A captured step without its kernels: nothing happens, but that a step begins."""
    run()
    return partial(forward.begin, forward.rows)


def _never(*_arguments: object) -> Tensor:
    """The forward pass asks for no attention."""
    raise AssertionError


def main(words: Sequence[str]) -> None:
    """Serve calls from stdin until its end. words: the folder with the lmtool to measure."""
    sys.path.insert(0, words[0])
    wire = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever libraries print is no answer
    host = Host()
    _answer(wire, host.about)
    for line in sys.stdin:
        method, arguments = json.loads(line)
        _answer(wire, partial(getattr(host, method), **arguments))


def _answer(wire: TextIO, call: Callable[[], dict[str, Any]]) -> None:
    try:
        answer = call()
    except Exception as problem:  # noqa: BLE001  # whatever it is, the program that started this one reports it
        answer = {"error": f"{type(problem).__name__}: {problem}"}
    wire.write(json.dumps(answer) + "\n")
    wire.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
