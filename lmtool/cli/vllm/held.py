"""Which rows of vLLM's batch are held, and to what: masks, foreign processors, and what the worker is told of them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lmtool.cli.vllm.told import Step, parts_of
from lmtool.errors import LmtoolError, ServerError
from lmtool.logits_processors import Processors, processors_from

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lmtool.cli.vllm.told import Best, Teller
    from lmtool.interfaces import Guide, GuideCompiler

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_TABLE = np.where(_BITS == 1, np.float32(0), np.float32(-np.inf))
"""[256, 8] float32: what eight ids get for a byte of a mask, lowest bit first."""


@dataclass(eq=False, slots=True)
class HeldRow:
    """One stream that is held."""

    name: str
    output: Sequence[int]
    """Generated ids, vLLM's own list: it grows; an id that is not known yet is -1."""
    guide: Guide | None = None
    processors: Processors | None = None
    bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop_ids: Sequence[int] = ()
    """Ids that end the stream beside eos: like these, they are not picked before `min_tokens`."""
    ignore_eos: bool = False
    best: int | None = None
    """Alternatives to tell of under bias and constraint; None tells no logprobs."""
    followed: int = 0
    """How many of `output` the guide has taken."""
    problem: LmtoolError | None = None

    def follow(self) -> None:
        """Let the guide take what was generated since the last step."""
        while self.guide is not None and self.followed < len(self.output) and self.output[self.followed] >= 0:
            self.guide.advance(self.output[self.followed])
            self.followed += 1

    def barred(self, eos: Sequence[int]) -> Sequence[int]:
        """Ids that may not be picked now, although the constraint would let them, where it lets others."""
        if self.guide is None or self.guide.error() is not None or self.guide.ended():
            return ()
        if len(self.output) < self.min_tokens:
            return (*eos, *self.stop_ids)
        return eos if self.ignore_eos else ()

    def error(self) -> LmtoolError | None:
        """Why the stream cannot go on."""
        inner = self.guide.error() if self.guide is not None else None
        outer = self.processors.error if self.processors is not None else None
        return self.problem or inner or outer


def arguments(
    name: str,
    *,
    constraint: str | None,
    processors: list[dict[str, object]],
    min_tokens: int,
    stop_ids: Sequence[int],
    ignore_eos: bool,
    best: int | None,
) -> str:
    """What `HeldRow`s are made from, as the text that goes with a request through vLLM."""
    words = {"name": name, "constraint": constraint, "processors": processors, "best": best}
    return json.dumps({**words, "min_tokens": min_tokens, "stop_ids": [*stop_ids], "ignore_eos": ignore_eos})


class HeldRows:
    """The held rows of a batch, by their index. Logits are torch tensors, of whose package nothing is needed here."""

    def __init__(self, vocab_size: int, eos_ids: Sequence[int], teller: Teller | None) -> None:
        """teller: None where another process tells the same (tensor parallel)."""
        self.rows: dict[int, HeldRow] = {}
        self._words = -(-vocab_size // 32)
        self._eos_ids = eos_ids
        self._eos = np.zeros(self._words, np.uint32)
        for eos in eos_ids:
            self._eos[eos // 32] |= np.uint32(1 << eos % 32)
        self._teller = teller
        self._table: Any = None

    def apply(self, logits: Any, guides: GuideCompiler | None) -> None:
        """Hold the rows to what may come next. logits: [N, V] float32, changed in place."""
        rows = [(index, row) for index, row in self.rows.items() if index < len(logits)]
        before = {index: _raw_normaliser(logits[index], row) for index, row in rows if row.best is not None}
        constrained = [(index, row) for index, row in rows if row.guide is not None or row.problem is not None]
        if constrained:
            self._forbid(logits, constrained, guides)
        steps = [self._finished(logits[index], before.get(index, 0.0), row) for index, row in rows]
        if self._teller is not None and steps and not self._teller.tell(steps):
            for _, row in rows:  # the worker, missing this step, ends the stream itself if it is there
                row.problem = ServerError("the worker could not be told of a step")

    def _finished(self, logits: Any, before: float, row: HeldRow) -> Step:
        """What is to be told of a row, which goes through its processors here. logits: [V], changed in place."""
        step = Step(row.name, len(row.output))
        if row.best is not None and row.error() is None:
            step = _moved(step, logits, before, row.best)
        if row.processors is not None and row.error() is None:
            row.processors.apply(row.output, logits)
        error = row.error()
        if error is None:
            return step
        logits += self._forbidden(logits, self._eos.view(np.int32)[None])[0]
        return Step(row.name, step.place, error=parts_of(error))

    def _forbid(self, logits: Any, rows: list[tuple[int, HeldRow]], guides: GuideCompiler | None) -> None:
        mask = np.zeros((len(rows), self._words), np.int32)
        filled = []
        for at, (_, row) in enumerate(rows):
            row.follow()
            if row.guide is not None and row.problem is None:
                filled.append((row.guide, at))
        if filled:
            assert guides is not None
            guides.fill(filled, mask)
        self._bar(rows, mask)
        added = self._forbidden(logits, mask)
        for at, (index, _) in enumerate(rows):
            logits[index] += added[at]

    def _bar(self, rows: list[tuple[int, HeldRow]], mask: NDArray[np.int32]) -> None:
        bits = mask.view(np.uint32)
        for at, (_, row) in enumerate(rows):
            if row.error() is not None:
                bits[at] = self._eos
                continue
            left = bits[at].copy()
            for token in row.barred(self._eos_ids):
                left[token // 32] &= ~np.uint32(1 << token % 32)
            if left.any():
                bits[at] = left

    def _forbidden(self, logits: Any, mask: NDArray[np.int32]) -> Any:
        """[n, V] float32 on the logits' device: 0 or -inf."""
        if self._table is None:
            self._table = logits.new_tensor(_TABLE)
        octets = logits.new_tensor(mask.view(np.uint8).astype(np.int64)).long()
        return self._table.index_select(0, octets.flatten()).view(len(mask), -1)[:, : logits.shape[-1]]


def _raw_normaliser(logits: Any, row: HeldRow) -> float:
    """The logarithm of the sum over the model's own distribution; vLLM has added the bias already."""
    if row.bias:
        logits = logits.clone()
        for token, value in row.bias.items():
            logits[token] -= value
    return float(logits.logsumexp(-1))


def _moved(step: Step, logits: Any, before: float, count: int) -> Step:
    """The step with how far logprobs moved, and so many of the best."""
    after = float(logits.logsumexp(-1))
    best: Best = ()
    if count:
        values, ids = logits.topk(min(count, logits.shape[-1]))
        pairs = zip(ids.tolist(), (values - after).tolist(), strict=True)
        best = tuple((token, min(0.0, value)) for token, value in pairs if value > -math.inf)
    return Step(step.name, step.place, before - after, best)


def processors_of(given: list[dict[str, object]]) -> Processors | None:
    """A stream's processors from their written form. Raises `RequestError`."""
    return Processors(processors_from(given)) if given else None
