"""Masks of constrained streams: filled beside the forward pass by the guide compiler, then put onto the logits.

A mask is [ceil(V / 32)] int32: bit `i % 32` of word `i // 32` tells whether id i may come next.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import torch

from lmtool.inference.engine.cpu.library import address, kernels
from lmtool.inference.engine.device import to_device
from lmtool.inference.engine.sampling_result import row_chunks
from lmtool.net.subprocesses.resources import lower_priority

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from lmtool.core.interfaces import Guide, GuideCompiler
    from lmtool.inference.engine.plan import Sequence as TokenSequence


class MaskedStream(Protocol):
    """A `stream.Stream`, as far as masks need it."""

    sequence: TokenSequence
    guide: Guide | None
    mask: Tensor | None


StreamT = TypeVar("StreamT", bound=MaskedStream)


class MaskFiller:
    """Fills masks in threads of its own. Used by the engine thread."""

    def __init__(self, guides: GuideCompiler, vocab_size: int) -> None:
        """vocab_size: V, the width of the logits."""
        self._guides = guides
        self._words = -(-vocab_size // 32)
        self._memory = np.zeros((0, self._words), np.int32)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lmtool-masks")
        self._slow_thread = ThreadPoolExecutor(1, thread_name_prefix="lmtool-slow-masks", initializer=lower_priority)

    def start(self, streams: Sequence[StreamT]) -> Callable[[], dict[StreamT, Tensor]]:
        """Start to fill masks for the constrained ones of these streams; call the result to wait for them.

        A stream gets [1 + d, ceil(V / 32)] int32 on CPU, what may follow its ids and each beginning of its draft of d
        ids. They are good until the next call of `start`.
        """
        prefetched = {stream: stream.mask for stream in streams if stream.mask is not None}
        for stream in prefetched:
            stream.mask = None
        constrained = [
            (stream, stream.guide, stream.sequence.draft)
            for stream in streams
            if stream.guide is not None and stream not in prefetched
        ]
        if not constrained:
            return lambda: prefetched
        counts = [1 + len(draft) for _, _, draft in constrained]
        if sum(counts) > len(self._memory):
            self._memory = np.zeros((sum(counts), self._words), np.int32)
        mask = self._memory[: sum(counts)]
        if len(mask) == len(constrained):
            rows = [(guide, row) for row, (_, guide, _) in enumerate(constrained)]
            filling = self._thread.submit(self._guides.fill, rows, mask)
        else:
            starts = (sum(counts[:index]) for index in range(len(constrained)))
            drafts = [(guide, start, draft) for start, (_, guide, draft) in zip(starts, constrained, strict=True)]
            filling = self._thread.submit(self._guides.fill_drafts, drafts, mask)

        def wait() -> dict[StreamT, Tensor]:
            filling.result()
            parts = torch.split(torch.from_numpy(mask), counts)
            return prefetched | {stream: part for (stream, _, _), part in zip(constrained, parts, strict=True)}

        return wait

    def prefetch(self, guide: Guide) -> Future[Tensor]:
        """Fill a slow stream's next mask while other streams go on: [1, ceil(V / 32)] int32.

        Leave the guide alone until then. One such mask is computed at a time: slow streams wait for each other.
        """
        return self._slow_thread.submit(self._fill_one, guide)

    def _fill_one(self, guide: Guide) -> Tensor:
        mask = np.zeros((1, self._words), np.int32)
        self._guides.fill([(guide, 0)], mask)
        return torch.from_numpy(mask)

    def close(self) -> None:
        """End the threads."""
        self._thread.shutdown()
        self._slow_thread.shutdown(cancel_futures=True)


def apply_masks(logits: Tensor, rows: list[int], masks: Tensor) -> None:
    """Make -inf, in these rows, every id whose bit is 0.

    logits: [R, V] float32, changed in place. masks: [len(rows), ceil(V / 32)] int32 on CPU.
    Without kernels, eight ids at a time by a table: 12 times as fast as shifting bits.
    """
    by_kernel = apply_masks_on_cpu if logits.device.type == "cpu" else apply_masks_on_gpu
    if by_kernel(logits, rows, masks):
        return
    table = to_device(_BYTE_TABLE, torch.float32, logits.device)
    octets = to_device(masks.view(torch.uint8), torch.int32, logits.device)
    for part in row_chunks(list(range(len(rows))), logits):
        added = table.index_select(0, octets[part[0] : part[-1] + 1].flatten()).view(len(part), -1)
        for row, own in zip(part, added, strict=True):
            logits[rows[row]] += own[: logits.shape[-1]]


def apply_masks_on_cpu(logits: Tensor, rows: list[int], masks: Tensor) -> bool:
    """`apply_masks` by the C kernel; False, and nothing done, where there is none."""
    library = kernels()
    if library is None or logits.dtype != torch.float32 or not logits.is_contiguous():
        return False
    at = torch.tensor(rows)
    count, width = masks.shape
    library.apply_masks(address(logits), address(at), address(masks), count, logits.shape[-1], width)
    return True


def apply_masks_on_gpu(logits: Tensor, rows: list[int], masks: Tensor) -> bool:
    """`apply_masks` by the Triton kernel; False, and nothing done, where there is no Triton."""
    try:
        from lmtool.inference.engine.cuda.kernels.logits import apply_masks as kernel
    except ImportError:
        return False
    device = logits.device
    kernel(logits, to_device(rows, torch.int64, device), to_device(masks.contiguous(), torch.int32, device))
    return True


_BITS = torch.arange(256).unsqueeze(1) >> torch.arange(8) & 1
_BYTE_TABLE = torch.zeros(256, 8, dtype=torch.float32).masked_fill_(_BITS == 0, float("-inf"))
"""[256, 8] float32: what eight ids get for a byte of a mask, lowest bit first; 0 or -inf."""
