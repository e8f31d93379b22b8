"""Ways to follow a compiled constraint: along a text, or along tokens drawn at random as a model would."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from lmtool.core import constraint
from lmtool.core.errors import LmtoolError
from lmtool.core.interfaces import Guide
from lmtool.core.types import Constraint
from lmtool.inference.guide.compiler import MatcherCompiler
from lmtool.inference.guide.llguidance import CompiledConstraint, ConstraintBackend, MatcherGuide
from lmtool.inference.tiny.path import MODEL_DIR

TOKENIZER = (MODEL_DIR / "tokenizer.json").read_text()
VOCAB = 1536
EOS = (0, 2)
WORDS = (VOCAB + 31) // 32


_FITTING = 4
"""Lists of properties that say in which order an object's are tried."""


def accepts(backend: ConstraintBackend, compiled: CompiledConstraint, text: str) -> bool:
    """Whether a text is a whole match."""
    guide = compiled.guide()
    for token in backend.tokenizer.tokenize_str(text):
        guide.advance(token)
    return guide.may_end()


def accepts_reordered(
    backend: ConstraintBackend,
    compiled: CompiledConstraint,
    value: object,
    tries: int = 500,
    listed: Sequence[Sequence[str]] = (),
) -> bool:
    """Whether JSON is a whole match with its properties in some order. tries: of one property before another.

    listed: properties as the schema lists them together; the list that has most of an object's is tried first.
    """
    orders = _Orders(backend, tries, listed)
    return any(guide.may_end() for guide in orders.write(value, compiled.guide()))


def listed_properties(schema: object) -> Iterator[list[str]]:
    """The names of each `properties` in a schema."""
    if isinstance(schema, list):
        for part in schema:
            yield from listed_properties(part)
    elif isinstance(schema, dict):
        for keyword, value in schema.items():
            if keyword == "properties" and isinstance(value, dict):
                yield list(value)
            yield from listed_properties(value)


def whole_numbers(value: object) -> object:
    """The same JSON, in which no whole number has a point."""
    if isinstance(value, dict):
        return {name: whole_numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [whole_numbers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class _Orders:
    """Searches for an order of properties that a guide allows."""

    def __init__(self, backend: ConstraintBackend, tries: int, listed: Sequence[Sequence[str]]) -> None:
        self._backend = backend
        self._left = tries
        self._listed = listed

    def write(self, value: object, guide: MatcherGuide) -> Iterator[MatcherGuide]:
        """The guides behind a value, one for each order that is allowed."""
        if isinstance(value, dict):
            fitting = sorted(self._listed, key=lambda names: -len(value.keys() & set(names)))
            order = dict.fromkeys(name for names in fitting[:_FITTING] for name in names if name in value)
            yield from self._members([(name, value[name]) for name in {**order, **value}], guide, "{")
        elif isinstance(value, list):
            yield from self._items(value, guide, "[")
        elif (after := self._text(compact(value), guide)) is not None:
            yield after

    def _members(self, left: list[tuple[str, object]], guide: MatcherGuide, before: str) -> Iterator[MatcherGuide]:
        if not left and (after := self._text("{}" if before == "{" else "}", guide)) is not None:
            yield after
        for at, (name, value) in enumerate(left):
            self._left -= 1
            if self._left < 0:
                return
            if (behind := self._text(f"{before}{compact(name)}:", guide)) is not None:
                for after in self.write(value, behind):
                    yield from self._members([*left[:at], *left[at + 1 :]], after, ",")

    def _items(self, left: list[object], guide: MatcherGuide, before: str) -> Iterator[MatcherGuide]:
        if not left:
            after = self._text("[]" if before == "[" else "]", guide)
            yield from [] if after is None else [after]
        elif (behind := self._text(before, guide)) is not None:
            for after in self.write(left[0], behind):
                yield from self._items(left[1:], after, ",")

    def _text(self, text: str, guide: MatcherGuide) -> MatcherGuide | None:
        ahead = guide.fork()
        for token in self._backend.tokenizer.tokenize_str(text):
            ahead.advance(token)
        return None if ahead.error() is not None or ahead.check() is not None else ahead


def compact(value: object) -> str:
    """Return JSON as it is generated."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def compiled(compiler: MatcherCompiler, wanted: Constraint) -> MatcherGuide:
    """Return a fresh guide, or raise what the compiler answers."""
    return cast("MatcherGuide", compiler.compile(wanted).result(60))


def mask_of(compiler: MatcherCompiler, guide: Guide) -> NDArray[np.bool_]:
    """Return which tokens may come next: [V] booleans."""
    mask = np.zeros((1, WORDS), np.int32)
    compiler.fill([(guide, 0)], mask)
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB].astype(bool)


def walk(
    compiler: MatcherCompiler, backend: ConstraintBackend, guide: Guide, seed: int, most: int = 200
) -> tuple[str, bool]:
    """Draw allowed tokens at random until one ends the text; return the text and whether it ended.

    Ends as soon as the text may, after half of the tokens.
    """
    rng = random.Random(seed)
    drawn: list[int] = []
    for step in range(most):
        allowed = np.flatnonzero(mask_of(compiler, guide))
        if (error := guide.error()) is not None:
            raise error
        token = EOS[0] if step > most // 2 and guide.may_end() else int(rng.choice(allowed))
        if token in EOS:
            return backend.tokenizer.decode_str(drawn), True
        guide.advance(token)
        drawn.append(token)
    return backend.tokenizer.decode_str(drawn), False


def compiled_schema(
    backend: ConstraintBackend, schema: object, *, strict: bool = True
) -> CompiledConstraint | LmtoolError:
    """Return a compiled schema, or the error that it is refused with."""
    try:
        return backend.compile(constraint.json_schema(schema, strict=strict))
    except LmtoolError as error:
        return error
