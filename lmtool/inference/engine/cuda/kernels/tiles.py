"""How kernels are launched: in CUDA graphs, early or in order, and with which tiles, warps and pipeline depth.

On CPU, for tests, a "graph" is the pass itself. All graphs of a model are captured on one stream; where a capture
fails, thread and allocator are as they were before.

Between two kernels a GPU is idle for a microsecond: the last programs of the first end before those of the second
start. From compute capability 9.0 on a kernel may be launched early, "programmatic dependent launch" of the CUDA C++
Programming Guide: its programs start once those of the kernels before it have all begun, do what depends on nothing,
such as loading weights, and then wait until the earlier kernels have ended. For one stream of an 8B model that saves 2
% of a step's products alone (NVIDIA H200). A kernel launched early must wait before it reads what another kernel has
written, and before it writes.

Tiles depend on the dtype, on D (head size, the larger one of keys and values) and on the shared memory that a block of
this GPU may use, and on nothing that changes while a model is served. `tests/inference/engine/cuda/compile_kernels.py`
compiles each for compute capability 8.0, 9.0 and 10.0, and shows its registers, spills and shared memory.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_logger = logging.getLogger(__name__)

Replay: TypeAlias = Callable[[], None]

_idle: dict[torch.device, list[torch.cuda.Stream]] = {}
"""Streams on which nobody captures, and whose graphs are gone: cuBLAS keeps 32 MB for each that it ever computed on."""

_broken: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture CUDA refused to end: torch's allocators may still ask them whether an allocation is theirs."""


