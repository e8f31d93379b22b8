"""Requests that continue a partial answer (assistant prefill), and the text that such a continuation adds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from lmtool.core.errors import UsageError
from lmtool.core.types import ChatMessage
from lmtool.protocol.providers.answer_events import TextDelta
from lmtool.protocol.providers.json_values import list_of, object_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lmtool.protocol.providers.answer_events import AnswerEvent, Api


PrefillStyle: TypeAlias = Literal["last_message", "prefix", "continue_final_message"]
"""How an API is asked to continue the last message of the conversation, which is the start of the answer.

`last_message`: an assistant message at the end is enough (Anthropic, Ollama, llama.cpp's server). `prefix`: the message
has `"prefix": true` (Mistral, DeepSeek's beta). `continue_final_message`: a field of the request (vLLM, SGLang).
"""
PREFILL_STYLES: tuple[PrefillStyle, ...] = get_args(PrefillStyle)
STYLES_BY_URL: Mapping[str, PrefillStyle] = {
    "https://api.mistral.ai/": "prefix",
    "https://api.deepseek.com/beta": "prefix",
}
"""Styles of services with OpenAI's API, by the start of their URL."""


def with_prefill(messages: Sequence[ChatMessage], prefill: str, *, trimmed: bool = False) -> tuple[ChatMessage, ...]:
    """The conversation followed by the start of its next answer.

    trimmed: whether to strip white space at its end, which Anthropic rejects; `RestOfAnswer` compensates for this.
    """
    text = prefill.rstrip() if trimmed else prefill
    if not text:
        return tuple(messages)
    last = messages[-1] if messages else None
    if last is not None and last.role == "assistant" and not last.tool_calls:
        return (*messages[:-1], replace(last, content=last.content + text))
    return (*messages, ChatMessage("assistant", text))


def mark_prefill(body: Mapping[str, object], style: PrefillStyle) -> dict[str, object]:
    """The body of a chat that asks to continue its last message, in this style."""
    if style == "continue_final_message":
        return {**body, "continue_final_message": True, "add_generation_prompt": False}
    messages: Any = body["messages"]
    if style == "last_message" or messages[-1]["role"] != "assistant":
        return dict(body)
    return {**body, "messages": [*messages[:-1], {**messages[-1], "prefix": True}]}


class RestOfAnswer:
    """Reduces the events of an API after a prefill to the rest of the answer.

    Drops white space that was trimmed from the prefill and that the API sends again, and the whole prefill if the
    answer begins with it, as Mistral's does.
    """

    def __init__(self, prefill: str, *, trimmed: bool = False, repeats: bool = False) -> None:
        """repeats: whether the API may repeat the prefill at the start of its answer."""
        self._blanks = prefill[len(prefill.rstrip()) :] if trimmed else ""
        self._repeated = prefill if repeats else ""
        self._held = ""
        """Text held back because it may be the repeated prefill."""

    def events(self, events: Iterable[AnswerEvent]) -> list[AnswerEvent]:
        """The events without the text of the prefill."""
        kept: list[AnswerEvent] = []
        for event in events:
            if isinstance(event, TextDelta) and event.kind != "reasoning" and event.text:
                text = self._rest(event.text)
                if text == event.text:
                    kept.append(event)
                elif text:
                    kept.append(replace(event, text=text, tokens=()))
            else:
                if not isinstance(event, TextDelta) and self._held:  # no more text can complete the repetition
                    kept.append(TextDelta(0, self._held))
                    self._held = self._repeated = ""
                kept.append(event)
        return kept

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


FEWEST_TOKENS = 8
"""Smallest token limit of a continuation, even if fewer tokens were left."""
STYLES_BY_OWNER: Mapping[str, PrefillStyle] = {
    "lmtool": "continue_final_message",
    "vllm": "continue_final_message",
    "sglang": "continue_final_message",
    "llamacpp": "last_message",
    "library": "last_message",
    "mistralai": "prefix",
}
"""Styles by `owned_by` in a server's list of models; `library` is Ollama."""
_IN_PLACE_OF_IDS = (
    *("messages", "system", "input", "instructions", "previous_response_id", "documents"),
    *("add_generation_prompt", "continue_final_message"),
)
"""Members that `prompt_token_ids` replaces."""
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_ONCE = ("n", "best_of", "request_id", "prompt_logprobs", "echo", "store")
"""Members that concern the whole answer, or several answers."""


def lost_parts(body: Mapping[str, object]) -> list[str]:
    """Members of a request that depend on tokens generated so far, which the new request would not see."""
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    formats = (
        body.get("response_format"),
        object_of(body.get("text")).get("format"),
        object_of(body.get("output_config")).get("format"),
        body.get("output_format"),
    )
    guided = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "format")
    named = ("logits_processors", "presence_penalty", "frequency_penalty", "bad_words", "echo", "suffix")
    reasons = [f"its {name}" for name in named if body.get(name)]
    if any(object_of(form).get("type") not in (None, "text") for form in formats) or any(map(body.get, guided)):
        reasons.append("the form that its answer must have")
    if kind not in (None, "auto", "none"):
        reasons.append("the call that it must make")
    if type(best := body.get("best_of")) is int and best != (body.get("n") or 1):
        reasons.append("its best_of")
    if body.get("add_generation_prompt") is False and not body.get("continue_final_message"):
        reasons.append("its add_generation_prompt")
    return reasons


def stops_of(body: Mapping[str, object]) -> list[str]:
    """Stop strings of a request."""
    stop = body.get("stop", body.get("stop_sequences"))
    return [text for text in ([stop] if isinstance(stop, str) else list_of(stop)) if isinstance(text, str)]


def rest_of(body: Mapping[str, object], choice: int, used: int) -> dict[str, Any]:
    """The body for the rest of one choice after `used` tokens, with an unchanged prompt.

    The seed is that of the choice: the request's seed plus the choice's index (lmtool, vLLM).
    """
    rest: dict[str, Any] = {name: value for name, value in body.items() if name not in _ONCE}
    for name in _LIMITS:
        if type(limit := rest.get(name)) is int:
            rest[name] = max(FEWEST_TOKENS, limit - used)
    if type(least := rest.get("min_tokens")) is int:
        rest["min_tokens"] = max(0, least - used)
    if type(seed := rest.get("seed")) is int:
        rest["seed"] = seed + choice
    return rest


def continue_by_text(api: Api, rest: Mapping[str, Any], text: str, style: PrefillStyle | None) -> dict[str, Any]:
    """The body with the start of the answer as text. Raises `UsageError` for an API without continuation.

    rest: see `rest_of`. style: the server's prefill style for chat completions; None: unknown.
    """
    if "prompt_token_ids" in rest:
        raise UsageError("the prompt was sent as token ids; this server cannot append text to it")
    if api == "messages" or (api == "ollama" and "messages" in rest):
        return {**rest, "messages": _with_prefill(rest.get("messages"), text, is_continued=True)}
    if api == "completions" and isinstance(rest.get("prompt"), str):
        return {**rest, "prompt": rest["prompt"] + text}
    if api == "chat" and style is not None:
        begun = bool(rest.get("continue_final_message")) or style == "last_message" or _is_prefixed(rest)
        body = {**rest, "messages": _with_prefill(rest.get("messages"), text, is_continued=begun)}
        return mark_prefill(body, style)
    raise UsageError(_REFUSALS.get(api, f"the {api} API cannot continue a partial answer"))


_REFUSALS: Mapping[Api, str] = {
    "chat": "this server is not known to continue a partial answer; it would start a new one",
    "completions": "the prompt was sent as token ids; this server cannot append text to it",
    "responses": "the Responses API cannot continue a partial answer",
}


def continue_by_ids(api: Api, rest: Mapping[str, Any], prompt: Sequence[int]) -> dict[str, Any]:
    """The body with the prompt and the start of the answer as token ids, as lmtool's server accepts them."""
    if api == "completions":
        return {**rest, "prompt": list(prompt)}
    kept = {name: value for name, value in rest.items() if name not in _IN_PLACE_OF_IDS}
    return {**kept, "prompt_token_ids": list(prompt)}


def ask_for_prompt_ids(body: Mapping[str, object]) -> dict[str, Any]:
    """The body of a one-token request that returns the prompt ids of another request."""
    limit = next((name for name in _LIMITS if name in body), None)
    kept = {name: value for name, value in body.items() if name not in (*_ONCE, "stream_options", "min_tokens")}
    kept |= {"stream": False, "return_token_ids": True}
    if limit is None:
        limit = "max_output_tokens" if "input" in body else "max_tokens"
    return {**kept, limit: 1, **({"store": False} if "input" in body else {})}


def prompt_ids_in(answer: Mapping[str, object]) -> tuple[int, ...] | None:
    """Prompt ids in an answer that was requested with `return_token_ids`; None if it has none."""
    holders = (answer, *map(object_of, list_of(answer.get("choices"))))
    ids = next((value for holder in holders if isinstance(value := holder.get("prompt_token_ids"), list)), None)
    return None if ids is None or not all(type(token) is int for token in ids) else tuple(ids)


def _is_prefixed(body: Mapping[str, object]) -> bool:
    messages = list_of(body.get("messages"))
    return bool(messages) and object_of(messages[-1]).get("prefix") is True


def _with_prefill(given: object, text: str, *, is_continued: bool) -> list[Any]:
    """The messages with the start of the answer. is_continued: whether it extends a last assistant message."""
    messages = list(list_of(given))
    last = object_of(messages[-1]) if messages else {}
    if not is_continued or last.get("role") != "assistant":
        return [*messages, {"role": "assistant", "content": text}]
    content = last.get("content") or ""
    longer = content + text if isinstance(content, str) else [*list_of(content), {"type": "text", "text": text}]
    return [*messages[:-1], {**last, "content": longer}]
