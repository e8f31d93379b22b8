"""Constraints enforced by llguidance: compiled once, then one guide and one mask row per stream."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from lmtool.core.errors import ConstraintError, ConstraintTooComplexError, LmtoolError, ResourceError, ServerError
from lmtool.inference.guide.grammar import NOUNS, UNSATISFIABLE, first_grammar, is_quick, other_grammars, refusal
from lmtool.inference.guide.unique_names import NameTokens
from lmtool.net.subprocesses.process import CrashError, Pool, TimeOverError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from lmtool.core.types import Constraint
    from lmtool.inference.guide.grammar import Grammar
    from lmtool.inference.guide.unique_names import UniqueNames


@dataclass(frozen=True, slots=True)
class GuideConfig:
    """Limits for compiling and following constraints."""

    threads: int = 1 + (os.cpu_count() or 1) // 2
    """Constraints compiled in parallel."""
    fill_threads: int = max(1, (os.cpu_count() or 1) // 2)
    """Threads that fill the masks of one step."""
    max_waiting: int = 256
    """Most distinct constraints that wait for a thread; more are refused as overload."""
    deadline: float = 10.0
    """Seconds from the request to the guide; slower constraints are refused as too complex."""
    cache_bytes: int = 32 * 1024 * 1024
    """Estimated bytes of cached constraints; the least recently used is dropped first."""
    failure_seconds: float = 60.0
    """Seconds for which a failure is cached."""
    late_seconds: float = 0.002
    """Seconds for one stream's mask above which its next mask is computed in the background."""
    step_seconds: float = 0.05
    """Most seconds for one stream's mask."""
    slow_steps: int = 3
    """Number of masks over `step_seconds` that ends a stream with an error."""


T = TypeVar("T")

_LIMITS = LLParserLimits(
    max_items_in_row=10_000,
    step_max_items=10_000,
    step_lexer_fuel=100_000,
    max_lexer_states=100_000,
    verbose_errors=False,
)
"""At most about 7 ms a step; no schema of 400 from MaskBench fails because of them."""
_BASE_BYTES, _BYTES_PER_CHARACTER = 60_000, 140
"""Memory of a compiled constraint, measured over a thousand schemas of 500 characters that streams have followed."""
_NO_TEXT = "NoExtension"
_REFUSED = ("doesn't satisfy the grammar", "out of range")
_SIMPLIFY = "make the constraint simpler: fewer alternatives, fewer nested or large repetitions"
_MARK = re.compile(r"<[!-~]+>")
"""An added token that is spelled alike in vocabularies of every kind."""
_SLICES = [one.replace(r"\x7F]", r"\x7F\u{2028}\u{2029}]") for one in LLTokenizer.general_slices()]
"""Texts whose tokens are allowed together if all such texts are: characters that a dot of ECMA-262 matches."""
_FORCED_SECONDS = 0.005
"""CPU seconds that a search for forced tokens may take: all streams wait for it."""


def too_complex(what: str) -> ConstraintTooComplexError:
    """Return the error for a constraint that exceeds a limit."""
    return ConstraintTooComplexError(what, _SIMPLIFY)