class CaptureStream:
    """One stream, and so one cuBLAS workspace, for all graphs of a model, and one pool of memory for their passes.

    Keep it for as long as its graphs are replayed: afterwards its stream is another one's.
    """

    def __init__(self, device: torch.device) -> None:
        """device: of the passes. On CPU nothing is captured."""
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        if device.type == "cuda":
            gc.collect()
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
            self._stream = _stream(device)
            weakref.finalize(self, _idle[device].append, self._stream)
            self._pool = torch.cuda.graph_pool_handle()

    def new_pool(self) -> None:
        """Let the graphs captured from now on have memory of their own, which they can be freed with."""
        if self._stream is not None:
            self._pool = torch.cuda.graph_pool_handle()

    def capture(self, run: Replay) -> Replay:
        """A function that replays the kernels of `run` without its Python; on CPU `run` itself.

        `run` is called twice: kernels are compiled and libraries set up by the time of its capture. What it reads and
        writes must stay in place for as long as the function is used. Raises what `run` or CUDA raises; nothing that
        was captured before is touched then, the thread is on its stream again, and memory is given back.
        """
        if self._stream is None:
            run()
            return run
        with self._side_stream(self._stream):
            run()
            graph = torch.cuda.CUDAGraph()
            try:
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                run()
            except BaseException:
                self._abandon(graph)
                raise
            try:
                graph.capture_end()
            except BaseException:
                self._clean_up(graph)
                raise
        return graph.replay

    @contextlib.contextmanager
    def _side_stream(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """Let this thread's work go to `stream`: after what is queued now, and before what is queued afterwards.

        `torch.cuda.graph` does not leave its stream where the capture cannot be ended.
        """
        own = torch.cuda.current_stream(self._device)
        stream.wait_stream(own)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            own.wait_stream(stream)

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture whose pass failed."""
        try:
            graph.capture_end()
        except RuntimeError:
            self._clean_up(graph)
        else:
            graph.reset()

    def _clean_up(self, graph: torch.cuda.CUDAGraph) -> None:
        """Undo what torch leaves behind where CUDA reports an invalid capture.

        Before torch 2.12 `capture_end` raises before it tells the allocator that the capture has ended
        (github.com/pytorch/pytorch/pull/180395), and the pool is never released. Random numbers are refused until
        another capture has ended.
        """
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        try:
            torch._C._cuda_endAllocateToPool(index, self._pool)  # noqa: SLF001  # there is no public way
        except RuntimeError:  # this torch has done it
            graph.reset()
        else:
            torch._C._cuda_releasePool(index, self._pool)  # noqa: SLF001  # see above
            _broken.append(graph)
        try:
            empty = torch.cuda.CUDAGraph()
            mark = torch.zeros(1, device=self._device)
            empty.capture_begin(capture_error_mode="thread_local")
            mark.zero_()
            empty.capture_end()
        except RuntimeError as problem:
            _logger.warning("no CUDA graph can be captured any more: %s", problem)


def _stream(device: torch.device) -> torch.cuda.Stream:
    """One that no other graphs were captured on, of those that are still replayed."""
    try:
        return _idle.setdefault(device, []).pop()
    except IndexError:
        return torch.cuda.Stream(device)


_EARLY: dict[str, Any] = {"EARLY": True, "launch_pdl": True}
_IN_ORDER: dict[str, Any] = {"EARLY": False}


def launch_settings(device: torch.device) -> Mapping[str, Any]:
    """The settings of a launch: `EARLY` for the kernel, and what Triton calls it."""
    return _EARLY if starts_early(device) else _IN_ORDER


@lru_cache
def starts_early(device: torch.device) -> bool:
    """True if this device launches kernels early."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


HOPPER_SHARED = 227 * 1024
"""Bytes of shared memory that a block may use from compute capability 9.0 on; 8.0 has 163 KB, 8.6 and 8.9 have 99."""

_LEAST_SHARED = 99 * 1024
"""Shared memory of every GPU that Triton compiles for, but for a few kilobytes."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """The shape of an attention kernel's program."""

    queries: int
    """Queries computed together; of the decode kernel, the query heads of a key head."""
    keys: int
    """Keys looked at together."""
    warps: int
    stages: int
    """Triton's `num_stages`: how many steps of the loop over keys are in flight."""

    def shared(self, itemsize: int, size: int, buffers: int) -> int:
        """Bytes of shared memory for queries and for this number of tiles of keys and of values; Triton adds some.

        itemsize: of a key, in bytes. size: D.
        """
        return itemsize * _padded(size) * (self.queries + 2 * buffers * self.keys)


def prefill_buffers(tiles: Tiles) -> int:
    """Number of tiles of keys, and of values, that the prefill kernel has in shared memory at most."""
    return max(tiles.stages - 1, 1)


def decode_buffers(tiles: Tiles) -> int:
    """Number of tiles of the decode kernel: pages are looked up a stage before their keys are loaded."""
    return max((tiles.stages - 1) // 2, 1)


def prefill_tiles(dtype: torch.dtype, size: int, shared: int) -> Tiles:
    """Tiles of the prefill kernel. dtype: of queries. size: D. shared: bytes that a block may use."""
    if dtype == torch.float32:
        # Products on the arithmetic units of single numbers: a thread holds all of D for its part of a tile, and more
        # would not fit into its registers.
        return Tiles(queries=16, keys=16, warps=4 if _padded(size) <= 64 else 8, stages=1)
    wide = _padded(size) > 128
    if _padded(size) > 256:
        return _first_that_fits([Tiles(32, 32, 8, 2), Tiles(16, 16, 4, 2)], prefill_buffers, dtype, size, shared)
    choices = [
        Tiles(queries=64, keys=64, warps=8 if wide else 4, stages=3),
        Tiles(queries=64, keys=32, warps=8 if wide else 4, stages=3),
        Tiles(queries=32, keys=32, warps=8 if wide else 4, stages=2),
        Tiles(queries=16, keys=16, warps=4, stages=2),
    ]
    return _first_that_fits(choices, prefill_buffers, dtype, size, shared)


def decode_tiles(dtype: torch.dtype, size: int, rows: int, shared: int) -> list[Tiles]:
    """Tiles of the decode kernel, the likely best first; the fastest of them is found on the device.

    dtype: of keys. size: D. rows: query heads of a key head. shared: bytes that a block may use.
    """
    queries = max(16, _padded(rows))
    if dtype == torch.float32:
        keys = 32 if _padded(size) <= 128 else 16
        return [Tiles(queries, keys, warps=4 if _padded(size) <= 128 else 8, stages=3)]
    warps = 8 if queries > 32 or _padded(size) > 256 else 4
    # Wider heads with 64 keys would need more registers than a thread has.
    choices = [Tiles(queries, keys, warps, stages=2) for keys in ((64, 32, 16) if _padded(size) <= 128 else (32, 16))]
    best = _first_that_fits(choices, decode_buffers, dtype, size, shared)
    deep = replace(best, stages=5)
    return [best, deep] if deep.shared(dtype.itemsize, size, decode_buffers(deep)) <= shared else [best]


def _first_that_fits(
    choices: Sequence[Tiles], buffers: Callable[[Tiles], int], dtype: torch.dtype, size: int, shared: int
) -> Tiles:
    fitting = (tiles for tiles in choices if tiles.shared(dtype.itemsize, size, buffers(tiles)) <= shared)
    return next(fitting, choices[-1])


def _padded(size: int) -> int:
    """The next power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


@lru_cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a block may use; those of compute capability 9.0 where there is no GPU."""
    if device.type != "cuda":
        return HOPPER_SHARED
    known = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", None)
    return int(known) if known else _LEAST_SHARED


def fastest(choices: Sequence[Tiles], run: Callable[[Tiles], object], device: torch.device) -> Tiles:
    """The choice with which `run` takes the least time on the GPU; the first one elsewhere.

    A choice that does not run is left out. Waits for the device: not while a CUDA graph is captured.
    """
    if device.type != "cuda" or len(choices) == 1:
        return choices[0]
    stream = CaptureStream(device)
    times = {tiles: _time(run, tiles, stream) for tiles in choices}
    return min(times, key=lambda tiles: times[tiles])


_RUNS = 5
"""Number of times that a choice is timed; the shortest counts."""


def _time(run: Callable[[Tiles], object], tiles: Tiles, stream: CaptureStream) -> float:
    """Milliseconds; infinite for tiles that do not run here. As a CUDA graph: a launch takes longer than the kernel."""

    def runs() -> None:
        for _ in range(_RUNS):
            run(tiles)

    try:
        run(tiles)  # compiled by then
        replay = stream.capture(runs)
        times: list[float] = []
        for _ in range(_RUNS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            replay()
            end.record()
            end.synchronize()
            times.append(float(begin.elapsed_time(end)))
    except Exception:  # noqa: BLE001  # whatever Triton raises for a kernel that does not fit means: not this one
        return float("inf")
    return min(times)
