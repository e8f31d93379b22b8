"""Constraints compiled by llguidance, each tried once before anyone gets it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from lmtool.errors import ConstraintError, ConstraintTooComplexError, LmtoolError, ResourceError, ServerError
from lmtool.guide.config import GuideConfig
from lmtool.guide.grammar import first_grammar, is_quick, noun, other_grammars, refusal
from lmtool.guide.guide import MatcherGuide, too_complex
from lmtool.guide.unique_names import NameTokens
from lmtool.subprocesses.pool import Pool
from lmtool.subprocesses.process import CrashError, TimeOverError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from lmtool.guide.grammar import Grammar
    from lmtool.guide.unique_names import UniqueNames
    from lmtool.types import Constraint

T = TypeVar("T")

_LIMITS = LLParserLimits(
    max_items_in_row=10_000,
    step_max_items=10_000,
    step_lexer_fuel=100_000,
    max_lexer_states=100_000,
    verbose_errors=False,
)
"""A step takes about 7 ms at most with these; 400 schemas of MaskBench lose nothing by them."""
_BASE_BYTES, _BYTES_PER_CHARACTER = 30_000, 60


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled constraint, to be copied for each stream. Safe from any thread."""

    matcher: LLMatcher
    warnings: tuple[str, ...]
    size: int
    """Estimated bytes in memory."""
    eos: frozenset[int]
    slow: bool = False
    """Whether its first mask takes long, see `MatcherGuide.slow`."""
    names: UniqueNames | None = None
    """None where no name can come twice."""

    def guide(self) -> MatcherGuide:
        """Return a fresh guide at the constraint's start."""
        names = None if self.names is None else self.names.copy()
        made = MatcherGuide(self.matcher.deep_copy(), self.eos, self.warnings, names)
        made.slow = self.slow
        return made


class Templates:
    """Makes templates for one tokenizer, and fills the masks of their guides. Safe from any thread.

    The library is bounded by limits of its own.
    """

    def __init__(
        self, tokenizer_json: str, vocab_size: int, eos_ids: Sequence[int], config: GuideConfig | None = None
    ) -> None:
        """Read the tokenizer, which takes seconds for a large one. Raises `ResourceError` where it cannot be used."""
        config = config or GuideConfig()
        self._eos = frozenset(eos_ids)
        self._executor = LLExecutor(num_threads=config.fill_threads)
        self._helpers = Pool(config.threads)
        self._limit = config.deadline
        self._late = config.late_seconds
        self.tokenizer = read_tokenizer(tokenizer_json, vocab_size, eos_ids)
        self._name_tokens = NameTokens(self.tokenizer, vocab_size)

    def make(self, constraint: Constraint) -> Template:
        """Compile a constraint and fill its first mask. Raises `ConstraintError`, at the latest within the limits."""
        problem: LmtoolError | None = None
        for grammar in self._grammars(constraint):
            matcher = LLMatcher(self.tokenizer, grammar.text, log_level=0, limits=_LIMITS)
            if not matcher.is_error():
                return self._tried(constraint, grammar, matcher)
            problem = refusal(constraint, matcher.get_error())
        assert problem is not None, "a constraint can be written in one way at least"
        raise problem

    def compute(self, rows: list[tuple[MatcherGuide, int]], mask: NDArray[np.int32]) -> None:
        """Write which tokens may come next into each guide's row of the mask; never raises: see `MatcherGuide.check`.

        mask: [rows, ceil(V / 32)] int32, contiguous. For one thread at a time, and for others beside it where each has
        a single row.
        """
        matchers = [(guide.matcher, row) for guide, row in rows]
        self._executor.unsafe_compute_mask_ptr(matchers, mask.ctypes.data, mask.strides[0], len(mask))

    def close(self) -> None:
        """End the helpers."""
        self._helpers.close()

    def _grammars(self, constraint: Constraint) -> Iterator[Grammar]:
        """The ways to write a constraint, each once it is asked for; long work is done by a helper."""
        yield first_grammar(constraint) if is_quick(constraint) else self._ask(first_grammar, constraint)
        if constraint.kind == "json_schema":
            others, problem = self._ask(other_grammars, constraint)
            yield from others
            if problem is not None:
                raise problem

    def _ask(self, write: Callable[[Constraint], T], constraint: Constraint) -> T:
        try:
            return self._helpers.call(self._limit, write, constraint)
        except TimeOverError:
            raise too_complex(f"writing the constraint as a grammar takes more than {self._limit:g} s") from None
        except CrashError as problem:
            raise ServerError(f"the process that writes grammars failed: {problem}", "try again") from None

    def _tried(self, constraint: Constraint, grammar: Grammar, matcher: LLMatcher) -> Template:
        first = MatcherGuide(matcher.deep_copy(), self._eos)
        allowed = int.from_bytes(first.matcher.compute_bitmask(), "little")
        if isinstance(error := first.check(), ConstraintTooComplexError):
            raise error
        stuck = not first.may_end() and not allowed & ~sum(1 << eos for eos in self._eos)
        if error is not None or stuck:
            raise ConstraintError(f"no text matches the {noun(constraint)}", "look for parts that exclude each other")
        size = _BASE_BYTES + _BYTES_PER_CHARACTER * len(grammar.text)
        warnings = (*grammar.warnings, *matcher.get_grammar_warnings())
        names = self._name_tokens.unique(grammar.names, grammar.markers)
        return Template(matcher, tuple(dict.fromkeys(warnings)), size, self._eos, self._is_slow(matcher), names)

    def _is_slow(self, matcher: LLMatcher) -> bool:
        """Whether a first mask takes long also where one was made before: much of what it needs is kept."""
        again, began = matcher.deep_copy(), time.thread_time()
        again.compute_bitmask()
        return time.thread_time() - began > self._late


def read_tokenizer(tokenizer_json: str, vocab_size: int, eos_ids: Sequence[int]) -> LLTokenizer:
    """Return llguidance's view of a tokenizer: the bytes of each id. Raises `ResourceError` where it has none."""
    try:
        json.loads(tokenizer_json)  # the library takes other texts for names on the hub
        return LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=list(eos_ids) or None)
    except (ValueError, RuntimeError) as error:
        raise ResourceError(
            f"constraints cannot be used with this tokenizer: {error}", "send the request without a constraint"
        ) from error
