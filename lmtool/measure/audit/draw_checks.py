"""Checks of many draws: that tokens come as often as is claimed, and that temperature does what it says."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from lmtool.measure.audit.evidence import COLD, breach, not_offered, passes
from lmtool.measure.audit.frequencies import claimed_event, settle, tempered_event

if TYPE_CHECKING:
    from lmtool.measure.audit.evidence import Evidence, Finding
    from lmtool.measure.audit.frequencies import Draws

LEAST = 50
"""Positions below which draws tell nothing."""


def check_calibration(evidence: Evidence, tolerance: float) -> Finding:  # noqa: ARG001  # the signature of checks
    """Tokens that are sampled at temperature 1 come as often as their probabilities say."""
    tokens = [token for answer in evidence.all("draws") for choice in answer.choices for token in choice.tokens]
    draws = settle(tokens, partial(claimed_event, width=evidence.width))
    return _judge(evidence, "draws", draws)


def check_calibration_sharpened(evidence: Evidence, tolerance: float) -> Finding:  # noqa: ARG001  # as above
    """At another temperature tokens come as often as the logprobs say for it."""
    tokens = [token for answer in evidence.all("colddraws") for choice in answer.choices for token in choice.tokens]
    if evidence.kind == "processed":
        draws = settle(tokens, partial(claimed_event, width=evidence.width))
    else:
        draws = settle(tokens, partial(tempered_event, width=evidence.width, temperature=COLD))
    return _judge(evidence, "colddraws", draws)


def _judge(evidence: Evidence, name: str, draws: Draws) -> Finding:
    if not evidence.all(name):
        return not_offered(evidence.reason(name))
    if draws.positions < LEAST:
        return not_offered(f"{draws.positions} tokens tell nothing: too few alternatives, or none of them comes")
    claimed, seen = draws.claimed_best / draws.positions, draws.best / draws.positions
    figures = {"positions": draws.positions, "claimed": claimed, "seen": seen, "log_capital": draws.highest}
    shares = f"the best one is claimed in {claimed:.1%} and came in {seen:.1%} of {draws.positions:,} tokens"
    if draws.refuted:
        odds = f"1e{draws.highest / math.log(10):.0f}"
        return breach(
            f"{shares}; odds against the claims {odds} to 1", *evidence.all(name)[:8], off=seen - claimed, **figures
        )
    return passes(shares, abs(seen - claimed), **figures)