class MatcherGuide:
    """An `interfaces.Guide` over a matcher; eos ids, and tokens after them, are tracked here.

    Created by `CompiledConstraint.guide`; owns its matcher.
    """

    __slots__ = ("_eos", "_eos_count", "_error", "_find_forced", "_names", "matcher", "slow", "slow_steps", "warnings")

    def __init__(
        self,
        matcher: LLMatcher,
        eos: frozenset[int],
        warnings: tuple[str, ...] = (),
        names: UniqueNames | None = None,
    ) -> None:
        """matcher: at the start of the text. eos: ids that end a text. names: None if no name can repeat."""
        self.matcher = matcher
        self.slow = False
        """See `interfaces.Guide.slow`."""
        self.slow_steps = 0
        """Masks so far that exceeded `GuideConfig.step_seconds`."""
        self._eos = eos
        self.warnings = warnings
        """See `interfaces.Guide.warnings`."""
        self._names = names
        self._eos_count = 0
        self._error: LmtoolError | None = None
        self._find_forced = True

    def advance(self, token: int) -> None:
        """Advance by the token that the stream was given."""
        if self._error is not None:
            return
        if token in self._eos:
            if not self.may_end():
                self._error = ServerError(f"the eos id {token} was sampled where the constraint does not allow it")
            self._eos_count += 1
        elif self._eos_count:
            self._error = ServerError(f"token {token} was sampled after the end of the constraint's text")
        elif not self.matcher.consume_token(token):
            self._error = self._matcher_error()
        elif self._names is not None and not self._names.advance(token):
            self._error = ServerError("the sampled token repeats a name")

    def forbid_repeats(self, row: NDArray[np.uint32]) -> None:
        """Mask tokens that would repeat a name. row: [ceil(V / 32)], the matcher's mask; changed in place."""
        if self._names is None or self.check() is not None:
            return
        self._names.forbid_repeats(row, self.matcher)
        if not row.any():
            problem = (
                "the object already has every name, or the array every string, that it may have, and needs another"
            )
            self.fail(ConstraintError(problem, "ask for fewer properties or items, or allow more of them"))

    def forced(self) -> list[int]:
        """Return the tokens that must follow, without advancing; none if the search takes too long."""
        if self._error is not None or self._eos_count or not self._find_forced or self.slow:
            return []
        started = time.thread_time()
        forced = [token for token in self.matcher.compute_ff_tokens() if token not in self._eos]
        self._find_forced = time.thread_time() - started < _FORCED_SECONDS
        return forced if self._names is None else forced[: self._names.legal(forced, forced=True)]

    def accepts(self, draft: Sequence[int]) -> int:
        """Return the number of legal tokens at the start of a draft; an eos id counts where the text may end."""
        if self._error is not None or self._eos_count:
            return 0
        plain = next((at for at, token in enumerate(draft) if token in self._eos), len(draft))
        legal = self.matcher.validate_tokens(list(draft[:plain])) if plain else 0
        if self._names is not None:
            legal = self._names.legal(list(draft[:legal]))
        if legal < plain or plain == len(draft):
            return legal
        ahead = self.fork()
        for token in draft[:plain]:
            ahead.advance(token)
        return plain + ahead.may_end()

    def fork(self) -> MatcherGuide:
        """Return an independent guide in the same state."""
        names = None if self._names is None else self._names.copy()
        copy = MatcherGuide(self.matcher.deep_copy(), self._eos, self.warnings, names)
        copy._eos_count, copy._error, copy._find_forced = self._eos_count, self._error, self._find_forced
        copy.slow = self.slow
        return copy

    def may_end(self) -> bool:
        """True if the text so far is a complete match."""
        return self._error is None and self.matcher.is_accepting()

    def ended(self) -> bool:
        """True if only an eos id can follow."""
        return self._error is None and (self._eos_count > 0 or self.matcher.is_stopped())

    def error(self) -> LmtoolError | None:
        """Return the error that ends the stream, or None."""
        return self._error

    def fail(self, error: LmtoolError) -> None:
        """Set the error of the stream, unless it has one."""
        self._error = self._error or error

    def check(self) -> LmtoolError | None:
        """Return the error, including one of the matcher's last mask."""
        if self._error is None:
            self._error = self._matcher_error()
        return self._error

    def _matcher_error(self) -> LmtoolError | None:
        if not self.matcher.is_error():
            return None
        problem = self.matcher.get_error().split("\n", 1)[0][:300]
        if problem.startswith(_NO_TEXT):
            return ConstraintError(
                "no text can continue from here within the constraint", "look for parts that exclude others"
            )
        if any(sign in problem for sign in _REFUSED):
            return ServerError(f"the sampled token is not allowed by the constraint: {problem}")
        return too_complex(f"following the constraint exceeds a limit: {problem}")


@dataclass(frozen=True, slots=True)
class CompiledConstraint:
    """A compiled constraint, copied for each stream. Safe from any thread."""

    matcher: LLMatcher
    warnings: tuple[str, ...]
    size: int
    """Estimated bytes in memory."""
    eos: frozenset[int]
    slow: bool = False
    """True if its first mask takes long, see `MatcherGuide.slow`."""
    names: UniqueNames | None = None
    """None if no name can repeat."""

    def guide(self) -> MatcherGuide:
        """Return a new guide at the start of the text."""
        names = None if self.names is None else self.names.copy()
        guide = MatcherGuide(self.matcher.deep_copy(), self.eos, self.warnings, names)
        guide.slow = self.slow
        return guide


