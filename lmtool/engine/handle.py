"""What who submitted a stream holds of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Wish: TypeAlias = Literal["cancel", "pause", "resume"]


class Handle:
    """An `interfaces.StreamHandle`: what it is told, the engine thread does before its next step."""

    def __init__(self, tell: Callable[[Wish], object]) -> None:
        self._tell = tell

    def cancel(self) -> None:
        """End the stream within one step."""
        self._tell("cancel")

    def pause(self) -> None:
        """Produce nothing more until `resume`; the stream keeps its place."""
        self._tell("pause")

    def resume(self) -> None:
        """Go on after `pause`."""
        self._tell("resume")
