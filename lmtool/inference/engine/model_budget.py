"""Decides which load may begin, and which idle model makes room for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import ModelLoadError
from lmtool.core.logprobs.numbers import size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lmtool.core.types import ModelInfo
    from lmtool.inference.engine.model_slot import ModelSlot

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 34 / 32, "int4": 18 / 32}


@dataclass(frozen=True, slots=True)
class ModelBudget:
    """How many models may be in memory at once, and how many bytes their weights may take together."""

    max_loaded: int | None = None
    memory_bytes: int | None = None
    max_loading: int = 4
    """Loads beside each other."""

    def has_room(self, slot: ModelSlot, resident: Sequence[ModelSlot]) -> bool:
        """Whether a model fits beside these, by what is known of their sizes."""
        if self.max_loaded is not None and len(resident) >= self.max_loaded:
            return False
        return self.memory_bytes is None or _bytes([*resident, slot]) <= self.memory_bytes

    def may_load(self, slot: ModelSlot, slots: Iterable[ModelSlot]) -> bool:
        """Whether the load of a model may begin now, beside the others as they are."""
        resident = [one for one in slots if one.phase in {"loading", "ready", "unloading"}]
        return sum(one.phase == "loading" for one in resident) < self.max_loading and self.has_room(slot, resident)

    def victim(self, slots: Iterable[ModelSlot], incoming: ModelSlot | None = None) -> ModelSlot | None:
        """The model to unload now: the one unused longest, where there is too little room; None: none, or none can go.

        incoming: the model that needs room; None: nothing does, and only what is beyond the budget goes.
        """
        staying = [one for one in slots if one.phase in {"loading", "ready"}]
        within = self.memory_bytes is None or _bytes(staying) <= self.memory_bytes
        enough = within if incoming is None else self.has_room(incoming, staying)
        idle = [one for one in staying if one.idle and not one.served.pinned]
        return None if enough else min(idle, key=lambda one: one.last_used, default=None)

    def refusal(self, slot: ModelSlot, slots: Iterable[ModelSlot]) -> ModelLoadError | None:
        """Why a model has no room even when all that may go has gone; None where it has."""
        pinned = [one for one in slots if one.served.pinned and one is not slot]
        if self.memory_bytes is None or _bytes([*pinned, slot]) <= self.memory_bytes:
            return None
        rest = f", of which pinned models take {size(_bytes(pinned))}" if pinned else ""
        needed, limit = size(_bytes([slot])), size(self.memory_bytes)
        return ModelLoadError(
            f"{slot.name} takes {needed}, and all models together may take {limit}{rest}",
            "start the server with a larger --memory",
        )


def _bytes(slots: Iterable[ModelSlot]) -> int:
    return sum(slot.memory_bytes or 0 for slot in slots)


def weight_bytes(info: ModelInfo) -> int | None:
    """Bytes of a loaded model's weights; None where the number or the type of its parameters is not known."""
    size = _ITEM_BYTES.get(info.dtype or "")
    return None if size is None or info.parameters is None else int(size * info.parameters)
