"""Logits processors: lmtool's own, and those of other packages, named in a request and found by entry point."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lmtool.core.errors import RequestError, ServerError
from lmtool.core.types import NamedProcessor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lmtool.core.errors import LmtoolError

GROUP = "lmtool.logits_processors"
"""Entry points of this group make processors, by their names."""
ALLOWED_TOKEN_IDS = "allowed_token_ids"  # noqa: S105  # ids of words
BAD_WORDS = "bad_words"
"""Names of lmtool's own."""
MOST = 8
"""Processors of one request."""
MAX_BYTES = 64 * 1024
"""Most bytes of one processor's arguments, as JSON."""


class LogitsProcessor(Protocol):
    """One stream's own change of its logits, brought by another package.

    What an entry point of the group `lmtool.logits_processors` names is called for each stream with the request's
    arguments by name, and gives one of these; it may raise to refuse them. What this raises ends its stream alone.
    """

    def __call__(self, tokens: Sequence[int], logits: Any, /) -> Any:  # noqa: ANN401  # torch is the engine's
        """Return the logits to draw from: a torch tensor [V], on the same device. Called once for each token drawn.

        tokens: ids generated so far. logits: [V] float32, after `logit_bias`, -inf where the constraint forbids; may
        be changed in place. What was -inf is so again afterwards. Ids that a constraint forces are not drawn.
        """


@runtime_checkable
class ResumableLogitsProcessor(LogitsProcessor, Protocol):
    """A processor whose stream can go on behind ids that count as generated, see `GenerateRequest.generated`."""

    def resume(self, tokens: Sequence[int], /) -> None:
        """Take on the state of a processor that was called with each beginning of `tokens` but the whole.

        Called once, before the first call, which has all of `tokens`. Does nothing where there is no state. State that
        does not follow from ids and arguments alone, such as what was seen of logits, cannot be had back: a processor
        with any has no such method.
        """


def processors_from(value: object, *, where: str = "logits_processors") -> tuple[NamedProcessor, ...]:
    """Read `[{"name": ..., "args": {...}}, ...]`, `args` being optional. Raises `RequestError` that names `where`."""
    if not isinstance(value, list) or len(value) > MOST:
        raise RequestError(
            f'{where} is {_shown(value)}; expected a list of at most {MOST} {{"name": ..., "args": ...}}'
        )
    return tuple(_named(entry, f"{where}[{at}]") for at, entry in enumerate(value))


def written(processors: Sequence[NamedProcessor]) -> list[dict[str, object]]:
    """Return what `processors_from` reads as these."""
    return [{"name": named.name, "args": dict(named.arguments)} for named in processors]


def installed() -> tuple[str, ...]:
    """Names of lmtool's own processors, and of all those of installed packages."""
    return tuple(sorted({*_OWN, *entry_points(group=GROUP).names}))


class AllowedTokenIds:
    """Lets no other ids be picked."""

    def __init__(self, ids: Sequence[int]) -> None:
        """ids: of the vocabulary, one at least."""
        if not _are_ids(ids):
            raise TypeError("ids is a list of token ids, one at least")
        self._ids = list(ids)

    def __call__(self, tokens: Sequence[int], logits: Any) -> Any:  # noqa: ARG002, ANN401  # any tokens
        """All others as -inf."""
        kept = logits[self._ids].clone()
        logits.fill_(-math.inf)
        logits[self._ids] = kept
        return logits

    def resume(self, tokens: Sequence[int]) -> None:
        """Nothing: it has no state."""


