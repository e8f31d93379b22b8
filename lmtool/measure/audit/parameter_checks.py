"""Checks of what parameters do: to the logprobs, which are raw or processed, and to the tokens that are picked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lmtool.measure.audit.evidence import COLD, HOT, PENALTIES, breach, not_offered, passes
from lmtool.measure.audit.truncation import (
    Reading,
    cut_of,
    read_constraint,
    read_penalty,
    read_temperature,
    read_truncation,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.measure.audit.evidence import Answer, Evidence, Finding, Kind, Name, Token
    from lmtool.measure.audit.truncation import Cut

_UNLIKELY = 1e-4
"""Probability below which draws that heed a truncation all the same show it, and those that do not are no chance."""


def _first(answer: Answer | None) -> Token | None:
    return None if answer is None or not answer.only.tokens else answer.only.tokens[0]


def _is_wide(token: Token) -> bool:
    """True if a distribution shows more than one token."""
    return len(token.best) > 1


def temperature_readings(evidence: Evidence, tolerance: float) -> Iterator[tuple[Reading, Answer, Answer]]:
    """What the first position's logprobs at other temperatures are."""
    for name, temperature in (("cold", COLD), ("hot", HOT)):
        for _, one, other in evidence.pairs("plain", name):
            plain, found = _first(one), _first(other)
            if plain is not None and found is not None and _is_wide(plain) and _is_wide(found):
                yield read_temperature(plain, found, temperature, tolerance), one, other


def truncation_readings(evidence: Evidence, name: str, tolerance: float) -> Iterator[tuple[Reading, Answer, Answer]]:
    """What they are under a truncation."""
    for _, one, other in evidence.pairs("plain", name):
        plain, found = _first(one), _first(other)
        cut = None if plain is None else cut_of(plain)
        if plain is not None and found is not None and cut is not None:
            yield read_truncation(plain, found, cut, tolerance), one, other


def penalty_readings(
    evidence: Evidence, name: str, value: float, tolerance: float
) -> Iterator[tuple[Reading, Answer, Answer, Token, Token, dict[Name, float]]]:
    """What they are under a penalty, at each position whose context is that of the answer without; see `_penalized`."""
    for _, one, other in evidence.pairs("greedy", name):
        counts: dict[Name, int] = {}
        for plain, found in zip(one.only.tokens, other.only.tokens, strict=False):
            penalties = {token: value * (count if name.startswith("freq") else 1) for token, count in counts.items()}
            if _is_wide(plain) and _is_wide(found):  # processed greedy ones have one token
                yield read_penalty(plain, found, penalties, tolerance), one, other, plain, found, penalties
            if plain.name != found.name:
                break
            counts[found.name] = counts.get(found.name, 0) + 1


def _judge(readings: list[tuple[Reading, Answer, Answer]], tolerance: float, what: str) -> Finding | Kind | None:
    """The kind that all readings have, a breach where one fits neither or two differ, None where none is clear."""
    kinds: dict[Kind, tuple[Reading, Answer, Answer]] = {}
    for reading, one, other in readings:
        if not reading.fits(tolerance):
            return breach(
                f"{what}: neither unchanged (off by {reading.raw:.4f}) nor as sampled (off by {reading.processed:.4f})",
                one, other, off=reading.off,
            )  # fmt: skip
        if reading.kind is not None:
            kinds.setdefault(reading.kind, (reading, one, other))
    if len(kinds) == 2:
        answers = [one for _, *pair in kinds.values() for one in pair]
        return breach(f"{what}: now unchanged, now as sampled", *answers)
    return next(iter(kinds), None)


def _said(kind: Kind | None) -> str:
    return {
        "raw": "it does not change logprobs",
        "processed": "logprobs follow it",
        None: "what it does to logprobs cannot be told here",
    }[kind]


