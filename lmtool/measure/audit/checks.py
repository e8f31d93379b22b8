"""All checks of an audit, in the order of its card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.measure.audit import count_checks, draw_checks, parameter_checks, same_checks, token_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lmtool.measure.audit.evidence import Evidence, Finding, Kind

TOLERANCE = 0.1
"""Nats between two computations of one number: what bfloat16 may cost."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the card."""

    name: str
    function: Callable[[Evidence, float], Finding]
    needs: str = ""
    """Parts of the interview that it looks at, beside `alone`, with blanks between."""

    @property
    def rule(self) -> str:
        """What holds where it passes."""
        return (self.function.__doc__ or "").partition("\n")[0]


_ALL_TOKENS = "temperatures crowd"
_KIND = "temperatures truncations penalties"
CHECKS: tuple[Check, ...] = (
    Check("numbers", token_checks.check_numbers, _ALL_TOKENS),
    Check("sums", token_checks.check_sums, _ALL_TOKENS),
    Check("full_vocabulary", token_checks.check_full_vocabulary, _ALL_TOKENS),
    Check("alternatives", token_checks.check_alternatives, _ALL_TOKENS),
    Check("chosen_token", token_checks.check_chosen_token, _ALL_TOKENS),
    Check("text", token_checks.check_text),
    Check("temperature", parameter_checks.check_temperature, "temperatures"),
    Check("top_p", parameter_checks.check_top_p, "temperatures truncations"),
    Check("top_k", parameter_checks.check_top_k, "temperatures truncations"),
    Check("min_p", parameter_checks.check_min_p, "temperatures truncations"),
    Check("penalties", parameter_checks.check_penalties, "penalties"),
    Check("constraint", parameter_checks.check_constraint, "temperatures constraint"),
    Check("logprobs_mode", parameter_checks.check_logprobs_mode, "temperatures modes"),
    Check("greedy", same_checks.check_greedy, "crowd endings"),
    Check("repeat", same_checks.check_repeat),
    Check("fewer_alternatives", same_checks.check_fewer_alternatives),
    Check("stream", same_checks.check_stream),
    Check("concurrency", same_checks.check_concurrency, "crowd"),
    Check("prompt_logprobs", same_checks.check_prompt_logprobs, f"scored {_KIND}"),
    Check("speculation", same_checks.check_speculation, f"scored {_KIND}"),
    Check("echo", same_checks.check_echo, "prompts"),
    Check("n", same_checks.check_choices, "copies"),
    Check("seed", same_checks.check_seed, "copies"),
    Check("usage", count_checks.check_usage, "endings copies prompts"),
    Check("finish_reason", count_checks.check_finish_reason, "endings copies"),
    Check("calibration", draw_checks.check_calibration, "draws"),
    Check("calibration_sharpened", draw_checks.check_calibration_sharpened, f"draws {_KIND}"),
)
"""Those of parameters first: they tell what logprobs are of, which later ones need to know."""
KIND = "raw_or_processed"
"""The line that sums up what logprobs are of."""
KIND_RULE = "Logprobs are all raw, or all processed, and what is claimed of them."
NAMES = (*(check.name for check in CHECKS), KIND)


def parts_of(names: Collection[str]) -> set[str]:
    """The parts of the interview that these checks look at."""
    parts = {"alone"}
    for check in CHECKS:
        if check.name in names:
            parts |= set(check.needs.split())
    return parts | (set(_KIND.split()) if KIND in names else set())


def judge(
    evidence: Evidence, tolerance: float = TOLERANCE, claim: Kind | None = None, names: Collection[str] = NAMES
) -> dict[str, Finding]:
    """The findings of these checks by name. claim: what logprobs must be of."""
    findings: dict[str, Finding] = {}
    for check in CHECKS:
        if check.name in names or check.name in parameter_checks.KIND_SOURCES:
            findings[check.name] = check.function(evidence, tolerance)
        if check.name == "logprobs_mode":
            promised: Kind | None = "raw" if evidence.mode_claimed else None  # LMTP's requests ask for raw logprobs
            findings[KIND] = parameter_checks.judge_kind(evidence, findings, claim or promised)
            kind = findings[KIND].measured.get("kind")
            evidence.kind = kind if kind in ("raw", "processed") else None
    return {name: finding for name, finding in findings.items() if name in names}