class BadWords:
    """Lets none of some sequences of ids be generated: the last id of one is barred behind its others."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        """sequences: each of one id at least."""
        if not isinstance(sequences, list) or not all(map(_are_ids, sequences)):
            raise TypeError("sequences is a list of lists of token ids")
        self._sequences = [(list(ids[:-1]), ids[-1]) for ids in sequences]

    def __call__(self, tokens: Sequence[int], logits: Any) -> Any:  # noqa: ANN401
        """Those ids as -inf that would complete a sequence."""
        barred = [last for before, last in self._sequences if not before or list(tokens[-len(before) :]) == before]
        if barred:
            logits[barred] = -math.inf
        return logits

    def resume(self, tokens: Sequence[int]) -> None:
        """Nothing: what it bars follows from the ids alone."""


_OWN: Mapping[str, Callable[..., LogitsProcessor]] = {ALLOWED_TOKEN_IDS: AllowedTokenIds, BAD_WORDS: BadWords}


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int and one >= 0 for one in value)


class Processors:
    """The processors of one stream, made for it. For one thread at a time."""

    def __init__(self, named: Sequence[NamedProcessor]) -> None:
        """Make them. Raises `RequestError` for a name that is not installed, or arguments that it refuses."""
        self._processors = [(one.name, _make(one)) for one in named]
        self.bars_ids = any(one.name in _OWN for one in named)
        """True if some ids must never be generated, so that no id may be taken without them."""
        self.error: LmtoolError | None = None
        """Why the stream must end, if so."""

    @property
    def resumable(self) -> bool:
        """True if another stream could go on as this one would."""
        return all(isinstance(one, ResumableLogitsProcessor) for _, one in self._processors)

    def resume(self, tokens: Sequence[int]) -> None:
        """Bring each to where it stands behind ids that it was not called for; call before `apply`.

        Raises `RequestError` for one that has no `resume`, and `ServerError` for one whose `resume` fails.
        """
        for name, processor in self._processors:
            if not isinstance(processor, ResumableLogitsProcessor):
                raise RequestError(
                    f"the logits processor {name} cannot go on behind generated ids: it has no method resume",
                    "begin the stream again, or leave the processor out",
                )
        for name, processor in self._processors:
            assert isinstance(processor, ResumableLogitsProcessor), "looked at above"
            try:
                processor.resume(tokens)
            except Exception as problem:  # foreign code: whatever it raises ends its own stream only
                raise ServerError(_failed(name, problem)) from problem

    def apply(self, tokens: Sequence[int], logits: Any) -> None:  # noqa: ANN401  # a tensor; torch is the engine's
        """Apply each in turn to the logits of one step. What is -inf stays so: a constraint forbids it.

        tokens: ids generated so far. logits: a tensor [V], changed in place; left as it is once there is an `error`.
        """
        if self.error is not None:
            return
        forbidden = logits == -math.inf
        changed = logits
        for name, processor in self._processors:
            changed = self._one(name, processor, tokens, changed.clone())
            if changed is None:
                return
        changed.masked_fill_(forbidden, -math.inf)
        if not math.isfinite(float(changed.max())):
            names = ", ".join(name for name, _ in self._processors)
            self.error = RequestError(f"the logits processors {names} left no token that could be picked")
            return
        logits.copy_(changed)

    def _one(self, name: str, processor: LogitsProcessor, tokens: Sequence[int], logits: Any) -> Any:  # noqa: ANN401
        shape = logits.shape
        try:
            changed = processor(tokens, logits)
        except Exception as problem:  # noqa: BLE001  # foreign code: whatever it raises ends its own stream only
            self.error = ServerError(_failed(name, problem))
            return None
        if getattr(changed, "shape", None) != shape:
            self.error = ServerError(
                f"the logits processor {name} gave {_shown(changed)}; expected a tensor of {shape}"
            )
            return None
        return changed.to(logits)


def _named(entry: object, where: str) -> NamedProcessor:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise RequestError(f'{where} is {_shown(entry)}; expected {{"name": ..., "args": {{...}}}}')
    if unknown := sorted(str(name) for name in entry.keys() - {"name", "args"}):
        raise RequestError(f"{where} has {unknown[0]!r}; expected name and args")
    arguments = entry.get("args")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict) or not all(isinstance(name, str) for name in arguments):
        raise RequestError(f"{where}.args is {_shown(arguments)}; expected an object")
    try:
        size = len(json.dumps(arguments))
    except (ValueError, TypeError, RecursionError) as problem:
        raise RequestError(f"{where}.args cannot be written as JSON: {problem}") from None
    if size > MAX_BYTES:
        raise RequestError(f"{where}.args has {size} bytes; expected at most {MAX_BYTES}")
    return NamedProcessor(entry["name"], arguments)


def _make(named: NamedProcessor) -> LogitsProcessor:
    factory = _factory(named.name)
    try:
        return factory(**named.arguments)
    except Exception as problem:  # foreign code: whatever it raises is about this request only
        reason = f"{type(problem).__name__}: {problem}"[:300]
        raise RequestError(f"the logits processor {named.name} refuses its arguments: {reason}") from problem


@lru_cache(maxsize=64)
def _factory(name: str) -> Callable[..., LogitsProcessor]:
    if name in _OWN:
        return _OWN[name]
    entries = entry_points(group=GROUP)
    if name not in entries.names:
        known = ", ".join(installed())
        raise RequestError(
            f"there is no logits processor {_shown(name)}",
            f"installed: {known}",
            f"packages add them: entry points {GROUP}",
        )
    try:
        factory: Callable[..., LogitsProcessor] = entries[name].load()
    except Exception as problem:  # foreign code again
        raise RequestError(f"the logits processor {name} cannot be imported: {problem}") from problem
    return factory


def _failed(name: str, problem: Exception) -> str:
    return f"the logits processor {name} failed: {type(problem).__name__}: {problem}"[:400]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
