"""How kernels are launched: whether one may start before the one in front of it has ended.

Between two kernels a GPU is idle for a microsecond: the last programs of one end before the first of the next are on
their way. From compute capability 9.0 on a kernel may be launched early, "programmatic dependent launch" of the CUDA
C++ Programming Guide: its programs start as soon as those in front have all begun, do what depends on nothing, such as
loading weights, and wait then until the kernels in front have ended. For one stream of an 8B model that is 2 % of a
step's products alone (NVIDIA H200).

Each kernel that is launched so must wait before it reads what another kernel has written, and before it writes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

_EARLY: dict[str, Any] = {"EARLY": True, "launch_pdl": True}
_IN_ORDER: dict[str, Any] = {"EARLY": False}


def launch_settings(device: torch.device) -> Mapping[str, Any]:
    """The settings of a launch: `EARLY` for the kernel, and what Triton calls it."""
    return _EARLY if starts_early(device) else _IN_ORDER


@lru_cache
def starts_early(device: torch.device) -> bool:
    """Whether this device launches kernels early."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