def check_temperature(evidence: Evidence, tolerance: float) -> Finding:
    """Temperature leaves logprobs as they are, or they are of what is sampled then: never anything else."""
    readings = list(temperature_readings(evidence, tolerance))
    if not readings:
        return not_offered(evidence.reason("cold") if not evidence.all("cold") else "there are no alternatives")
    judged = _judge(readings, tolerance, "at another temperature logprobs are")
    if judged is None or isinstance(judged, str):
        return passes(_said(judged), max(reading.off for reading, *_ in readings), kind=judged)
    return judged


def check_top_p(evidence: Evidence, tolerance: float) -> Finding:
    """`top_p` leaves out what is beyond it, and logprobs are raw or processed."""
    return _truncation(evidence, "top_p", tolerance)


def check_top_k(evidence: Evidence, tolerance: float) -> Finding:
    """`top_k`, likewise."""
    return _truncation(evidence, "top_k", tolerance)


def check_min_p(evidence: Evidence, tolerance: float) -> Finding:
    """`min_p`, likewise."""
    return _truncation(evidence, "min_p", tolerance)


def _truncation(evidence: Evidence, name: str, tolerance: float) -> Finding:
    readings = list(truncation_readings(evidence, name, tolerance))
    if not readings:
        return not_offered(evidence.reason(name) if not evidence.all(name) else "names of tokens are not unique")
    plain = _first(readings[0][1])
    cut = None if plain is None else cut_of(plain)
    assert cut is not None, "there is a reading"
    draws = [(answer, token) for answer in evidence.all(name) if (token := _first(answer)) is not None]
    beyond = [(answer, token) for answer, token in draws if _is_beyond(token, cut, tolerance)]
    judged = _judge(readings, tolerance, f"under {name} logprobs are")
    if judged is not None and not isinstance(judged, str):
        return judged
    if beyond and name != "top_p":
        return not_offered(f"it is accepted, and has no effect: {len(beyond)} of {len(draws)} draws are beyond it")
    if beyond:
        answer, token = beyond[0]
        return breach(
            f"{len(beyond)} of {len(draws)} draws are beyond it, such as {token.name!r}", answer, readings[0][1]
        )
    chance = cut.mass ** len(draws)
    shown = "" if chance < _UNLIKELY else f", as without it in {chance:.2%} of cases"
    off = max(reading.off for reading, *_ in readings)
    return passes(f"{len(draws)} draws within it{shown}; {_said(judged)}", off, kind=judged)


def _is_beyond(token: Token, cut: Cut, tolerance: float) -> bool:
    if token.name in cut.survivors:
        return False
    return token.logprob is None or token.logprob < cut.lowest - tolerance or token.name not in token.best


def check_penalties(evidence: Evidence, tolerance: float) -> Finding:
    """Penalties take exactly the nats that are asked for from tokens that were generated."""
    offered = [(name, value) for name, value in PENALTIES if evidence.all(name)]
    if not offered:
        return not_offered(evidence.reason(PENALTIES[0][0]))
    readings: list[tuple[Reading, Answer, Answer]] = []
    moved = 0
    for name, value in offered:
        for reading, one, other, plain, found, penalties in penalty_readings(evidence, name, value, tolerance):
            readings.append((reading, one, other))
            values = {token: logprob - penalties.get(token, 0.0) for token, logprob in plain.best.items()}
            if found.name not in values:
                continue
            off = max(values.values()) - values[found.name]
            if off > tolerance:
                return breach(
                    f"under {name} {value:g} a token was picked that is {off:.4f} nats worse than the best then",
                    one, other, off=off,
                )  # fmt: skip
            moved += plain.name != found.name
    judged = _judge(readings, tolerance, "under penalties logprobs are")
    if judged is not None and not isinstance(judged, str):
        return judged
    effect = f"{moved} answers turn where they must" if moved else "no answer is seen to turn"
    off = max((reading.off for reading, *_ in readings), default=0.0)
    return passes(f"{effect}; {_said(judged)}", off, kind=judged)


