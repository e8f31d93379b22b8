"""What a library of automata must offer for constraints to be compiled and streams to be held by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lmtool.guide.config import GuideConfig
    from lmtool.guide.held_guide import HeldGuide
    from lmtool.types import Constraint


class Template(Protocol):
    """A compiled constraint, to be copied for each stream. Safe from any thread."""

    @property
    def size(self) -> int:
        """Estimated bytes in memory."""

    def guide(self) -> HeldGuide:
        """Return a fresh guide at the constraint's start."""


class Library(Protocol):
    """Makes templates for one tokenizer, and fills the masks of the guides that come of them. Safe from any thread."""

    def ready(self) -> None:
        """Block until `make` can begin in this thread; what takes time here is not the constraint's own fault.

        Raises `LmtoolError` where that will not be.
        """

    def make(self, constraint: Constraint) -> Template:
        """Compile a constraint and try it. Raises `ConstraintError`; must end within the limits of its settings."""

    def compute(self, rows: list[tuple[HeldGuide, int]], mask: NDArray[np.int32]) -> None:
        """Write which tokens may come next into each guide's row of the mask; never raises: see `HeldGuide.check`.

        mask: [rows, ceil(V / 32)] int32, contiguous. For one thread at a time, and for others beside it where each has
        a single row.
        """

    def close(self) -> None:
        """Compile nothing more; guides already made go on."""


Open: TypeAlias = Callable[[str, int, Sequence[int], "GuideConfig"], Library]
"""Opens a library for a model: the text of a tokenizer.json, the width of the logits, all eos ids, the settings.

May take seconds. Raises `ResourceError` where the tokenizer cannot be used.
"""
