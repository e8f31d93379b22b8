"""Outcome of a provider call, from its status, headers and answer; used for health and failover.

An outcome never contains text from the provider, which may repeat keys and prompts.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from lmtool.core.outcomes import OK, Outcome
from lmtool.protocol.providers.answer_events import AnswerFailed
from lmtool.protocol.providers.json_values import load, object_of, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.protocol.providers.answer_events import ChatAnswer
    from lmtool.protocol.providers.answer_reader import AnswerReader

TIMEOUT = Outcome("fault", "timeout")
"""No complete answer within the time limit."""
FIRST_TOKEN_TIMEOUT = Outcome("fault", "first token timeout")
"""No token of a stream within the time limit for the first one."""
NO_CONNECTION = Outcome("fault", "no connection")
"""Connection refused, or TLS handshake failed."""
RESET = Outcome("fault", "connection lost")
"""The connection closed before the answer was complete."""
TOO_LARGE = Outcome("fault", "answer too large")
MALFORMED = Outcome("fault", "malformed answer")
EMPTY = Outcome("fault", "empty answer")
INCOMPLETE = Outcome("fault", "incomplete answer")
"""The answer ended without a finish reason."""
ERROR_IN_ANSWER = Outcome("fault", "error in the answer")
CONTEXT_TOO_LONG = Outcome("context_too_long")

_KEY_STATUSES = frozenset({401, 402, 403})
_SERVER_STATUSES = frozenset({408, 409, 425})
"""Statuses below 500 that do not blame the request: timeout, conflict, too early."""
_CONTEXT_TOO_LONG = re.compile(
    r"context_length_exceeded|context_overflow|exceed_context_size|context (?:length|window|size|limit)"
    r"|(?:prompt|input|request) is too long|too many tokens|exceeds the (?:maximum number of tokens|available context)",
    re.IGNORECASE,
)
"""Matches error codes and messages of OpenAI, Azure, vLLM, llama.cpp, Anthropic, Cohere, Gemini and lmtool."""
_TOKENS = re.compile(
    r"(?:too long: (?:at least )?|resulted in |you requested |request has |request \(|token count \()([\d,]{1,12})\b"
)
_LIMIT = re.compile(
    r"(?:tokens > |maximum context length is |context size \(|tokens allowed \(|\d \+ \d+ > )([\d,]{1,12})\b"
)
"""Match the prompt's tokens and the limit in such messages."""
_RATE_LIMIT = re.compile(r"rate_?limit|too_many_requests", re.IGNORECASE)


def outcome_of_status(status: int, headers: Mapping[str, str], body: bytes, now: float) -> Outcome:
    """Outcome of a status, before the answer is read; `ok` for 200 to 299.

    headers: names in lower case. body: body of an error response, or its beginning. now: seconds since 1970, compared
    with a date in `Retry-After`.
    """
    if 200 <= status < 300:
        return OK
    reason = f"status {status}"
    if status == 429:
        return Outcome("rate_limit", "rate limit", retry_after(headers, now))
    if status in _KEY_STATUSES:
        return Outcome("key_refused", "key refused")
    seconds = retry_after(headers, now)
    if status == 503 and seconds is not None:  # overloaded for a known time (RFC 9110, 15.6.4)
        return Outcome("rate_limit", reason, seconds)
    if not 400 <= status < 500 or status in _SERVER_STATUSES:
        return Outcome("fault", reason)
    members = object_of(load(body))
    text = text_of(members.get("message")) or body[:4096].decode("utf-8", "replace")
    return _overflow(AnswerFailed.of(members) or AnswerFailed(text)) or Outcome("refused", reason)


def outcome_of_failure(failed: AnswerFailed) -> Outcome:
    """Outcome of an error inside an answer whose status was a success."""
    overflow = _overflow(failed)
    if overflow is not None:
        return overflow
    return Outcome("rate_limit", "rate limit") if _RATE_LIMIT.search(failed.code or "") else ERROR_IN_ANSWER


def outcome_of_answer(reader: AnswerReader, answer: ChatAnswer) -> Outcome:
    """Outcome of an answer whose body has ended. answer: collected from the reader's events."""
    if answer.failure is not None and not reader.malformed:
        return outcome_of_failure(answer.failure)
    if reader.malformed:
        return MALFORMED
    if answer.empty:
        return EMPTY
    return OK if answer.finished else INCOMPLETE


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to wait before a retry, from `Retry-After` in seconds or as a date (RFC 9110, 10.2.3).

    OpenAI's and Azure's `retry-after-ms` takes precedence. None if neither header is present and valid.
    """
    milliseconds = _seconds(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after", "").strip()
    seconds = _seconds(text)
    if seconds is not None or not text:
        return seconds
    try:
        date = parsedate_to_datetime(text)
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return max(0.0, value) if math.isfinite(value) else None


def _overflow(failed: AnswerFailed) -> Outcome | None:
    """Outcome of an error about a prompt that is too long; None for other errors."""
    too_long = _CONTEXT_TOO_LONG.search(f"{failed.code} {failed.message}")
    return overflow_of(failed.message) if too_long else None


def overflow_of(sentence: str) -> Outcome:
    """Outcome of a prompt that is too long, with the numbers in the error message."""
    tokens, limit = (_number(pattern.search(sentence)) for pattern in (_TOKENS, _LIMIT))
    return replace(CONTEXT_TOO_LONG, overflow=(max(tokens, limit + 1), limit)) if limit else CONTEXT_TOO_LONG


def _number(match: re.Match[str] | None) -> int:
    return 0 if match is None else int(match[1].replace(",", ""))
