"""How a call of a provider ended: its status, headers and answer in, an outcome that health and fallback go by out.

Nothing of what the provider wrote is in an outcome: it may repeat keys and prompts.
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
"""No answer within the time for all of it."""
FIRST_TOKEN_TIMEOUT = Outcome("fault", "first token timeout")
"""Nothing of a stream within the time for its first token."""
NO_CONNECTION = Outcome("fault", "no connection")
"""Nobody listens, or no TLS connection could be made."""
RESET = Outcome("fault", "connection lost")
"""The connection broke before the answer was complete."""
TOO_LARGE = Outcome("fault", "answer too large")
MALFORMED = Outcome("fault", "malformed answer")
EMPTY = Outcome("fault", "empty answer")
INCOMPLETE = Outcome("fault", "incomplete answer")
"""The answer ended without saying why."""
ERROR_IN_ANSWER = Outcome("fault", "error in the answer")
CONTEXT_TOO_LONG = Outcome("context_too_long")

_KEY_STATUSES = frozenset({401, 402, 403})
_SERVER_STATUSES = frozenset({408, 409, 425})
"""Statuses below 500 that say nothing about the request: a timeout, a conflict, too early."""
_CONTEXT_TOO_LONG = re.compile(
    r"context_length_exceeded|context_overflow|exceed_context_size|context (?:length|window|size|limit)"
    r"|(?:prompt|input|request) is too long|too many tokens|exceeds the (?:maximum number of tokens|available context)",
    re.IGNORECASE,
)
"""Codes and sentences of OpenAI, Azure, vLLM, llama.cpp, Anthropic, Cohere, Gemini and lmtool."""
_TOKENS = re.compile(
    r"(?:too long: (?:at least )?|resulted in |you requested |request has |request \(|token count \()([\d,]{1,12})\b"
)
_LIMIT = re.compile(
    r"(?:tokens > |maximum context length is |context size \(|tokens allowed \(|\d \+ \d+ > )([\d,]{1,12})\b"
)
"""The numbers in such sentences: tokens of the prompt, and the most that there may be."""
_RATE_LIMIT = re.compile(r"rate_?limit|too_many_requests", re.IGNORECASE)


def outcome_of_status(status: int, headers: Mapping[str, str], body: bytes, now: float) -> Outcome:
    """What a status means, before the answer is read; `ok` for 200 to 299.

    headers: names in lower case. body: of a status that is no success, or the beginning of it. now: seconds since
    1970, to which a date in `Retry-After` is compared.
    """
    if 200 <= status < 300:
        return OK
    reason = f"status {status}"
    if status == 429:
        return Outcome("rate_limit", "rate limit", retry_after(headers, now))
    if status in _KEY_STATUSES:
        return Outcome("key_refused", "key refused")
    seconds = retry_after(headers, now)
    if status == 503 and seconds is not None:  # it has too much to do, and says for how long (RFC 9110, 15.6.4)
        return Outcome("rate_limit", reason, seconds)
    if not 400 <= status < 500 or status in _SERVER_STATUSES:
        return Outcome("fault", reason)
    failed = _failure(body)
    return _overflow(failed) or Outcome("refused", reason)


def outcome_of_failure(failed: AnswerFailed) -> Outcome:
    """What an error inside an answer means whose status was a success."""
    overflow = _overflow(failed)
    if overflow is not None:
        return overflow
    return Outcome("rate_limit", "rate limit") if _RATE_LIMIT.search(failed.code or "") else ERROR_IN_ANSWER


def outcome_of_answer(reader: AnswerReader, answer: ChatAnswer) -> Outcome:
    """What an answer comes to whose body has ended: read by the reader, folded into `answer`."""
    if answer.failure is not None and not reader.malformed:
        return outcome_of_failure(answer.failure)
    if reader.malformed:
        return MALFORMED
    if answer.empty:
        return EMPTY
    return OK if answer.finished else INCOMPLETE


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that a server wants to be left alone: `Retry-After` in seconds or as a date (RFC 9110, 10.2.3).

    OpenAI's and Azure's `retry-after-ms` goes before it. None where there is neither, or none that can be read.
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


def _failure(body: bytes) -> AnswerFailed:
    """The error that a body tells, in whichever form; the body itself where it is in none."""
    members = object_of(load(body))
    failed = AnswerFailed.of(members)
    return failed or AnswerFailed(text_of(members.get("message")) or body[:4096].decode("utf-8", "replace"))


def _overflow(failed: AnswerFailed) -> Outcome | None:
    """The outcome of an error that says that a prompt is too long, with the numbers in it; None for any other."""
    if not _CONTEXT_TOO_LONG.search(f"{failed.code} {failed.message}"):
        return None
    return overflow_of(failed.message)


def overflow_of(sentence: str) -> Outcome:
    """The outcome of a prompt that is too long, with the numbers of the sentence that says so."""
    tokens, limit = (_number(pattern.search(sentence)) for pattern in (_TOKENS, _LIMIT))
    return replace(CONTEXT_TOO_LONG, overflow=(max(tokens, limit + 1), limit)) if limit else CONTEXT_TOO_LONG


def _number(found: re.Match[str] | None) -> int:
    return 0 if found is None else int(found[1].replace(",", ""))
