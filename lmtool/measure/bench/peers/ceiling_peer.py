"""What the machine can do at all: reading speed of memory, and arithmetic of matrix products."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.measure.bench.device import Device

READ_BYTES = 512 * 1024 * 1024
GPU_READ_BYTES, GPU_SIZE = 4 << 30, 8192
"""On a GPU: more than its cache holds; the side of square matrices."""
ROWS, SIZE = 256, 2048
"""Shape of the measured products: [256, 2048] by [2048, 2048]."""


class Peer:
    """The reference kernels, on as many threads as the engines, or on their GPU."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `threads`, `device` (cpu where it is missing)."""
        import torch

        torch.set_num_threads(settings["threads"])
        self._device: Device | None = None
        if settings.get("device", "cpu") != "cpu":
            from lmtool.measure.bench.device import Device

            self._device = Device(torch.device(settings["device"]))
        size = GPU_READ_BYTES if self._device else READ_BYTES
        self._read = torch.ones(size // 4, device=settings.get("device", "cpu"))

    def about(self) -> dict[str, Any]:
        """Torch's version, and a GPU's name."""
        import torch

        name = {} if self._device is None else {"device": self._device.describe()["name"]}
        return {"versions": {"torch": str(torch.__version__)}, **name}

    def bandwidth(self, seconds: float) -> dict[str, Any]:
        """`bytes_per_s` of a sum over 512 MB, on a GPU 4 GB: the median over this time; the calibration of a round."""
        return {"bytes_per_s": self._read.nbytes / self._time(self._read.sum, seconds)}

    def _time(self, work: Callable[[], Any], seconds: float) -> float:
        """Median duration of a call on the device."""
        return _median_time(work, seconds) if self._device is None else self._device.times(work, seconds).median

    def product(self, dtype: str, seconds: float) -> dict[str, Any]:
        """`flop_per_s` of the fastest product known here for a dtype; 2 per multiply and add."""
        import torch

        if self._device is not None:
            inputs = torch.ones(GPU_SIZE, GPU_SIZE, dtype=getattr(torch, dtype), device=self._device.device)
            fastest = self._time(lambda: torch.nn.functional.linear(inputs, inputs), seconds)
            return {"flop_per_s": 2 * GPU_SIZE**3 / fastest}
        if dtype in {"int8", "int4"}:  # bytes are multiplied in both
            left, right = (torch.ones(n, SIZE, dtype=torch.int8) for n in (ROWS, SIZE))
            ways: list[Callable[[], Any]] = [lambda: torch._int_mm(left, right.t())]  # noqa: SLF001  # no public way
        else:
            inputs, weight = (torch.ones(n, SIZE, dtype=getattr(torch, dtype)) for n in (ROWS, SIZE))
            ways = [lambda: torch.nn.functional.linear(inputs, weight)]
            if dtype in {"float32", "bfloat16"}:
                with contextlib.suppress(AttributeError, RuntimeError):  # another torch, a processor without the format
                    packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)  # noqa: SLF001  # as the engine does
                    ways.append(lambda: torch.ops.mkldnn._linear_pointwise(inputs, packed, None, "none", [], ""))  # noqa: SLF001
        fastest = min(_median_time(way, seconds / len(ways)) for way in ways)
        return {"flop_per_s": 2 * ROWS * SIZE * SIZE / fastest}


def _median_time(work: Callable[[], Any], seconds: float) -> float:
    """Median duration of a call, over `seconds` and at least three calls; one more to warm up."""
    work()
    durations: list[float] = []
    end = time.perf_counter() + seconds
    while len(durations) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        durations.append(time.perf_counter() - start)
    return sorted(durations)[len(durations) // 2]
