"""Masks of constrained streams, filled in a thread of their own while the forward pass runs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch

from lmtool.subprocesses.background import step_back

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from lmtool.engine.stream import Stream
    from lmtool.interfaces import Guide, GuideCompiler


class Masks:
    """Asks a compiler which tokens may come next. Used by the engine thread."""

    def __init__(self, guides: GuideCompiler, vocab_size: int) -> None:
        """vocab_size: V, the width of the logits."""
        self._guides = guides
        self._words = -(-vocab_size // 32)
        self._memory = np.zeros((0, self._words), np.int32)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lmtool-masks")
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="lmtool-slow-masks", initializer=step_back)

    def begin(self, streams: Sequence[Stream]) -> Callable[[], dict[Stream, Tensor]]:
        """Begin to fill masks for the constrained ones of these streams; call the result to wait for them.

        A stream gets [1 + d, ceil(V / 32)] int32 on CPU, what may follow its ids and each beginning of its draft of d
        ids. They are good until the next call of `begin`.
        """
        known = {stream: stream.mask for stream in streams if stream.mask is not None}
        for stream in known:
            stream.mask = None
        held = [
            (stream, stream.guide, stream.sequence.draft)
            for stream in streams
            if stream.guide is not None and stream not in known
        ]
        if not held:
            return lambda: known
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
            return known | {stream: part for (stream, _, _), part in zip(held, parts, strict=True)}

        return wait

    def look_ahead(self, guide: Guide) -> Future[Tensor]:
        """Find out what may come next where nobody waits for it: [1, ceil(V / 32)] int32.

        Leave the guide alone until then. One such mask is computed at a time: slow streams wait for each other.
        """
        return self._aside.submit(self._look, guide)

    def _look(self, guide: Guide) -> Tensor:
        mask = np.zeros((1, self._words), np.int32)
        self._guides.fill([(guide, 0)], mask)
        return torch.from_numpy(mask)

    def close(self) -> None:
        """End the threads."""
        self._thread.shutdown()
        self._aside.shutdown(cancel_futures=True)
