"""Why a pool gives no answer: errors that know every attempt, and say nothing in a provider's words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from lmtool.core.errors import (
    ContextOverflowError,
    LmtoolError,
    OverloadedError,
    RequestError,
    ServerError,
    TimeLimitError,
    deadline_error,
)
from lmtool.core.outcomes import OVERLOADED, Outcome
from lmtool.protocol.http import errors
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.providers.outcomes import CONTEXT_TOO_LONG, NO_CONNECTION, TIMEOUT, overflow_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.gateway.routing.passes import GiveUp


_OUTCOMES = {
    "context_length_exceeded": CONTEXT_TOO_LONG,
    "overloaded": OVERLOADED,
    "access_denied": Outcome("key_refused", "key refused"),
    "connection": NO_CONNECTION,
    "timeout": TIMEOUT,
}
"""Of calls of our own models by the code of the error; others by the status."""
OVER = Outcome("fault", "deadline")
"""Of a call of our own models: the time is over that the request has given itself, which is nobody's fault."""
MAX_OUTCOMES = 8
"""Members whose outcome an error's sentence has; its attempts have all."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call of a member for a request."""

    model: str
    """The member's id."""
    outcome: str
    """`ok`, or in our words how it failed."""
    ms: int
    """Milliseconds until the answer began, or the failure."""


class PoolFailedError(LmtoolError):
    """A request that no member of a pool has answered."""

    name: str = "unknown_error"
    """In the words of the unified API."""
    status: int = 500
    """Of HTTP."""
    attempts: Sequence[Attempt] = ()


class PoolUnavailableError(PoolFailedError, OverloadedError):
    """No member answers now."""

    name, status = "all_models_unavailable", 503


class PoolRefusedError(PoolFailedError, RequestError):
    """Every member finds the request at fault."""

    name, status = "request_refused", 400


class PoolContextError(PoolFailedError, ContextOverflowError):
    """The conversation is too long for every member."""

    name, status = "context_too_long", 400


class PoolBrokenError(PoolFailedError, ServerError):
    """An answer that broke off after its first words."""

    name, status = "answer_broken", 502


class PoolDeadlineError(PoolFailedError, TimeLimitError):
    """The request's own deadline is over."""

    name, status = "timeout", 504


def deadline_passed(seconds: float, attempts: Sequence[Attempt]) -> PoolDeadlineError:
    """The error of a request whose deadline is over."""
    plain = deadline_error(seconds)
    error = PoolDeadlineError(plain.message, *plain.hints)
    error.retryable, error.attempts = plain.retryable, attempts
    return error


def broken(model: str, reason: str, pieces: int, why: str = "") -> PoolBrokenError:
    """The error of an answer that broke off.

    pieces: of text or of calls that were sent before. why: nobody goes on with it, where somebody might have.
    """
    rest = f", and nobody goes on with it: {why}" if why else ""
    return PoolBrokenError(
        f"the answer of {model} broke off ({reason}) after {pieces} piece{'s' * (pieces != 1)}{rest}",
        "what was sent stays incomplete; send the request again",
    )


def gave_up(
    pool: str, step: GiveUp, attempts: Sequence[Attempt], overflows: Sequence[tuple[int, int]]
) -> PoolFailedError:
    """The error for a request that has been given up. overflows: of the members whose context was too short."""
    longest = max(overflows, key=itemgetter(1), default=None)
    error = _gave_up(pool, step, _outcomes(attempts), longest)
    error.attempts = attempts
    return error


def outcome_of_error(error: ApiError | LmtoolError) -> Outcome:
    """How a call of one of our own models failed, in our words."""
    found = error if isinstance(error, ApiError) else errors.from_error(error)
    code = error.code if isinstance(error, LmtoolError) else found.code
    known = _OUTCOMES.get(found.code or "") or _OUTCOMES.get(code or "")
    if known is CONTEXT_TOO_LONG:
        return overflow_of(found.message)
    if known is TIMEOUT and isinstance(error, LmtoolError) and not error.retryable:
        return OVER
    refused = Outcome("refused", f"refused ({found.code or found.status})")
    outcome = known or (refused if found.status < 500 else Outcome("fault", f"status {found.status}"))
    if error.retry_after > 0 and outcome.kind in {"rate_limit", "fault"}:  # it has said when it will be better
        return Outcome("rate_limit", outcome.reason, float(error.retry_after))
    return outcome


def _outcomes(attempts: Sequence[Attempt]) -> str:
    """How the last call of each member ended, for clients of APIs that have no place for attempts."""
    last = {attempt.model: attempt.outcome for attempt in attempts}
    shown = [f"{model} {outcome}" for model, outcome in list(last.items())[:MAX_OUTCOMES]]
    return f" ({', '.join(shown)}{', ...' if len(last) > MAX_OUTCOMES else ''})" if shown else ""


def _gave_up(pool: str, step: GiveUp, outcomes: str, overflow: tuple[int, int] | None) -> PoolFailedError:
    """See `gave_up`. overflow: of the member with the longest context, where one was too short."""
    if step.reason == "refused":
        if overflow is not None:
            (tokens, limit), hint = overflow, "shorten it, or its max_tokens"
            if limit:
                context = f"{limit} tokens, the longest of the pool {pool}"
                return PoolContextError.of(tokens, limit, context, hint)
            return PoolContextError(
                f"prompt is too long for every model of the pool {pool}: this model's maximum context length is less",
                hint,
            )
        return PoolRefusedError(f"every model of the pool {pool} refuses the request{outcomes}", "change the request")
    reasons = {
        "exhausted": f"no model of the pool {pool} has answered",
        "unavailable": f"every model of the pool {pool} rests",
        "deadline": f"no model of the pool {pool} has answered in time",
    }
    error = PoolUnavailableError(f"{reasons[step.reason]}{outcomes}", "try again in a moment")
    error.retry_after = max(1, math.ceil(step.seconds))
    return error
