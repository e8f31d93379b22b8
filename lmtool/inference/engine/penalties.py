"""Repetition, presence and frequency penalties and barred ids, in torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from lmtool.inference.engine.device import to_device

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from torch import Tensor

    from lmtool.core.types import SamplingParams


def penalise(
    logits: Tensor,
    params: SamplingParams,
    known_ids: Collection[int],
    counts: Mapping[int, int],
    barred: Collection[int],
) -> None:
    """Apply penalties, then make barred ids impossible. logits: [V], changed in place. The rest: see `sampler.Row`."""
    device = logits.device
    if params.repetition_penalty != 1 and known_ids:
        ids = to_device(list(known_ids), torch.int64, device)
        values = logits[ids]
        logits[ids] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if (params.presence_penalty or params.frequency_penalty) and counts:
        ids = to_device(list(counts), torch.int64, device)
        often = to_device(list(counts.values()), logits.dtype, device)
        logits[ids] -= params.presence_penalty + params.frequency_penalty * often
    if barred:
        logits.index_fill_(0, to_device(list(barred), torch.int64, device), float("-inf"))


@dataclass(slots=True, eq=False)
class TokenCounts:
    """How often each id is in a stream, on a device, where a kernel adds each id that it samples."""

    counts: Tensor
    """[V] int32: 1 where the stream has the id, prompt included, and 2 for each time that it was generated."""
    counted: int = 0
    """Tokens of the stream that are counted, those that are being sampled included."""
    sampled: dict[int, int | None] = field(default_factory=dict)
    """The last of these by index: the ids that the kernel added, once they were read; None before that, and where
    nothing was sampled."""

    @staticmethod
    def of(known_ids: Collection[int], counts: Mapping[int, int], vocabulary: int, device: torch.device) -> TokenCounts:
        """The counts of a row that belongs to no stream."""
        host = torch.zeros(vocabulary, dtype=torch.int32)
        host[list(known_ids)] = 1
        for token, count in counts.items():
            host[token] += 2 * count
        return TokenCounts(to_device(host, torch.int32, device))

    def update(self, tokens: Sequence[int], prompt_length: int, position: int) -> None:
        """Count what is known before the token at `position` is sampled, whose id the kernel will add.

        tokens: the stream's, up to there; without the last one where a kernel has added that already and it was not
        read yet, see `follows`. What was sampled, and then dropped instead of recorded, is taken back.
        """
        if not self.follows(tokens, position):
            assert len(tokens) >= position, "an id that only the device knows"
            self.counts.zero_()
            self.counted = 0
            self.sampled.clear()
        new = tokens[self.counted : position]
        if new:
            device, prompt = self.counts.device, max(prompt_length - self.counted, 0)
            ids = to_device(new, torch.int64, device)
            if generated := len(new) - prompt:
                twos = torch.full((generated,), 2, dtype=torch.int32, device=device)
                self.counts.index_add_(0, ids[prompt:], twos)
            self.counts.index_put_((ids,), self.counts[ids] | 1)
        self.counted = position + 1
        self.sampled = {index: token for index, token in self.sampled.items() if index >= len(tokens)}
        self.sampled[position] = None

    def follows(self, tokens: Sequence[int], position: int) -> bool:
        """Whether nothing must be taken back before the token at `position` is sampled, and all before it is known.

        tokens: the stream's that were recorded; what is sampled behind them is counted, but not read yet.
        """
        if position != self.counted and not self.counted <= position <= len(tokens):
            return False
        recorded = len(tokens)
        return all(index >= recorded or tokens[index] == token for index, token in self.sampled.items())

    def note_read(self, index: int, token: int) -> None:
        """Note which id the kernel has added at this index; one of a step that was dropped since is of no effect."""
        if index in self.sampled:
            self.sampled[index] = token
