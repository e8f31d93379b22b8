"""A library of one's own behind the compiler: what it must offer is enough."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmtool import constraint
from lmtool.errors import ConstraintError, LmtoolError, ServerError
from lmtool.guide.compiler import MatcherCompiler
from lmtool.guide.config import GuideConfig
from lmtool.guide.held_guide import HeldGuide
from lmtool.guide.unique_names import Matcher
from lmtool.types import Constraint

VOCAB, EOS = 40, (0,)


class CountingGuide(HeldGuide):
    """Follows one list of ids."""

    def __init__(self, ids: list[int], at: int = 0) -> None:
        super().__init__(frozenset(EOS), ("only counted",))
        self.ids, self.at = ids, at

    def _take(self, token: int) -> LmtoolError | None:
        if self.at == len(self.ids) or self.ids[self.at] != token:
            return ServerError(f"not {token}")
        self.at += 1
        return None

    def _legal(self, tokens: list[int]) -> int:
        pairs = zip(tokens, self.ids[self.at :], strict=False)
        return next(
            (at for at, (token, own) in enumerate(pairs) if token != own), min(len(tokens), len(self.ids) - self.at)
        )

    def _lookahead(self) -> Matcher:
        raise NotImplementedError("its texts have no names")

    def _copy(self) -> CountingGuide:
        return CountingGuide(self.ids, self.at)

    def _is_whole(self) -> bool:
        return self.at == len(self.ids)

    def _is_over(self) -> bool:
        return self._is_whole()


@dataclass
class CountingTemplate:
    ids: list[int]
    size: int = 100

    def guide(self) -> CountingGuide:
        return CountingGuide(self.ids)


class Counting:
    """Takes choices of one text, which is a JSON list of ids."""

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_ids: Sequence[int], config: GuideConfig) -> None:
        assert (tokenizer_json, vocab_size, tuple(eos_ids), config.slow_steps) == ("none", VOCAB, EOS, 3)
        self.closed = False

    def ready(self) -> None:
        return

    def make(self, wanted: Constraint) -> CountingTemplate:
        if wanted.kind != "choice":
            raise ConstraintError("only choices")
        return CountingTemplate(json.loads(json.loads(wanted.text)[0]))

    def compute(self, rows: list[tuple[HeldGuide, int]], mask: NDArray[np.int32]) -> None:
        for guide, row in rows:
            assert isinstance(guide, CountingGuide)
            mask[row] = 0
            token = guide.ids[guide.at]
            mask[row, token // 32] = np.uint32(1 << token % 32).astype(np.int32)

    def close(self) -> None:
        self.closed = True


def test_a_library_of_ones_own() -> None:
    """Its templates are kept, its guides followed, its refusals told, its masks filled, eos ids where a text ends."""
    compiler = MatcherCompiler("none", VOCAB, EOS, GuideConfig(), Counting)
    assert isinstance(compiler.compile(constraint.regex("a")).exception(10), ConstraintError)
    guide = compiler.compile(constraint.choice(["[35, 3]"])).result(10)
    assert guide.warnings == ("only counted",)
    mask = np.zeros((3, 2), np.int32)
    compiler.fill_drafts([(guide, 0, [35, 3])], mask)
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
    assert [row.nonzero()[0].tolist() for row in bits] == [[35], [3], [0]]
    assert compiler.counts.cached_bytes == 100
    library = compiler._library.result()
    compiler.close()
    assert isinstance(library, Counting)
    assert library.closed
