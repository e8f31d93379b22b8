"""Answers of Ollama's own API, chat and generate, whole and streamed: a JSON line for each piece."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.providers.answer_events import ChoiceFinished, TextDelta, TokenUsage, ToolCallDelta
from lmtool.providers.json_values import count_of, list_of, object_of, text_of
from lmtool.providers.logprobs import token_entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmtool.providers.answer_events import AnswerEvent


def read(value: Mapping[str, object]) -> Iterator[AnswerEvent]:
    """The events of a line, or of a whole answer, which has the same form."""
    message = object_of(value.get("message", value))
    tokens = token_entries(value.get("logprobs"))
    if thinking := text_of(message.get("thinking")):
        yield TextDelta(0, thinking, tokens, "reasoning")
        tokens = ()
    text = text_of(message.get("content", message.get("response")))
    if text or tokens:
        yield TextDelta(0, text, tokens)
    for place, call in enumerate(list_of(message.get("tool_calls"))):
        function = object_of(object_of(call).get("function"))
        arguments = json.dumps(function.get("arguments"), ensure_ascii=False)
        yield ToolCallDelta(0, place, name=text_of(function.get("name")), arguments=arguments)
    if value.get("done") is True:
        yield TokenUsage(count_of(value.get("prompt_eval_count")), count_of(value.get("eval_count")))
        yield ChoiceFinished(0, text_of(value.get("done_reason")) or "stop")
