"""Hears of models that are lost while they are in memory, such as together with their device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable


@runtime_checkable
class Losable(Protocol):
    """A model that may be lost while it is in memory, such as together with its device."""

    def on_lost(self, listener: Callable[[Exception], None]) -> None:
        """Call `listener` once, in any thread, when nothing can be computed any more, with the reason."""


def hear_of_loss(model: object, listener: Callable[[Exception], None] | None) -> None:
    """Have the listener called where a model is lost, if it is one that can be."""
    if isinstance(model, Losable) and listener is not None:
        model.on_lost(listener)
