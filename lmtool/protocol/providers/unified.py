"""Answers of the unified API (GEP-0002), as the gateway writes them: events of whole and streamed answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.protocol.providers.answer_events import AnswerFailed, ChoiceFinished, TextDelta, TokenUsage
from lmtool.protocol.providers.json_values import count_of, list_of, object_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.protocol.providers.answer_events import AnswerEvent

ATTEMPTS = "x-lmtool-attempts"
"""Header with all attempts at pool members for a request: `main timeout 1200ms, backup ok 86ms`."""
MEMBER = "member"
"""Name under which the ids of an answer contain the pool member that answered."""


def attempts_line(attempts: object) -> str:
    """A list of attempts in the form of the header `ATTEMPTS`."""
    calls = map(object_of, list_of(attempts))
    return ", ".join(f"{call.get('model')} {call.get('outcome')} {call.get('ms')}ms" for call in calls)


def read(value: Mapping[str, object]) -> Iterator[AnswerEvent]:
    """Events of a whole answer, or of one piece of a stream."""
    answer = object_of(value.get("provider_response"))
    if not answer:
        if "attempts" in value:
            yield AnswerFailed(text_of(value.get("message")), text_of(value.get("name")) or None)
        return
    first = count_of(answer.get("choice")) or 0
    for number, choice in enumerate(map(object_of, list_of(answer.get("choices")) or [answer]), first):
        if text := text_of(object_of(choice.get("message")).get("content")):
            yield TextDelta(number, text)
        if reason := text_of(choice.get("finish_reason")) or text_of(value.get("finish_reason")):
            yield ChoiceFinished(number, reason)
    if counts := object_of(answer.get("token_count")):
        yield TokenUsage.of(counts, "prompt_tokens", "response_tokens")
