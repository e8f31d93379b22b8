"""What a section is given: the settings, the device, and engines that are loaded when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lmtool.inference.engine.weights import find_device
from lmtool.measure.bench.device import Compiled, Device
from tests.lab.gpu.sections.resident import Resident

if TYPE_CHECKING:
    from tests.lab.gpu.settings import GpuBench


class Bench:
    """One worker's device, and its engine, of which there is one at a time."""

    def __init__(self, settings: GpuBench) -> None:
        """Raises `ResourceError` where there is no such device."""
        self.settings = settings
        self.device = Device(find_device(settings.device))
        self.compiled = Compiled()
        """Kernels compiled in threads of engines: while serving."""
        self._resident: Resident | None = None
        self._key: tuple[str, str] = ("", "")

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, keys and values."""
        dtype: torch.dtype = getattr(torch, self.settings.dtype)
        return dtype

    def engine(self, name: str | None = None, **more: Any) -> Resident:
        """The engine of this model with these further settings; it stays loaded until another one is asked for."""
        key = (name or self.settings.model, repr(sorted(more.items())))
        if self._resident is None or self._key != key:
            self.drop()
            self._resident, self._key = Resident(key[0], self.settings, self.device, **more), key
        return self._resident

    def drop(self) -> None:
        """Close the engine and free its memory."""
        if self._resident is not None:
            self._resident.close()
        self._resident = None
        self.device.free_bytes()
