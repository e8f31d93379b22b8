"""A request that is ready to be sent, and the settings of a member that it is made with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.net.access.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.protocol.providers.prefill import PrefillStyle

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
