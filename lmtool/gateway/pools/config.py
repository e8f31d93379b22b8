"""Configuration of pools: what each field means, with its default. `config_reader` reads it from YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.gateway.routing.health import ErrorBudget
from lmtool.gateway.routing.passes import RetryPolicy
from lmtool.gateway.routing.strategies import LatencyPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.gateway.pools.references import SecretSource
    from lmtool.protocol.providers.provider import Provider, Settings

DEFAULT_POOL = "default"
DEFAULT_PORT = 9099
"""As Glide's."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a member may take, in seconds."""

    total: float = 300.0
    """From the request to the end of the answer."""
    first_token: float | None = 60.0
    """From the request to the first piece of a streamed answer; None: the total alone counts."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What a member costs, per million tokens, in any one currency."""

    prompt: float = 0.0
    response: float = 0.0

    def of(self, prompt_tokens: int, response_tokens: int) -> float:
        """The cost of an answer."""
        return (prompt_tokens * self.prompt + response_tokens * self.response) / 1e6


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """A provider behind an HTTP API."""

    provider: Provider
    settings: Settings
    """With the key as it was when the configuration was read."""
    key: SecretSource | None = None

    @property
    def name(self) -> str:
        """The provider's."""
        return self.provider.name


@dataclass(frozen=True, slots=True)
class LmtpTarget:
    """A server of LMTP."""

    endpoint: str = field(repr=False)
    """As `LmtpClient` takes it; it may have credentials."""
    key: SecretSource | None = None
    name: str = "lmtp"


@dataclass(frozen=True, slots=True)
class LocalTarget:
    """The model of this machine: the server's own, or for a gateway that of the server at `--endpoint`."""

    name: str = "local"


@dataclass(frozen=True, slots=True)
class LitellmTarget:
    """A provider of the litellm package."""

    arguments: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Of its `acompletion`; keys are `Secret`s."""
    name: str = "litellm"


Target: TypeAlias = HttpTarget | LmtpTarget | LocalTarget | LitellmTarget


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """One model of a pool."""

    id: str
    target: Target
    model: str | None
    """As the provider calls it; None: the only one."""
    weight: int = 1
    budget: ErrorBudget = field(default_factory=ErrorBudget)
    latency: LatencyPolicy = field(default_factory=LatencyPolicy)
    timeouts: Timeouts = field(default_factory=Timeouts)
    prices: Prices | None = None
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Parameters by unified name, where a request has none."""


def takes_prefill(member: MemberConfig) -> bool:
    """True if a member goes on with an answer that has begun, as far as its configuration tells."""
    target = member.target
    return not isinstance(target, HttpTarget) or target.provider.prefill_style(target.settings) is not None


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """A cache of whole answers to equal requests."""

    kind: Literal["memory", "sqlite"] = "memory"
    path: str | None = None
    """Of the sqlite file."""
    max_bytes: int = 64 << 20
    max_age: float = 3600.0
    """Seconds."""
    sampled: bool = False
    """True if answers with a temperature above 0 and without a seed are kept too."""


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Members that answer for each other, under one name."""

    id: str
    members: tuple[MemberConfig, ...]
    strategy: str = "priority"
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    overridable: frozenset[str] = frozenset()
    """Parameters, by unified name, that requests to the unified API may set."""
    cache: CacheConfig | None = None
    continue_by: Literal["prefill"] | None = None
    """How a member goes on with an answer of another one that broke off; None: it does not."""

    @property
    def summary(self) -> str:
        """The pool in a line."""
        line = f"{self.id}  {self.strategy}  {', '.join(member.id for member in self.members)}"
        able = ", ".join(member.id for member in self.members if takes_prefill(member))
        return line if self.continue_by is None else f"{line}  continue: {self.continue_by} by {able}"


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """All pools, and where the gateway listens unless its options say otherwise."""

    pools: tuple[PoolConfig, ...]
    host: str | None = None
    port: int | None = None


LOCAL_POOL = PoolConfig(DEFAULT_POOL, (MemberConfig("local", LocalTarget(), None),))
"""What there is without a configuration."""