def check_constraint(evidence: Evidence, tolerance: float) -> Finding:
    """A constraint leaves logprobs as they are, or takes what it forbids out of them."""
    pairs = evidence.pairs("plain", "choice")
    if not pairs:
        return not_offered(evidence.reason("choice"))
    readings = []
    for _, one, other in pairs:
        free, bound = _first(one), _first(other)
        if free is not None and bound is not None:
            readings.append((read_constraint(free, bound, tolerance), one, other))
    known = [entry for entry in readings if math.isfinite(entry[0].off)]
    for _, answer, scored in evidence.pairs("choice", "scoredchoice"):
        # Behind the first token a mask may leave a single one: raw numbers are the model's own all the same.
        offs = [
            (one.logprob or 0.0) - (two.logprob or 0.0)
            for one, two in zip(answer.only.tokens, scored.only.tokens, strict=False)
        ]
        if min(offs, default=0.0) < -tolerance:
            return breach(
                f"under a constraint a token is less likely than without, by {-min(offs):.4f} nats", answer, scored,
                off=-min(offs),
            )  # fmt: skip
        raw = max(map(abs, offs), default=0.0)
        known.append((Reading("raw" if raw <= tolerance else "processed", raw, 0.0), answer, scored))
    if not known:
        return passes("held; no alternative is common to the logprobs with and without it")
    judged = _judge(known, tolerance, "under a constraint logprobs are")
    if judged is not None and not isinstance(judged, str):
        return judged
    return passes(f"held; {_said(judged)}", max(reading.off for reading, *_ in known), kind=judged)


def check_logprobs_mode(evidence: Evidence, tolerance: float) -> Finding:
    """LMTP: `logprobs_mode` `processed` has the distribution that is sampled from."""
    pairs = [(one, other) for name in ("cold", "top_k") if (other := evidence.first_of(f"mode/{name}")) is not None
             and (one := evidence.first_of("plain/0")) is not None]  # fmt: skip
    if not pairs:
        return not_offered(evidence.reason("mode") if evidence.mode_claimed else "no request chooses it")
    worst = 0.0
    for one, other in pairs:
        plain, found = _first(one), _first(other)
        cut = None if plain is None else cut_of(plain)
        if plain is None or found is None:
            continue
        if other.question.top_k is None:
            reading = read_temperature(plain, found, COLD, tolerance)
        elif cut is not None:
            reading = read_truncation(plain, found, cut, tolerance)
        else:
            continue
        if reading.processed > tolerance or reading.kind == "raw":
            return breach(
                f"processed logprobs are off by {reading.processed:.4f} nats", one, other, off=reading.processed
            )
        worst = max(worst, reading.processed)
    return passes(f"processed ones are those that are sampled from, within {worst:.1e} nats", worst)


KIND_SOURCES = ("temperature", "top_p", "top_k", "min_p", "penalties")
"""Checks whose findings tell what logprobs are of."""


def judge_kind(evidence: Evidence, findings: dict[str, Finding], claim: Kind | None) -> Finding:
    """All parameters agree about what logprobs are of, and so does a claim."""
    found = {name: findings[name].measured.get("kind") for name in KIND_SOURCES if name in findings}
    known = {name: kind for name, kind in found.items() if kind is not None}
    answers = [*evidence.all("plain"), *evidence.all("cold"), *evidence.all("top_k")]
    if not known:
        return not_offered("nothing tells: see temperature and truncation")
    if len(set(known.values())) > 1:
        shown = ", ".join(f"{kind} under {name}" for name, kind in known.items())
        return breach(f"neither raw nor processed: {shown}", *answers)
    kind = next(iter(known.values()))
    if claim is not None and kind != claim:
        return breach(f"they are {kind}; claimed is {claim}", *answers)
    meaning = "the model's own" if kind == "raw" else "of what is sampled from"
    return passes(f"{kind}: {meaning}, by {', '.join(known)}", kind=kind)
