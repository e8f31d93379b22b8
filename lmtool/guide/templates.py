"""Compiled constraints, each tried once before anyone gets it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from lmtool.errors import ConstraintError, ConstraintTooComplexError, LmtoolError, ResourceError
from lmtool.guide.grammar import grammars, noun, refusal
from lmtool.guide.guide import MatcherGuide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.guide.grammar import Grammar
    from lmtool.types import Constraint

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
    """A compiled constraint, to be copied for each stream."""

    matcher: LLMatcher
    warnings: tuple[str, ...]
    size: int
    """Estimated bytes in memory."""


class Templates:
    """Makes templates for one tokenizer. Safe from any thread."""

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_ids: Sequence[int]) -> None:
        """Read the tokenizer, which takes seconds for a large one. Raises `ResourceError` where it cannot be used."""
        self._eos = frozenset(eos_ids)
        try:
            json.loads(tokenizer_json)  # the library takes other texts for names on the hub
            self.tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=list(eos_ids) or None)
        except (ValueError, RuntimeError) as error:
            raise ResourceError(
                f"constraints cannot be used with this tokenizer: {error}", "send the request without a constraint"
            ) from error

    def make(self, constraint: Constraint) -> Template:
        """Compile a constraint and fill its first mask. Raises `ConstraintError`, at the latest within the limits."""
        problem: LmtoolError | None = None
        for grammar in grammars(constraint):
            matcher = LLMatcher(self.tokenizer, grammar.text, log_level=0, limits=_LIMITS)
            if not matcher.is_error():
                return self._tried(constraint, grammar, matcher)
            problem = refusal(constraint, matcher.get_error())
        assert problem is not None, "a constraint can be written in one way at least"
        raise problem

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
        return Template(matcher, tuple(dict.fromkeys(warnings)), size)
