"""A secret, such as a provider's API key, that no log, error or screen can show by accident."""

from __future__ import annotations

import hmac

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
