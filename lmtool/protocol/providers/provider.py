"""Provider: writes the HTTP requests of one API, states its features, and selects the reader of its answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from lmtool.core.errors import RequestError
from lmtool.net.access.secret import Secret
from lmtool.protocol.providers.answer_reader import AnswerReader
from lmtool.protocol.providers.body_parts import form_of
from lmtool.protocol.providers.chat_request import UNIFIED_PARAMETERS, Media, checked_parameter, unified_name
from lmtool.protocol.providers.continuation import STYLES_BY_URL, mark_prefill, with_prefill

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.protocol.providers.answer_events import Api
    from lmtool.protocol.providers.chat_request import ChatRequest, Thinking
    from lmtool.protocol.providers.continuation import PrefillStyle

    ThinkingWriter: TypeAlias = Callable[[Thinking, ChatRequest, Mapping[str, object]], dict[str, object]]
    """Writes the body members that control thinking, from the request and the rest of the body."""


Headers: TypeAlias = "Mapping[str, str | Secret]"


@dataclass(frozen=True, slots=True)
class Settings:
    """Address, key and options of a pool member's provider; None: the provider's default."""

    base_url: str | None = None
    """Base of the API's paths, including `/v1` if the API has it."""
    api_key: Secret | None = None
    chat_endpoint: str | None = None
    """Path of the chat API, relative to `base_url`."""
    api_version: str | None = None
    """Value of Azure's `api-version` or Anthropic's `anthropic-version`."""
    headers: Headers = field(default_factory=dict)
    """Additional headers, such as an organisation id."""
    extra_body: Mapping[str, object] = field(default_factory=dict)
    """Additional members of every request body, sent unchanged."""
    prefill: PrefillStyle | Literal["none"] | None = None
    """How the API continues a partial answer; None: the provider's style."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request to send. Its `repr` contains neither keys nor text of the conversation."""

    method: str
    url: str
    headers: Headers
    body: bytes = field(repr=False)

    def wire_headers(self) -> dict[str, str]:
        """Headers with secrets in plain text, for the HTTP client."""
        return {name: value.reveal() if isinstance(value, Secret) else value for name, value in self.headers.items()}


def bearer(settings: Settings) -> dict[str, str | Secret]:
    """`Authorization` header with the key; empty without a key."""
    key = settings.api_key
    return {} if key is None else {"authorization": Secret(f"Bearer {key.reveal()}")}


def join_url(base: str, path: str) -> str:
    """URL of a path relative to a base URL."""
    return f"{base.rstrip('/')}/{path.lstrip('/')}"


Feature: TypeAlias = Literal["tools", "tool_choice", "response_format", "logprobs", "top_logprobs"] | Media
"""Request features other than parameters."""
ALL_FEATURES: frozenset[Feature] = frozenset(name for names in get_args(Feature) for name in get_args(names))


