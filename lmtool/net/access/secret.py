"""A secret, such as a provider's API key, that no log, error or screen can show by accident."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MASK = "***"
"""What is shown in place of a secret."""


class Secret:
    """A text that prints as `***`, whether by `str`, `repr` or a format; `reveal` alone gives it.

    Equal to a secret of the same text. No JSON encoder takes it.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the header that carries it."""
        return self._text

    def __repr__(self) -> str:
        return MASK

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode("utf-8", "replace"), other._text.encode("utf-8", "replace"))

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __bool__(self) -> bool:
        return bool(self._text)


class SecretFilter:
    """Replaces secrets in bytes that pass, such as an answer that repeats the key of its request."""

    def __init__(self, secrets: Iterable[Secret]) -> None:
        self._secrets = sorted({text.encode() for one in secrets if (text := one.reveal())}, key=len, reverse=True)
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """These bytes with secrets as `***`; what may be the beginning of one is held back."""
        data = self._pending + data
        for secret in self._secrets:
            data = data.replace(secret, MASK.encode())
        open_bytes = max((_open_bytes(data, secret) for secret in self._secrets), default=0)
        self._pending = data[len(data) - open_bytes :]
        return data[: len(data) - open_bytes]

    def finish(self) -> bytes:
        """What was held back and is no secret."""
        rest, self._pending = self._pending, b""
        return rest


def _open_bytes(data: bytes, secret: bytes) -> int:
    """How many of the last bytes begin the secret."""
    sizes = range(min(len(data), len(secret) - 1), 0, -1)
    return next((size for size in sizes if data.endswith(secret[:size])), 0)
