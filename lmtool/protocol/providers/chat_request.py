"""Chat request in a form common to all providers, and the table of unified parameters."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lmtool.core.errors import RequestError
from lmtool.core.sampling_parameters import NUMERIC_PARAMETERS, Range, wrong_value
from lmtool.core.types import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ToolChoice: TypeAlias = Literal["auto", "none", "required", "named"]
Media: TypeAlias = Literal["images", "image_urls", "sounds"]
"""Media in a message: images as data, images by URL, sounds."""

UNIFIED_PARAMETERS: Mapping[str, str] = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "minP": "min_p",
    "n": "n",
    "maxTokens": "max_tokens",
    "stop": "stop",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "repetitionPenalty": "repetition_penalty",
    "logitBias": "logit_bias",
}
"""Parameter names of the unified API, and Glide's spelling of each in a configuration."""
_UNIFIED_BY_SPELLING = {spelling: name for name, spelling in UNIFIED_PARAMETERS.items()}
_CHOICES = Range(1, 128, integer=True)
MAX_STOPS = 16
"""Most texts in `stop`."""


def unified_name(name: str) -> str:
    """Unified name of a parameter in either spelling; other names are returned unchanged."""
    return _UNIFIED_BY_SPELLING.get(name, name)


def checked_parameter(name: str, value: object, api: Literal["openai", "anthropic"] = "openai") -> object:
    """The value of a unified parameter, with `stop` as a list. Raises `RequestError` for an invalid value.

    api: the API whose range applies to numbers.
    """
    if name == "stop":
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) and text for text in texts):
            raise RequestError(wrong_value(name, value, "a text or a list of texts, none empty"))
        if len(texts) > MAX_STOPS:
            raise RequestError(f"{name} has {len(texts)} texts; expected at most {MAX_STOPS}")
        return list(texts)
    if name == "logitBias":
        if not isinstance(value, dict) or not all(bias in Range(-100, 100) for bias in value.values()):
            raise RequestError(wrong_value(name, value, "token ids with numbers from -100 to 100"))
        return {str(token): bias for token, bias in value.items()}
    parameter = NUMERIC_PARAMETERS.get(UNIFIED_PARAMETERS[name])
    expected = _CHOICES if parameter is None else getattr(parameter, api)
    if value not in expected:
        raise RequestError(wrong_value(name, value, expected))
    return value


@dataclass(frozen=True, slots=True)
class MultimodalMessage(ChatMessage):
    """A message with images or sounds; its `content` has only the texts."""

    parts: str = "[]"
    """JSON text of the content parts in OpenAI's form: an array of objects with a `type` each."""
    media: tuple[Media, ...] = ()
    """Kinds of media among the parts."""

    @classmethod
    def of(cls, role: str, parts: Sequence[Mapping[str, Any]]) -> MultimodalMessage:
        """A message with these parts, each of type `text`, `image_url` or `input_audio`."""
        texts = [part["text"] for part in parts if part["type"] == "text"]
        media = {_media(part) for part in parts if part["type"] != "text"}
        return cls(role, "\n".join(texts), parts=json.dumps(parts), media=tuple(sorted(media)))


def _media(part: Mapping[str, Any]) -> Media:
    if part["type"] == "input_audio":
        return "sounds"
    return "images" if str(part["image_url"].get("url")).startswith("data:") else "image_urls"


@dataclass(frozen=True, slots=True)
class Thinking:
    """How much a model should think before it answers; each API receives the part it supports."""

    enabled: bool | None = None
    """True to think; None: the model's default."""
    budget: int | None = None
    """Most tokens of the thought; None: no limit."""
    effort: str | None = None
    """Effort level, such as `low`."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for the next assistant message of a conversation. The model is not part of it."""

    messages: tuple[ChatMessage, ...]
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Values by unified name, or by the provider's name for those in `Provider.own_parameters`."""
    tools: tuple[Mapping[str, object], ...] = ()
    """Tools in OpenAI's form: `{"type": "function", "function": {...}}`."""
    tool_choice: ToolChoice | None = None
    """True if the model may, must or must not call a tool; None: the provider's default."""
    tool_name: str | None = None
    """Name of the tool to call if `tool_choice` is `named`."""
    parallel_tool_calls: bool | None = None
    """True if one answer may have several calls; None: the provider's default."""
    response_format: Mapping[str, object] | None = None
    """Response format in OpenAI's form: type `json_object`, or `json_schema` with a schema."""
    logprobs: bool = False
    """True to return the tokens of the answer with their logprobs."""
    top_logprobs: int | None = None
    """Alternatives per token; None: none requested."""
    stream: bool = False
    """True to stream the answer."""
    thinking: Thinking | None = None
    """None: not specified."""
    prefill: str = ""
    """Start of the answer, generated by another model; only the rest is requested. See `providers.continuation`."""

    @property
    def media(self) -> tuple[Media, ...]:
        """Kinds of media in its messages."""
        messages = [message for message in self.messages if isinstance(message, MultimodalMessage)]
        return tuple(sorted({kind for message in messages for kind in message.media}))