@dataclass(frozen=True, slots=True)
class Provider:
    """One API: pure functions that write its requests, and tables of what it supports."""

    name: str
    """Name in configurations."""
    api: Api
    """Selects the reader for its answers."""
    base_url: str
    """Default URL; empty if each customer has a different one."""
    chat_path: str
    """Path of the chat API, relative to the base URL."""
    write_chat: Callable[[ChatRequest, str, Mapping[str, object]], dict[str, object]]
    """Writes the body of a chat from the request, the model's name and the parameters by the API's names."""
    parameters: Mapping[str, str]
    """Supported unified parameters, with the API's names."""
    own_parameters: frozenset[str] = frozenset()
    """Further parameters by the API's names, accepted in configurations and sent unchanged."""
    compatible_parameters: Mapping[str, str] = field(default_factory=dict)
    """Unified parameters that compatible servers at other base URLs support in addition."""
    features: frozenset[Feature] = frozenset()
    ranges: Literal["openai", "anthropic"] = "openai"
    """The API whose ranges apply to numbers."""
    prefill: PrefillStyle | None = None
    """How it continues a partial answer; None: it does not, or only servers at other base URLs do."""
    trims_prefill: bool = False
    """True if a prefill must not end in white space."""
    write_thinking: ThinkingWriter | None = None
    """Writes `ChatRequest.thinking`; None: the API does not support it."""
    write_compatible_thinking: ThinkingWriter | None = None
    """Writes `ChatRequest.thinking` for compatible servers at other base URLs."""
    key_required: bool = True
    """True if requests need a key."""
    authorize: Callable[[Settings], Headers] = bearer
    """Writes the headers of every request, the key included."""
    locate: Callable[[str, str, str, Settings], str] | None = None
    """Builds the URL from base URL, path, model and settings; None: the path is appended to the base URL."""

    def request(self, chat: ChatRequest, model: str, settings: Settings) -> HttpRequest:
        """The HTTP request for a chat. Raises `RequestError` for anything the API cannot express."""
        missing = [f"parameter {name}" for name in self.missing_parameters(chat, settings)]
        missing += self.missing_features(chat)
        if missing:
            raise RequestError(f"{self.name} has no {', '.join(missing)}")
        names = self.parameter_names(settings)
        parameters = {names.get(name, name): value for name, value in chat.parameters.items() if value != []}
        style = self.prefill_style(settings)
        if chat.prefill and style is None:
            raise RequestError(f"{self.name} has no prefill")
        messages = with_prefill(chat.messages, chat.prefill, trimmed=self.trims_prefill)
        body = self.write_chat(replace(chat, messages=messages), model, parameters)
        write_thinking = self.write_compatible_thinking if self._is_elsewhere(settings) else self.write_thinking
        if chat.thinking is not None and write_thinking is not None:
            body |= write_thinking(chat.thinking, chat, body)
        if chat.prefill and style is not None:
            body = mark_prefill(body, style)
        return self.json_request(settings.chat_endpoint or self.chat_path, model, body, settings)

    def json_request(self, path: str, model: str, body: Mapping[str, object], settings: Settings) -> HttpRequest:
        """A `POST` of a JSON body to a path. Raises `RequestError` for text that is not valid Unicode."""
        try:
            data = msgspec.json.encode({**body, **settings.extra_body})
        except UnicodeEncodeError:
            raise RequestError("the request has half of a surrogate pair, which UTF-8 cannot encode") from None
        return self.post(path, model, data, "application/json", settings)

    def post(self, path: str, model: str, data: bytes, content_type: str, settings: Settings) -> HttpRequest:
        """A `POST` of any body to a path."""
        headers = {"content-type": content_type, **self.authorize(settings), **settings.headers}
        return HttpRequest("POST", self.url(path, model, settings), headers, data)

    def url(self, path: str, model: str, settings: Settings) -> str:
        """URL of a path. Raises `RequestError` if the settings need a base URL and have none."""
        base = settings.base_url or self.base_url
        if not base:
            raise RequestError(f"{self.name} needs base_url: it has no default address")
        return join_url(base, path) if self.locate is None else self.locate(base, path, model, settings)

    def parameter_names(self, settings: Settings) -> Mapping[str, str]:
        """Unified parameters that a member with these settings supports, with the API's names."""
        elsewhere = self._is_elsewhere(settings)
        return {**self.parameters, **self.compatible_parameters} if elsewhere else self.parameters

    def _is_elsewhere(self, settings: Settings) -> bool:
        """True if the settings point to a compatible server at another base URL."""
        return settings.base_url is not None and not settings.base_url.startswith(self.base_url or "\0")

    def prefill_style(self, settings: Settings) -> PrefillStyle | None:
        """How a member with these settings continues a partial answer; None: it does not."""
        if settings.prefill is not None:
            return None if settings.prefill == "none" else settings.prefill
        url = settings.base_url or ""
        return next((style for base, style in STYLES_BY_URL.items() if url.startswith(base)), self.prefill)

    def default_parameters(self, values: Mapping[str, object], settings: Settings) -> dict[str, object]:
        """Parameters of a configuration, in unified or the API's spelling, by their names in `ChatRequest`.

        Raises `RequestError` for the first parameter that this API lacks or whose value is out of range; call it with
        one parameter at a time to find all errors.
        """
        names = self.parameter_names(settings)
        by_own_name = {own: name for name, own in names.items()}
        defaults: dict[str, object] = {}
        for spelling, value in values.items():
            name = by_own_name.get(spelling, unified_name(spelling))
            if name in names:
                defaults[name] = checked_parameter(name, value, self.ranges)
            elif spelling in self.own_parameters:
                defaults[spelling] = value
            elif name in UNIFIED_PARAMETERS:
                raise RequestError(f"{self.name} has no parameter {spelling}", f"it has {', '.join(names)}")
            else:
                raise RequestError(f"there is no parameter {spelling}", f"{self.name} has {', '.join(names)}")
        return defaults

    def missing_parameters(self, chat: ChatRequest, settings: Settings) -> list[str]:
        """Parameters of the request that the API lacks."""
        names = self.parameter_names(settings)
        return [name for name in chat.parameters if name not in names and name not in self.own_parameters]

    def missing_features(self, chat: ChatRequest) -> list[Feature]:
        """Features of the request that the API lacks."""
        needs: dict[Feature, bool] = {
            "tools": bool(chat.tools),
            "tool_choice": chat.tool_choice not in (None, "auto") and bool(chat.tools),
            "response_format": chat.response_format is not None,
            "logprobs": chat.logprobs,
            "top_logprobs": bool(chat.top_logprobs),
        }
        needed: list[Feature] = [name for name, is_needed in needs.items() if is_needed]
        return [name for name in (*needed, *chat.media) if name not in self.features]

    def reader(self, content_type: str) -> AnswerReader:
        """A reader for a chat answer of this content type, streamed or not."""
        return AnswerReader(self.api, form_of(content_type))
