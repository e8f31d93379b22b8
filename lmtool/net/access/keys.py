"""The API keys of a server: who holds each, what it may ask for, and how much of it."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lmtool.core.model_entry import ModelEntry


@dataclass(frozen=True, slots=True)
class Limits:
    """Most that one key, or one client address, may use over all protocols together. None: any amount."""

    connections: int | None = None
    """WebSockets and gRPC calls that are open, and HTTP requests that are being answered, at once."""
    streams: int | None = None
    """Streams at once, those that wait included."""
    queue: int | None = None
    """Streams at once that have had no token yet."""
    requests_per_minute: int | None = None
    """HTTP requests, and streams that are begun over connections of other protocols."""
    tokens_per_minute: int | None = None
    """Tokens of prompts and outputs, as they are computed."""
    prompt_tokens: int | None = None
    """Tokens of one prompt."""

    @property
    def known(self) -> Mapping[str, int]:
        """Those that are set, by name."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in values if value is not None}


@dataclass(frozen=True, slots=True)
class Key:
    """An API key. Its secret is not kept, only the hash of it."""

    name: str
    """Whose it is, for logs and metrics; unique in its file."""
    digest: bytes = field(repr=False)
    """SHA-256 of the secret."""
    limits: Limits = field(default_factory=Limits)
    priority: int | None = None
    """Lowest `priority`, that is the most urgent one, that its requests may have; None: any."""
    models: tuple[str, ...] | None = None
    """Names of models and pools, or patterns such as `Qwen/*`; None: all."""
    watch: bool = False
    """True if it may look at the streams of others."""
    admin: bool = False
    """True if it may load and unload models and read figures of all keys together, such as `/metrics`."""

    def allows(self, entry: ModelEntry) -> bool:
        """True if its requests may name a model."""
        return any(self.allows_name(name) for name in (entry.name, *entry.aliases))

    def allows_name(self, name: str) -> bool:
        """True if its requests may use a name."""
        return self.models is None or any(fnmatchcase(name, pattern) for pattern in self.models)


def digest_of(secret: str | bytes) -> bytes:
    """The hash under which a secret is kept and compared."""
    return hashlib.sha256(secret.encode() if isinstance(secret, str) else secret).digest()


@dataclass(frozen=True, slots=True)
class KeyRing:
    """All keys of a server, and the limits of each client address."""

    keys: tuple[Key, ...] = ()
    address: Limits = field(default_factory=Limits)

    def find(self, secrets: Iterable[bytes]) -> Key | None:
        """The key of one of these secrets. Takes the same time whichever of them it is, and for none."""
        found = None
        for secret in secrets:
            digest = digest_of(secret)
            for key in self.keys:
                if hmac.compare_digest(digest, key.digest):
                    found = key
        return found

    def current(self, key: Key) -> Key | None:
        """The key of the same name and secret, as it is in this ring; None where it is no longer valid."""
        return next((one for one in self.keys if one.name == key.name and one.digest == key.digest), None)