class ConstraintBackend:
    """Compiles constraints for one tokenizer within the library's limits. Safe from any thread."""

    def __init__(
        self, tokenizer_json: str, vocab_size: int, eos_ids: Sequence[int], config: GuideConfig | None = None
    ) -> None:
        """Read the tokenizer; seconds for a large one. Raises `ResourceError` if it cannot be used."""
        config = config or GuideConfig()
        self._eos = frozenset(eos_ids)
        self._processes = Pool(config.threads)
        self._config = config
        self.tokenizer = read_tokenizer(tokenizer_json, vocab_size, eos_ids)
        self._name_tokens = NameTokens(self.tokenizer, vocab_size)

    def compile(self, constraint: Constraint) -> CompiledConstraint:
        """Compile a constraint and fill its first mask. Raises `ConstraintError` within the deadline at the latest."""
        problem: LmtoolError | None = None
        impossible = False
        for grammar in self._grammars(constraint):
            if grammar.wider and impossible:
                break
            matcher = LLMatcher(self.tokenizer, grammar.text, log_level=0, limits=_LIMITS)
            if matcher.is_error():
                impossible = impossible or (UNSATISFIABLE in matcher.get_error() and not grammar.warnings)
                problem = refusal(constraint, matcher.get_error(), grammar.warnings)
                continue
            try:
                return self._try(constraint, grammar, matcher)
            except ConstraintTooComplexError:
                raise
            except ConstraintError:
                if not grammar.warnings:
                    raise
                # Texts that the grammar excludes and the constraint does not might match.
                problem = ConstraintError(f"the {NOUNS[constraint.kind]} cannot be enforced: {grammar.warnings[0]}")
        assert problem is not None, "every constraint has at least one grammar"
        raise problem

    def close(self) -> None:
        """Stop the processes."""
        self._processes.close()

    def _grammars(self, constraint: Constraint) -> Iterator[Grammar]:
        """Yield the grammars of a constraint lazily; long constraints are written in another process."""
        yield first_grammar(constraint) if is_quick(constraint) else self._write(first_grammar, constraint)
        if constraint.kind in {"json_schema", "structural_tag"}:
            others, problem = self._write(other_grammars, constraint)
            yield from others
            if problem is not None:
                raise problem

    def _write(self, write: Callable[[Constraint], T], constraint: Constraint) -> T:
        try:
            return self._processes.call(self._config.deadline, write, constraint)
        except TimeOverError:
            raise too_complex(
                f"converting the constraint to a grammar takes more than {self._config.deadline:g} s"
            ) from None
        except CrashError as problem:
            raise ServerError(f"the process that converts constraints failed: {problem}", "try again") from None

    def _try(self, constraint: Constraint, grammar: Grammar, matcher: LLMatcher) -> CompiledConstraint:
        first = MatcherGuide(matcher.deep_copy(), self._eos)
        allowed = int.from_bytes(first.matcher.compute_bitmask(), "little")
        if isinstance(error := first.check(), ConstraintTooComplexError):
            raise error
        stuck = not first.may_end() and not allowed & ~sum(1 << eos for eos in self._eos)
        if error is not None or stuck:
            noun = NOUNS[constraint.kind]
            raise ConstraintError(f"no text matches the {noun}", "look for parts that exclude each other")
        size = _BASE_BYTES + _BYTES_PER_CHARACTER * len(grammar.text)
        warnings = (*grammar.warnings, *matcher.get_grammar_warnings())
        names = self._name_tokens.unique(grammar.names, grammar.markers)
        # Timed the second time, when much of what the mask needs is cached.
        copy, started = matcher.deep_copy(), time.thread_time()
        copy.compute_bitmask()
        slow = time.thread_time() - started > self._config.late_seconds
        return CompiledConstraint(matcher, tuple(dict.fromkeys(warnings)), size, self._eos, slow, names)


def read_tokenizer(tokenizer_json: str, vocab_size: int, eos_ids: Sequence[int]) -> LLTokenizer:
    """Return llguidance's tokenizer: the bytes of each id. Raises `ResourceError` if it cannot be built."""
    try:
        described = json.loads(tokenizer_json)  # the library would look up any other text on the hub
        if _show_marks(described):
            tokenizer_json = json.dumps(described)
        return LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=list(eos_ids) or None, slices=_SLICES)
    except (ValueError, RuntimeError) as error:
        raise ResourceError(
            f"constraints cannot be used with this tokenizer: {error}", "send the request without a constraint"
        ) from error


