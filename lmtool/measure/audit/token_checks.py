"""Checks of every token on its own: its number, its alternatives, and how they fit together."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING

from lmtool.measure.audit.evidence import REPLACEMENT, breach, is_clear, not_offered, passes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.measure.audit.evidence import Answer, Evidence, Finding, Token

SUM_LIMIT = 1.01
"""Sum of probabilities that is still one: rounding to bfloat16 moves each by a few thousandths."""
WHOLE_LIMIT = 0.01
"""How far the sum over a whole vocabulary may be from 1."""
_ROUNDING = 5e-3
"""Nats by which a logprob may be above 0, and alternatives out of order."""
_SAME = 1e-3
"""Nats between two spellings of one number."""
_LEAST = -1e4


def tokens_of(evidence: Evidence) -> Iterator[tuple[Answer, Token]]:
    """Every generated or echoed token that has a logprob."""
    for answer in evidence.everything:
        for choice in answer.choices:
            for token in choice.tokens:
                yield answer, token


def _with_alternatives(evidence: Evidence) -> list[tuple[Answer, Token]]:
    return [(answer, token) for answer, token in tokens_of(evidence) if token.alternatives]


def check_numbers(evidence: Evidence, tolerance: float) -> Finding:  # noqa: ARG001  # the signature of checks
    """Every generated token has a finite logprob that is at most 0."""
    count, highest = 0, -math.inf
    for answer, token in tokens_of(evidence):
        if token.logprob is None:
            if answer.question.echo:
                continue  # the first token of a prompt comes behind nothing
            return breach(f"{_shown(token)} has no finite logprob", answer)
        for value in (token.logprob, *(value for _, value in token.alternatives)):
            if value > _ROUNDING or value < _LEAST:
                return breach(f"{_shown(token)} has the logprob {value:.4g}; expected at most 0", answer, off=value)
            highest = max(highest, value)
        count += 1
    if not count:
        return not_offered("there are no logprobs")
    return passes(f"{count:,} logprobs, each finite and at most 0", max(highest, 0.0))


def check_sums(evidence: Evidence, tolerance: float) -> Finding:  # noqa: ARG001  # as above
    """The probabilities of a token's alternatives sum to at most 1, and to 1 where they are the whole vocabulary."""
    tokens, greatest = _with_alternatives(evidence), 0.0
    if not tokens:
        return not_offered("tokens have no alternatives")
    for answer, token in tokens:
        values = [value for _, value in token.alternatives]
        if not any(name == token.name for name, _ in token.alternatives) and token.logprob is not None:
            values.append(token.logprob)
        total = sum(math.exp(min(value, 50.0)) for value in values)
        if total > SUM_LIMIT:
            return breach(
                f"the probabilities beside {_shown(token)} sum to {total:.4f}; expected at most 1",
                answer, off=total - 1,
            )  # fmt: skip
        greatest = max(greatest, total)
    return passes(f"at most {greatest:.4f} at {len(tokens):,} tokens", max(0.0, greatest - 1))


def check_full_vocabulary(evidence: Evidence, tolerance: float) -> Finding:  # noqa: ARG001  # as above
    """Where alternatives are the whole vocabulary, their probabilities sum to 1."""
    size = evidence.vocab_size
    whole = [
        (answer, token) for answer, token in _with_alternatives(evidence) if size and len(token.alternatives) >= size
    ]
    if not whole:
        return not_offered("alternatives are not the whole vocabulary, so their sum may be anything up to 1")
    worst, where = 0.0, whole[0][0]
    for answer, token in whole:
        off = abs(1 - math.fsum(math.exp(value) for _, value in token.alternatives))
        worst, where = max((worst, where), (off, answer), key=lambda one: one[0])
    if worst > WHOLE_LIMIT:
        return breach(f"the whole vocabulary sums to 1 only within {worst:.4f}", where, off=worst)
    return passes(f"the whole vocabulary sums to 1 within {worst:.1e}", worst)


