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
        """Begin to fill masks for the constrained ones of these streams; call the result to wait for them.

        A stream gets [1 + d, ceil(V / 32)] int32 on CPU, what may follow its ids and each beginning of its draft of d
        ids. They are good until the next call of `begin`.
        """
        held = [(stream, stream.guide, stream.sequence.draft) for stream in streams if stream.guide is not None]
        if not held:
            return dict
        counts = [1 + len(draft) for _, _, draft in held]
        if sum(counts) > len(self._memory):
            self._memory = np.zeros((sum(counts), self._words), np.int32)
        mask = self._memory[: sum(counts)]
        if len(mask) == len(held):
            rows = [(guide, row) for row, (_, guide, _) in enumerate(held)]
            filling = self._thread.submit(self._guides.fill, rows, mask)
        else:
            starts = (sum(counts[:index]) for index in range(len(held)))
            drafts = [(guide, start, draft) for start, (_, guide, draft) in zip(starts, held, strict=True)]
            filling = self._thread.submit(self._guides.fill_drafts, drafts, mask)

        def wait() -> dict[Stream, Tensor]:
            filling.result()
            parts = torch.split(torch.from_numpy(mask), counts)
            return {stream: part for (stream, _, _), part in zip(held, parts, strict=True)}

        return wait

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()
