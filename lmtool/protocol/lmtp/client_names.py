"""What a balancer calls its clients before its workers, so that turns are theirs there too (SPEC.md, GEN-21)."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Hashable


class ClientNames:
    """Names of clients, as `interfaces.client_of` tells them apart; nobody else's are the same, nor tell who it is."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(16)
        self._numbers: WeakKeyDictionary[Hashable, int] = WeakKeyDictionary()
        self._next = itertools.count(1)

    def name(self, client: Hashable) -> str:
        """The name of a client, the same as long as it lives: a key by its name, a connection by a number."""
        if isinstance(client, tuple):
            return self._hidden(repr(client))
        try:
            number = self._numbers.get(client)
            if number is None:
                number = self._numbers[client] = next(self._next)
        except TypeError:  # it cannot be referred to weakly
            return self._hidden(f"object {id(client)}")
        return self._hidden(str(number))

    def _hidden(self, text: str) -> str:
        return hashlib.blake2b(text.encode(), key=self._secret, digest_size=12).hexdigest()
