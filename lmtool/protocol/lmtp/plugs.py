"""What an LMTP server and its connections are plugged into: model, limits, catalogue, log, tap."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from lmtool.protocol.lmtp.config import ServerConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.core.interfaces import Catalogue, ModelControl, ProgressSource, TokenModel
    from lmtool.net.telemetry.request_log import RequestLog
    from lmtool.protocol.lmtp.watching import Traffic


class Tap(Protocol):
    """Observes connections, such as to record them; no method may raise."""

    def opened(self, connection: int, agent: str) -> None:
        """A client has connected; agent: its `User-Agent`, empty where it sends none."""

    def frame(self, connection: int, direction: Literal[">", "<"], frame: str | bytes) -> None:
        """A frame was received (`>`) or is about to be sent (`<`)."""

    def ended(self, connection: int, by: Literal["client", "server"], code: int | None) -> None:
        """A connection has ended; code: the WebSocket close code, None where there was none."""


@dataclass(frozen=True, slots=True)
class Plugs:
    """What a server and all its connections are plugged into."""

    model: TokenModel
    config: ServerConfig = field(default_factory=ServerConfig)
    progress: ProgressSource | None = None
    """Reports loads to clients that request it."""
    catalogue: Catalogue | None = None
    """Lists what is served; without one a list is answered by the description of the one model."""
    log: Callable[[RequestLog], None] = lambda _entry: None
    """Called with each request that ends."""
    tap: Tap | None = None
    """Observes every frame."""
    control: ModelControl | None = None
    """Loads and unloads models on request; None: not here."""
    traffic: Traffic | None = None
    """What clients that may are shown of each other (WATCH); None: nothing."""
    everybody_watches: bool = False
    """True if clients may that have no key of a file; else only the server's own user, over a Unix socket."""
