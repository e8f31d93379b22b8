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


FEWEST_TOKENS = 8
"""Tokens that the rest may have, however few were left."""
STYLES_BY_OWNER: Mapping[str, PrefillStyle] = {
    "lmtool": "continue_final_message",
    "vllm": "continue_final_message",
    "sglang": "continue_final_message",
    "llamacpp": "last_message",
    "library": "last_message",
    "mistralai": "prefix",
}
"""How chat completions are gone on with, by what a server's list of models calls their owner; Ollama says `library`."""
_IN_PLACE_OF_IDS = (
    *("messages", "system", "input", "instructions", "previous_response_id", "documents"),
    *("add_generation_prompt", "continue_final_message"),
)
"""Members that have no meaning beside `prompt_token_ids`."""
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_ONCE = ("n", "best_of", "request_id", "prompt_logprobs", "echo", "store")
"""Members that belong to the whole answer, or to several."""


def lost_parts(body: Mapping[str, object]) -> list[str]:
    """Members of a request that depend on generated tokens, and would not know of those in the new prompt."""
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
    if any(object_of(one).get("type") not in (None, "text") for one in formats) or any(map(body.get, guided)):
        reasons.append("the form that its answer must have")
    if kind not in (None, "auto", "none"):
        reasons.append("the call that it must make")
    if type(best := body.get("best_of")) is int and best != (body.get("n") or 1):
        reasons.append("its best_of")
    if body.get("add_generation_prompt") is False and not body.get("continue_final_message"):
        reasons.append("its add_generation_prompt")
    return reasons


def stops_of(body: Mapping[str, object]) -> list[str]:
    """The stop texts of a request."""
    stop = body.get("stop", body.get("stop_sequences"))
    return [one for one in ([stop] if isinstance(stop, str) else list_of(stop)) if isinstance(one, str)]


def rest_of(body: Mapping[str, object], choice: int, used: int) -> dict[str, Any]:
    """A request for the rest of one of its choices, behind `used` tokens; the prompt is as it was.

    A seed is that of the choice: the first one's is the request's own, the next one's one more (lmtool, vLLM).
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
    """The body with the beginning of the answer as text. Raises `UsageError` for an API that cannot be asked so.

    rest: see `rest_of`. style: of the server, where it serves chat completions; None: it is not known to have one.
    """
    if "prompt_token_ids" in rest:
        raise UsageError("its prompt was sent as ids, behind which this server takes no text")
    if api == "messages" or (api == "ollama" and "messages" in rest):
        return {**rest, "messages": _with_prefill(rest.get("messages"), text, goes_on=True)}
    if api == "completions" and isinstance(rest.get("prompt"), str):
        return {**rest, "prompt": rest["prompt"] + text}
    if api == "chat" and style is not None:
        begun = bool(rest.get("continue_final_message")) or style == "last_message" or _is_prefixed(rest)
        body = {**rest, "messages": _with_prefill(rest.get("messages"), text, goes_on=begun)}
        return mark_prefill(body, style)
    raise UsageError(_REFUSALS.get(api, f"its API ({api}) has no way to go on with an answer that has begun"))


_REFUSALS: Mapping[Api, str] = {
    "chat": "this server is not known to go on with an answer that has begun, and would begin another one",
    "completions": "its prompt was sent as ids, behind which this server takes no text",
    "responses": "OpenAI's Responses have no way to go on with an answer that has begun",
}


def continue_by_ids(api: Api, rest: Mapping[str, Any], prompt: Sequence[int]) -> dict[str, Any]:
    """The body with the prompt and the beginning of the answer as ids, as lmtool's server takes them."""
    if api == "completions":
        return {**rest, "prompt": list(prompt)}
    kept = {name: value for name, value in rest.items() if name not in _IN_PLACE_OF_IDS}
    return {**kept, "prompt_token_ids": list(prompt)}


def ask_for_prompt_ids(body: Mapping[str, object]) -> dict[str, Any]:
    """The body of a request that tells which ids the prompt of another one has, at the cost of one token."""
    limit = next((name for name in _LIMITS if name in body), None)
    kept = {name: value for name, value in body.items() if name not in (*_ONCE, "stream_options", "min_tokens")}
    kept |= {"stream": False, "return_token_ids": True}
    if limit is None:
        limit = "max_output_tokens" if "input" in body else "max_tokens"
    return {**kept, limit: 1, **({"store": False} if "input" in body else {})}


def prompt_ids_in(answer: Mapping[str, object]) -> tuple[int, ...] | None:
    """The prompt's ids in an answer that was asked for them; None where it has none."""
    choices = [object_of(one) for one in list_of(answer.get("choices"))]
    found = [one.get("prompt_token_ids") for one in (answer, *choices)]
    ids = next((one for one in found if isinstance(one, list)), None)
    return None if ids is None or not all(type(one) is int for one in ids) else tuple(ids)


def _is_prefixed(body: Mapping[str, object]) -> bool:
    messages = list_of(body.get("messages"))
    return bool(messages) and object_of(messages[-1]).get("prefix") is True


def _with_prefill(given: object, text: str, *, goes_on: bool) -> list[Any]:
    """The messages with the beginning of the answer. goes_on: whether an assistant's last message is part of it."""
    messages = list(list_of(given))
    last = object_of(messages[-1]) if messages else {}
    if not goes_on or last.get("role") != "assistant":
        return [*messages, {"role": "assistant", "content": text}]
    content = last.get("content") or ""
    longer = content + text if isinstance(content, str) else [*list_of(content), {"type": "text", "text": text}]
    return [*messages[:-1], {**last, "content": longer}]
