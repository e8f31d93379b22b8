"""Assistant prefill: how an API is asked to go on with an answer that has begun, and what it says of the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from lmtool.core.types import ChatMessage
from lmtool.protocol.providers.answer_events import TextDelta

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lmtool.protocol.providers.answer_events import AnswerEvent

PrefillStyle: TypeAlias = Literal["last_message", "prefix", "continue_final_message"]
"""How an API takes the beginning of the answer, which is always the conversation's last message.

`last_message`: by that alone (Anthropic, Ollama, llama.cpp's server). `prefix`: that message says `"prefix": true`
(Mistral, DeepSeek's beta). `continue_final_message`: the request says so (vLLM, SGLang).
"""
PREFILL_STYLES: tuple[PrefillStyle, ...] = get_args(PrefillStyle)
STYLES_BY_URL: Mapping[str, PrefillStyle] = {
    "https://api.mistral.ai/": "prefix",
    "https://api.deepseek.com/beta": "prefix",
}
"""Of services that have OpenAI's API at an address of their own, by the beginning of that."""


def with_prefill(messages: Sequence[ChatMessage], prefill: str, *, trimmed: bool = False) -> tuple[ChatMessage, ...]:
    """The conversation with the beginning of its next answer.

    trimmed: without blanks at its end, which Anthropic refuses; `RestOfAnswer` takes care of them.
    """
    text = prefill.rstrip() if trimmed else prefill
    if not text:
        return tuple(messages)
    last = messages[-1] if messages else None
    if last is not None and last.role == "assistant" and not last.tool_calls:
        return (*messages[:-1], replace(last, content=last.content + text))
    return (*messages, ChatMessage("assistant", text))


def mark_prefill(body: Mapping[str, object], style: PrefillStyle) -> dict[str, object]:
    """The body of a chat whose last message is the beginning of the answer, in this style."""
    if style == "continue_final_message":
        return {**body, "continue_final_message": True, "add_generation_prompt": False}
    messages: Any = body["messages"]
    if style == "last_message" or messages[-1]["role"] != "assistant":
        return dict(body)
    return {**body, "messages": [*messages[:-1], {**messages[-1], "prefix": True}]}


class RestOfAnswer:
    """Turns what an API says behind a prefill into the rest of the answer alone.

    Blanks that were trimmed from the prefill's end and come again are left out, and so is the whole prefill where the
    answer begins with it, as Mistral's does.
    """

    def __init__(self, prefill: str, *, trimmed: bool = False, repeats: bool = False) -> None:
        """repeats: whether the API may begin its answer with the prefill."""
        self._blanks = prefill[len(prefill.rstrip()) :] if trimmed else ""
        self._repeated = prefill if repeats else ""
        self._held = ""
        """Of what may be the prefill's repetition."""

    def events(self, events: Iterable[AnswerEvent]) -> list[AnswerEvent]:
        """The events, less what was there before."""
        found: list[AnswerEvent] = []
        for event in events:
            if isinstance(event, TextDelta) and event.kind != "reasoning" and event.text:
                text = self._rest(event.text)
                if text == event.text:
                    found.append(event)
                elif text:
                    found.append(replace(event, text=text, tokens=()))
            else:
                if not isinstance(event, TextDelta) and self._held:  # nothing more comes that could complete it
                    found.append(TextDelta(0, self._held))
                    self._held = self._repeated = ""
                found.append(event)
        return found

    def _rest(self, text: str) -> str:
        if self._repeated:
            text, self._held = self._held + text, ""
            if len(text) < len(self._repeated) and self._repeated.startswith(text):
                self._held = text
                return ""
            text, self._repeated = text.removeprefix(self._repeated), ""
        while self._blanks and text and text[0] == self._blanks[0]:
            text, self._blanks = text[1:], self._blanks[1:]
        if text:
            self._blanks = ""
        return text