def check_alternatives(evidence: Evidence, tolerance: float) -> Finding:  # noqa: ARG001  # as above
    """No alternative stands twice, the best one is first, and there are as many as were asked for."""
    tokens, shared = _with_alternatives(evidence), 0
    if not tokens:
        return not_offered("tokens have no alternatives")
    for answer, token in tokens:
        seen: dict[object, float] = {}
        for name, value in token.alternatives:
            if name in seen and is_clear(name):
                if isinstance(name, int) or abs(seen[name] - value) <= _SAME:
                    return breach(f"{name!r} stands twice among the alternatives of {_shown(token)}", answer)
                shared += 1  # two tokens of one text
            seen[name] = value
        # The chosen token may stand first, as vLLM has it, or last.
        others = [value for name, value in token.alternatives if name != token.name and is_clear(name)]
        rise = max((later - earlier for earlier, later in pairwise(others)), default=0.0)
        if token.ordered and rise > _ROUNDING:
            return breach(f"the alternatives of {_shown(token)} are not in order", answer, off=rise)
        count = len(token.alternatives)
        most = evidence.width if answer.question.alternatives is None else answer.question.alternatives
        if count > most + 1:
            return breach(f"{count} alternatives; asked for {most}", answer, off=count - most)
    more = f"; {shared} names are those of two tokens" if shared else ""
    return passes(f"none twice, best first, at most {evidence.width} and the chosen one{more}")


def check_chosen_token(evidence: Evidence, tolerance: float) -> Finding:  # noqa: ARG001  # as above
    """The chosen token is among its alternatives, with the same logprob, unless all of them are likelier."""
    tokens, worst, outside = _with_alternatives(evidence), 0.0, 0
    if not tokens:
        return not_offered("tokens have no alternatives")
    for answer, token in tokens:
        if token.logprob is None or not is_clear(token.name):
            continue
        own = [value for name, value in token.alternatives if name == token.name]
        if own:
            off = min(abs(value - token.logprob) for value in own)
            if off > _SAME:
                return breach(
                    f"{_shown(token)} has the logprob {token.logprob:.4f}, among its alternatives {own[0]:.4f}",
                    answer, off=off,
                )  # fmt: skip
            worst = max(worst, off)
            continue
        outside += 1
        last = min(value for _, value in token.alternatives)
        if token.logprob > last + _ROUNDING:
            return breach(
                f"{_shown(token)} ({token.logprob:.4f}) is likelier than the last alternative ({last:.4f}), "
                "and none of them",
                answer, off=token.logprob - last,
            )  # fmt: skip
    more = f"; {outside} less likely than all of them" if outside else ""
    return passes(f"among them with the same number at {len(tokens) - outside:,} tokens{more}", worst)


def check_text(evidence: Evidence, tolerance: float) -> Finding:  # noqa: ARG001  # as above
    """The texts of the tokens, joined, are the answer's text."""
    count = 0
    for answer in evidence.everything:
        for choice in answer.choices:
            pieces = [token.name for token in choice.tokens]
            if (
                choice.text is None
                or not pieces
                or answer.question.stop
                or answer.question.echo
                or not all(isinstance(name, str | bytes) and is_clear(name) for name in pieces)
            ):
                continue
            count += 1
            joined = b"".join(one.encode() if isinstance(one, str) else bytes(one) for one in pieces)
            if not _fits(joined, choice.text, choice.finish_reason, pieces[-1]):
                shown = joined.decode("utf-8", "replace")
                return breach(f"the tokens are {shown[:60]!r}, the text is {choice.text[:60]!r}", answer)
    if not count:
        return not_offered("tokens are named by ids only" if evidence.width else "there are no logprobs")
    return passes(f"tokens joined are the text in {count} answers")


def _fits(joined: bytes, text: str, reason: str | None, last: object) -> bool:
    """True if tokens are a text: one that ends it, such as eos, may be no part of it; nor may blanks around it."""
    end = last.encode() if isinstance(last, str) else last if isinstance(last, bytes) else b""
    candidates = [joined] + ([joined.removesuffix(end)] if reason == "stop" and end else [])
    return _readable(text) in [_readable(one.decode("utf-8", "replace")) for one in candidates]


def _readable(text: str) -> str:
    """The text without blanks around it; bytes that are no text, however many, are one sign."""
    return re.sub(f"{REPLACEMENT}+", REPLACEMENT, text).strip()


def _shown(token: Token) -> str:
    return f"token {token.name!r}" if not isinstance(token.name, int) else f"token {token.name}"
