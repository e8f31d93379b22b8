"""A conversation to be continued, in one form for every provider, and the one table of unified parameters."""

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
"""What a turn may have beside text: images in the request itself, images by their address, sounds."""

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
"""Unified names, as the unified API has them, and Glide's spelling of each in a configuration."""
_UNIFIED_BY_SPELLING = {spelling: name for name, spelling in UNIFIED_PARAMETERS.items()}
_CHOICES = Range(1, 128, integer=True)
MAX_STOPS = 16
"""Texts in `stop`."""


def unified_name(name: str) -> str:
    """The unified name of a parameter in either spelling; any other name as it is."""
    return _UNIFIED_BY_SPELLING.get(name, name)


def checked_parameter(name: str, value: object, api: Literal["openai", "anthropic"] = "openai") -> object:
    """The value of a unified parameter; `stop` as a list. Raises `RequestError` for one that it cannot have.

    api: whose range a number must be in.
    """
    if name == "stop":
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(one, str) and one for one in texts):
            raise RequestError(wrong_value(name, value, "a text or a list of texts, none empty"))
        if len(texts) > MAX_STOPS:
            raise RequestError(f"{name} has {len(texts)} texts; expected at most {MAX_STOPS}")
        return list(texts)
    if name == "logitBias":
        if not isinstance(value, dict) or not all(one in Range(-100, 100) for one in value.values()):
            raise RequestError(wrong_value(name, value, "token ids with numbers from -100 to 100"))
        return {str(token): bias for token, bias in value.items()}
    parameter = NUMERIC_PARAMETERS.get(UNIFIED_PARAMETERS[name])
    expected = _CHOICES if parameter is None else getattr(parameter, api)
    if value not in expected:
        raise RequestError(wrong_value(name, value, expected))
    return value


@dataclass(frozen=True, slots=True)
class MultimodalMessage(ChatMessage):
    """A turn with images or sounds; its `content` has the texts alone."""

    parts: str = "[]"
    """Of the content, in order, as OpenAI's API has them: the JSON text of an array of objects, each with a `type`."""
    media: tuple[Media, ...] = ()
    """Which are among them."""

    @classmethod
    def of(cls, role: str, parts: Sequence[Mapping[str, Any]]) -> MultimodalMessage:
        """The turn with these parts, each of type `text`, `image_url` or `input_audio`."""
        texts = [part["text"] for part in parts if part["type"] == "text"]
        media = {_media(part) for part in parts if part["type"] != "text"}
        return cls(role, "\n".join(texts), parts=json.dumps(parts), media=tuple(sorted(media)))


def _media(part: Mapping[str, Any]) -> Media:
    if part["type"] == "input_audio":
        return "sounds"
    return "images" if str(part["image_url"].get("url")).startswith("data:") else "image_urls"


@dataclass(frozen=True, slots=True)
class Thinking:
    """How much a model is to think before its answer. An API gets what it has a word for, see `thinking`."""

    enabled: bool | None = None
    """Whether it is to think; None: as it does by itself."""
    budget: int | None = None
    """Most tokens of the thought; None: any number."""
    effort: str | None = None
    """How much, in a word such as `low`."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation whose next assistant's turn is requested. Which model answers is not part of it."""

    messages: tuple[ChatMessage, ...]
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Values by unified name, and by a provider's own name what `Provider.own_parameters` lists."""
    tools: tuple[Mapping[str, object], ...] = ()
    """What may be called, each as OpenAI's API has it: `{"type": "function", "function": {...}}`."""
    tool_choice: ToolChoice | None = None
    """Whether a tool may, must or must not be called; None: the provider's default."""
    tool_name: str | None = None
    """The tool that must be called, under `named`."""
    parallel_tool_calls: bool | None = None
    """Whether one answer may have several calls; None: the provider's default."""
    response_format: Mapping[str, object] | None = None
    """The form of the text as OpenAI's API has it: type `json_object`, or `json_schema` with a schema."""
    logprobs: bool = False
    """Whether the tokens of the answer are requested with their logprobs."""
    top_logprobs: int | None = None
    """Alternatives beside each token; None: none requested."""
    stream: bool = False
    """Whether the answer is requested piece by piece."""
    thinking: Thinking | None = None
    """None: the request does not say."""
    prefill: str = ""
    """The beginning of the answer, which another model has given: the rest is requested, see `providers.prefill`."""

    @property
    def media(self) -> tuple[Media, ...]:
        """What there is beside text in it."""
        found = [one.media for one in self.messages if isinstance(one, MultimodalMessage)]
        return tuple(sorted({name for names in found for name in names}))
