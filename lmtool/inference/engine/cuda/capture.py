"""Captures passes as CUDA graphs, all on one stream; where one fails, thread and allocator are as they were before.

On CPU, for tests, a "graph" is the pass itself.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

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
        """Let this thread's work go to `stream`: behind what is queued now, and before what is queued afterwards.

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
        """Undo what torch leaves behind where CUDA says that a capture is invalid.

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
