"""Masks of constrained streams, filled in a thread of their own while the forward pass runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from lmtool.engine.stream import Stream
    from lmtool.ports import GuideCompiler


class Masks:
    """Asks a compiler which tokens may come next. Used by the engine thread."""

    def __init__(self, guides: GuideCompiler, vocab_size: int) -> None:
        """vocab_size: V, the width of the logits."""
        self._guides = guides
        self._words = -(-vocab_size // 32)
        self._memory = np.zeros((0, self._words), np.int32)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lmtool-masks")

    def begin(self, streams: Sequence[Stream]) -> Callable[[], dict[Stream, Tensor]]:
        """Begin to fill masks for the constrained ones of a step's streams; call the result to wait for them.

        A mask is [ceil(V / 32)] int32 on CPU, and good until the next call of `begin`.
        """
        held = [stream for stream in streams if stream.guide is not None]
        if not held:
            return dict
        if len(held) > len(self._memory):
            self._memory = np.zeros((len(held), self._words), np.int32)
        mask = self._memory[: len(held)]
        rows = [(stream.guide, row) for row, stream in enumerate(held) if stream.guide is not None]
        filling = self._thread.submit(self._guides.fill, rows, mask)

        def wait() -> dict[Stream, Tensor]:
            filling.result()
            return dict(zip(held, torch.from_numpy(mask), strict=True))

        return wait

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()
