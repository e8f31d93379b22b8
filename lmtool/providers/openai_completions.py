"""Answers of OpenAI's chat completions and completions, whole and streamed: both have choices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.providers.answer_events import ChoiceFinished, TextDelta, TokenUsage, ToolCallDelta
from lmtool.providers.json_values import list_of, object_of, text_of
from lmtool.providers.logprobs import read_logprobs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.providers.answer_events import AnswerEvent, TextKind

_REASONING = ("reasoning_content", "reasoning")
"""Where servers put what a model thinks first; OpenAI's own does not tell it."""


def read(value: Mapping[str, object]) -> Iterator[AnswerEvent]:
    """The events of a chunk, or of a whole answer."""
    for place, choice in enumerate(list_of(value.get("choices"))):
        if isinstance(choice, dict):
            yield from _choice(choice, place)
    usage = value.get("usage")
    if isinstance(usage, dict):
        yield TokenUsage.of(usage, "prompt_tokens", "completion_tokens")


def _choice(choice: Mapping[str, object], place: int) -> Iterator[AnswerEvent]:
    index = choice.get("index")
    number = index if type(index) is int and index >= 0 else place
    tokens = read_logprobs(choice.get("logprobs"))
    message = object_of(choice.get("delta", choice.get("message", choice)))
    for text, kind in _texts(message):
        yield TextDelta(number, text, tokens, kind)
        tokens = ()
    if tokens:
        yield TextDelta(number, "", tokens)
    yield from _calls(message, number)
    reason = choice.get("finish_reason")
    if reason is not None:
        stop = choice.get("stop_reason")
        word = "tool_calls" if reason == "function_call" else str(reason)
        yield ChoiceFinished(number, word, stop if isinstance(stop, str) else None)


def _texts(message: Mapping[str, object]) -> Iterator[tuple[str, TextKind]]:
    """What was added to each kind of text, empty ones left out; a choice of a completion is its own message."""
    for name in _REASONING:
        if text := text_of(message.get(name)):
            yield text, "reasoning"
            break
    content = message.get("content", message.get("text"))
    for part in content if isinstance(content, list) else ():  # some servers answer in parts, as messages may be sent
        if text := text_of(object_of(part).get("text")):
            yield text, "text"
    if isinstance(content, str) and content:
        yield content, "text"
    if text := text_of(message.get("refusal")):
        yield text, "refusal"


def _calls(message: Mapping[str, object], choice: int) -> Iterator[ToolCallDelta]:
    calls = list_of(message.get("tool_calls"))
    older = message.get("function_call")
    for place, call in enumerate(calls or ([{"function": older}] if isinstance(older, dict) else ())):
        members = object_of(call)
        function, index = object_of(members.get("function")), members.get("index")
        yield ToolCallDelta(
            choice,
            index if type(index) is int else place,
            text_of(members.get("id")) or None,
            text_of(function.get("name")) or None,
            text_of(function.get("arguments")),
        )
