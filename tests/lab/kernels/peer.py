"""Our C kernels' matrix products beside torch's, on weights that no cache holds, and what the processor can do."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from lmtool.inference.engine.cpu.products import PackedProduct

COPIED_BYTES = 192 * 1024 * 1024
"""Packed weights of one format: more than a cache holds, so that one row is bound by memory, as in a model."""
READ_BYTES = 512 * 1024 * 1024
SPINS = 200_000


class Peer:
    """Products of one shape, in every format."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `threads`, `out` and `in` of the weights. Raises `ResourceError` where there are no C kernels."""
        import torch

        from lmtool.core.errors import ResourceError
        from lmtool.inference.engine.cpu.library import find_kernels

        library = find_kernels()
        if isinstance(library, ResourceError):
            raise library
        torch.set_num_threads(settings["threads"])
        library.use_threads(settings["threads"])
        self._kernels = library
        generator = torch.Generator().manual_seed(0)
        self._weight = torch.randn(settings["out"], settings["in"], generator=generator) * 0.05
        self._inputs = torch.randn(256, settings["in"], generator=generator)
        self._read = torch.ones(READ_BYTES // 4)
        self._clock = time.thread_time if settings["threads"] == 1 else time.perf_counter  # others may have work, too
        self._format = ""
        self._ways: dict[str, list[Callable[[Tensor], object]]] = {}
        self._bytes = 0

    def about(self) -> dict[str, Any]:
        """Torch's version, and the instructions of the kernels."""
        import torch

        return {"versions": {"torch": str(torch.__version__)}, "kernels": self._kernels.name}

    def bandwidth(self) -> dict[str, Any]:
        """`bytes_per_s` of a sum over 512 MB."""
        return {"bytes_per_s": READ_BYTES / _duration(self._read.sum, 0.2, self._clock)}

    def ceiling(self, kind: str) -> dict[str, Any]:
        """`op_per_s` of one thread that multiplies and adds in registers alone."""
        from lmtool.inference.engine.cpu import library

        number = getattr(library, kind.upper())
        operations = self._kernels.spin(number, SPINS)
        return {"op_per_s": operations / _duration(lambda: self._kernels.spin(number, SPINS), 0.1, time.thread_time)}

    def product(self, kind: str, way: str, rows: int, seconds: float) -> dict[str, Any]:
        """`seconds` of a product and `bytes` of its weights; None of a way that there is not. way: `ours`, `torch`."""
        if kind != self._format:
            self._prepare(kind)
        if not self._ways[way]:
            return {"seconds": None, "bytes": self._bytes}
        inputs = self._inputs[:rows].contiguous()

        def all_weights() -> None:
            for one in self._ways[way]:
                one(inputs)

        return {"seconds": _duration(all_weights, seconds, self._clock) / len(self._ways[way]), "bytes": self._bytes}

    def _prepare(self, kind: str) -> None:
        """Lay out the weights of a format, for us and for torch; those of the last one are freed."""
        import torch

        from lmtool.inference.engine.cpu.products import multiply, pack

        self._ways = {"ours": [], "torch": []}
        packed = pack(self._kernels, self._weight, None, getattr(torch, kind))
        self._kernels.use_threads(torch.get_num_threads())
        self._format, self._bytes = kind, packed.weights.nbytes
        copies = [packed, *(self._copied(packed) for _ in range(COPIED_BYTES // self._bytes))]
        self._ways["ours"] = [partial(multiply, self._kernels, one) for one in copies]
        if kind in {"float32", "bfloat16"} and hasattr(torch.ops.mkldnn, "_linear_pointwise"):  # torch with oneDNN
            with contextlib.suppress(RuntimeError):  # a processor without the format
                self._ways["torch"] = self._onednn(getattr(torch, kind), len(copies))

    def _copied(self, packed: PackedProduct) -> PackedProduct:
        from lmtool.inference.engine.cpu.products import WeightMemory

        weights = WeightMemory(self._kernels).empty(*packed.weights.shape, dtype=packed.weights.dtype)
        return replace(packed, weights=weights.copy_(packed.weights))

    def _onednn(self, dtype: Any, copies: int) -> list[Callable[[Tensor], object]]:
        """Products with as many weights in oneDNN's own layout; inputs and results are float32, as ours."""
        import torch

        from lmtool.inference.engine.batch_invariant import PackedLinear

        layers = [PackedLinear(self._weight.to(dtype), None) for _ in range(copies)]

        def product(layer: PackedLinear, inputs: Tensor) -> Tensor:
            with torch.inference_mode():
                result: Tensor = layer(inputs.to(dtype)).float()
                return result

        product(layers[0], self._inputs[:2])
        return [partial(product, layer) for layer in layers]


def _duration(work: Callable[[], object], seconds: float, clock: Callable[[], float]) -> float:
    """Median duration of a call, over `seconds` and at least two calls; one more to warm up."""
    work()
    durations: list[float] = []
    end = clock() + seconds
    while len(durations) < 2 or clock() < end:
        start = clock()
        work()
        durations.append(clock() - start)
    return sorted(durations)[len(durations) // 2]
