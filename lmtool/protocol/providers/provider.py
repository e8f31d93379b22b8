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
    """Members of a body that say how much to think, from the request and the rest of the body."""


Headers: TypeAlias = "Mapping[str, str | Secret]"


@dataclass(frozen=True, slots=True)
class Settings:
    """Where a member's provider is and with what key; None: the provider's own."""

    base_url: str | None = None
    """The address below which the API's paths are; `/v1` included where the API has it."""
    api_key: Secret | None = None
    chat_endpoint: str | None = None
    """Path of the chat API below `base_url`."""
    api_version: str | None = None
    """Azure's `api-version`, Anthropic's `anthropic-version`."""
    headers: Headers = field(default_factory=dict)
    """Further headers, such as an organisation's."""
    extra_body: Mapping[str, object] = field(default_factory=dict)
    """Further members of each request's body, sent as they are."""
    prefill: PrefillStyle | Literal["none"] | None = None
    """How the API goes on with an answer that has begun; None: as its provider does."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request to be sent. Its `repr` shows neither keys nor words of the conversation."""

    method: str
    url: str
    headers: Headers
    body: bytes = field(repr=False)

    def wire_headers(self) -> dict[str, str]:
        """The headers with their secrets, for the client that sends them."""
        return {name: one.reveal() if isinstance(one, Secret) else one for name, one in self.headers.items()}


def bearer(settings: Settings) -> dict[str, str | Secret]:
    """The `Authorization` header of most APIs; none without a key."""
    key = settings.api_key
    return {} if key is None else {"authorization": Secret(f"Bearer {key.reveal()}")}


def join_url(base: str, path: str) -> str:
    """A path below a base URL."""
    return f"{base.rstrip('/')}/{path.lstrip('/')}"


Feature: TypeAlias = Literal["tools", "tool_choice", "response_format", "logprobs", "top_logprobs"] | Media
"""What a request may need beside parameters."""
ALL_FEATURES: frozenset[Feature] = frozenset(name for names in get_args(Feature) for name in get_args(names))


@dataclass(frozen=True, slots=True)
class Provider:
    """One API: pure functions that write its requests, and a table of what it takes."""

    name: str
    """As configurations have it."""
    api: Api
    """Which reader its answers have."""
    base_url: str
    """Where it is by default; empty where each customer has a URL of his own."""
    chat_path: str
    """Of the chat API, below the base URL."""
    write_chat: Callable[[ChatRequest, str, Mapping[str, object]], dict[str, object]]
    """The body of a chat from the conversation, the model's name and the parameters by the API's names."""
    parameters: Mapping[str, str]
    """The unified parameters it takes, with its names for them."""
    own_parameters: frozenset[str] = frozenset()
    """Parameters that it alone has, accepted in configurations under its own names and sent as they are."""
    compatible_parameters: Mapping[str, str] = field(default_factory=dict)
    """What compatible servers at other base URLs take beside these."""
    features: frozenset[Feature] = frozenset()
    ranges: Literal["openai", "anthropic"] = "openai"
    """Whose ranges numbers must be in."""
    prefill: PrefillStyle | None = None
    """How it goes on with an answer that has begun; None: it does not, or only servers at other base URLs do."""
    trims_prefill: bool = False
    """Whether that must not end with blanks."""
    write_thinking: ThinkingWriter | None = None
    """Writes `ChatRequest.thinking`; None: the API has no word for that."""
    write_compatible_thinking: ThinkingWriter | None = None
    """The same for compatible servers at other base URLs."""
    key_required: bool = True
    """Whether it answers nobody without a key."""
    authorize: Callable[[Settings], Headers] = bearer
    """The headers that carry the key, and others that every request has."""
    locate: Callable[[str, str, str, Settings], str] | None = None
    """The URL of a base URL, a path and a model, where it is not simply the path below the base URL."""

    def request(self, chat: ChatRequest, model: str, settings: Settings) -> HttpRequest:
        """The HTTP request for a chat.

        Raises `RequestError` for what the API cannot express.
        """
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
        """A `POST` of a JSON body to one of its paths. Raises `RequestError` for text that is no Unicode."""
        try:
            data = msgspec.json.encode({**body, **settings.extra_body})
        except UnicodeEncodeError:
            raise RequestError("the request has half of a surrogate pair, which UTF-8 cannot encode") from None
        return self.post(path, model, data, "application/json", settings)

    def post(self, path: str, model: str, data: bytes, content_type: str, settings: Settings) -> HttpRequest:
        """A `POST` of any body to one of its paths."""
        headers = {"content-type": content_type, **self.authorize(settings), **settings.headers}
        return HttpRequest("POST", self.url(path, model, settings), headers, data)

    def url(self, path: str, model: str, settings: Settings) -> str:
        """Where a path of the API is. Raises `RequestError` where the settings lack a base URL and must not."""
        base = settings.base_url or self.base_url
        if not base:
            raise RequestError(f"{self.name} needs base_url: it has no address of its own")
        return join_url(base, path) if self.locate is None else self.locate(base, path, model, settings)

    def parameter_names(self, settings: Settings) -> Mapping[str, str]:
        """The unified parameters that a member with these settings takes, with the API's names for them."""
        elsewhere = self._is_elsewhere(settings)
        return {**self.parameters, **self.compatible_parameters} if elsewhere else self.parameters

    def _is_elsewhere(self, settings: Settings) -> bool:
        """Whether a member with these settings is another server that follows the API."""
        return settings.base_url is not None and not settings.base_url.startswith(self.base_url or "\0")

    def prefill_style(self, settings: Settings) -> PrefillStyle | None:
        """How a member with these settings goes on with an answer that has begun; None: it does not."""
        if settings.prefill is not None:
            return None if settings.prefill == "none" else settings.prefill
        url = settings.base_url or ""
        return next((style for base, style in STYLES_BY_URL.items() if url.startswith(base)), self.prefill)

    def default_parameters(self, values: Mapping[str, object], settings: Settings) -> dict[str, object]:
        """Parameters of a configuration, in unified or the API's own spelling, by the names of `ChatRequest`.

        Raises `RequestError` for the first that this API lacks or whose value is out of range; call it with one at a
        time to find every fault.
        """
        names = self.parameter_names(settings)
        by_own_name = {own: name for name, own in names.items()}
        found: dict[str, object] = {}
        for spelling, value in values.items():
            name = by_own_name.get(spelling, unified_name(spelling))
            if name in names:
                found[name] = checked_parameter(name, value, self.ranges)
            elif spelling in self.own_parameters:
                found[spelling] = value
            elif name in UNIFIED_PARAMETERS:
                raise RequestError(f"{self.name} has no parameter {spelling}", f"it has {', '.join(names)}")
            else:
                raise RequestError(f"there is no parameter {spelling}", f"{self.name} has {', '.join(names)}")
        return found

    def missing_parameters(self, chat: ChatRequest, settings: Settings) -> list[str]:
        """Which of the request's parameters it lacks."""
        names = self.parameter_names(settings)
        return [name for name in chat.parameters if name not in names and name not in self.own_parameters]

    def missing_features(self, chat: ChatRequest) -> list[Feature]:
        """What the request needs beside parameters and it lacks."""
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
        """What reads a chat's answer whose body has this content type, streamed or not."""
        return AnswerReader(self.api, form_of(content_type))