def _show_marks(tokenizer: dict[str, Any]) -> bool:
    """Move added tokens that are text into the vocabulary; return True if there were any.

    tokenizer: the content of a tokenizer.json.

    The library treats every added token in angle brackets as special, so no text matches it; but some, such as Qwen's
    <tool_call>, are declared as visible text. Plain characters stand for themselves in every vocabulary.
    """
    added, vocab = tokenizer.get("added_tokens") or [], tokenizer.get("model", {}).get("vocab")
    marks = [one for one in added if not one.get("special") and _MARK.fullmatch(one["content"])]
    if not marks or not isinstance(vocab, dict):
        return False
    # The remaining ones must be in the vocabulary too: otherwise they are renumbered over the moved ones.
    vocab.update({one["content"]: one["id"] for one in added})
    tokenizer["added_tokens"] = [one for one in added if one not in marks]
    return True


_WATCHED_STEPS = 16
"""Steps after a slow one in which each row is timed separately."""
_ROW_SECONDS = 0.0002
"""Seconds that a row may add to a step."""


class Masks:
    """Fills mask rows for the guides of one model and ends streams whose masks take too long.

    See `interfaces.GuideCompiler.fill` for threads.
    """

    def __init__(self, vocab_size: int, eos_ids: Sequence[int], config: GuideConfig) -> None:
        self._words = (vocab_size + 31) // 32
        self._executor = LLExecutor(num_threads=config.fill_threads)
        self._config = config
        self._watched = 0
        self._eos_row = np.zeros(self._words, np.uint32)
        for eos in eos_ids:
            self._eos_row[eos // 32] |= np.uint32(1 << eos % 32)

    def _fill(self, rows: list[tuple[MatcherGuide, int]], mask: NDArray[np.int32]) -> None:
        matchers = [(guide.matcher, row) for guide, row in rows]
        self._executor.unsafe_compute_mask_ptr(matchers, mask.ctypes.data, mask.strides[0], len(mask))
        for guide, row in rows:
            guide.forbid_repeats(mask[row].view(np.uint32))

    def fill(self, rows: Sequence[tuple[MatcherGuide, int]], mask: NDArray[np.int32]) -> None:
        """Write the legal next tokens into each guide's row; see `interfaces.GuideCompiler.fill`."""
        assert mask.dtype == np.int32, "a mask word holds the bits of 32 tokens"
        assert mask.flags.c_contiguous, "the library writes consecutive whole rows"
        assert mask.shape[1] == self._words, "a mask row is as wide as the vocabulary"
        going = self._unfinished(rows, mask)
        if self._watched or len(going) == 1:
            self._watched = max(0, self._watched - 1)
            for entry in going:
                self._fill_one(entry, mask)
        elif going:
            started = time.perf_counter()
            self._fill(going, mask)
            if time.perf_counter() - started > self._config.late_seconds + _ROW_SECONDS * len(going):
                self._watched = _WATCHED_STEPS
        for guide, row in going:
            if guide.check() is None and not mask[row].any():
                guide.fail(ConstraintError("no token of this model can continue the text within the constraint"))
            if guide.error() is not None:
                self._allow_eos(row, mask)

    def _unfinished(
        self, rows: Sequence[tuple[MatcherGuide, int]], mask: NDArray[np.int32]
    ) -> list[tuple[MatcherGuide, int]]:
        """Allow only eos for guides that have ended; return the others."""
        going = []
        for guide, row in rows:
            if guide.error() is not None or guide.ended():
                self._allow_eos(row, mask)
            else:
                going.append((guide, row))
        return going

    def _fill_one(self, entry: tuple[MatcherGuide, int], mask: NDArray[np.int32]) -> None:
        started = time.thread_time()  # not wall time: a background thread may be descheduled
        self._fill([entry], mask)
        guide, row = entry
        seconds = time.thread_time() - started
        guide.slow = seconds > self._config.late_seconds
        if seconds <= self._config.step_seconds:
            return
        guide.slow_steps += 1
        if guide.slow_steps >= self._config.slow_steps:
            limit = f"{self._config.step_seconds * 1000:g} ms"
            guide.fail(too_complex(f"the constraint took more than {limit} for each of {guide.slow_steps} tokens"))
            self._allow_eos(row, mask)

    def _allow_eos(self, row: int, mask: NDArray[np.int32]) -> None:
        mask[row] = self._eos_row.view(np.int32)
