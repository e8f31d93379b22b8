"""The transcripts of LMTP's specification, and what a server answers to them."""

from __future__ import annotations

import json
import re
from typing import Any

from websockets.asyncio.client import ClientConnection

from tests.protocol.lmtp.harness import split

TRANSCRIPT = re.compile(r"^```lmtp\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANY = "\N{HORIZONTAL ELLIPSIS}"
"""Stands for `...`: as a value for any value, as a name for any further members."""
ANY_TOKENS = "< TOKEN [...]"
"""The line that stands for any number of tokens."""


def expected(payload: str) -> list[Any]:
    """A payload with its wildcards."""
    payload = re.sub(r",\s*\.\.\.\}", f',"{ANY}":0}}', payload).replace("{...}", f'{{"{ANY}":0}}')
    entries: list[Any] = json.loads(payload.replace(":...", f':"{ANY}"').replace("[...]", f'["{ANY}"]'))
    return entries


def matches(wanted: Any, found: Any) -> bool:
    """Whether a value is the expected one: numbers within what two digits say, wildcards anything."""
    if wanted == ANY:
        return True
    if isinstance(wanted, dict) and isinstance(found, dict):
        more = wanted.keys() == found.keys() or (ANY in wanted and wanted.keys() - {ANY} <= found.keys())
        return more and all(matches(value, found[name]) for name, value in wanted.items() if name != ANY)
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(matches, wanted, found))
    if isinstance(wanted, float) and isinstance(found, float):
        return abs(wanted - found) < 0.03
    return bool(wanted == found) and isinstance(wanted, bool) == isinstance(found, bool)


class Answers:
    """The entries that a server sends, one after the other."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._entries: list[tuple[str, dict[str, Any]]] = []

    async def take(self) -> tuple[str, dict[str, Any]]:
        """The next entry and its command."""
        while not self._entries:
            frame = await self._connection.recv()
            assert isinstance(frame, str)
            command, entries = split(frame)
            self._entries += [(command, entry) for entry in entries]
        return self._entries.pop(0)

    async def expect(self, frame: str, *, skipping: bool) -> None:
        """The entries of a frame come next, in whatever frames. skipping: any others may come before."""
        command, _, payload = frame.partition(" ")
        for wanted in expected(payload):
            found = await self.take()
            while skipping and not (found[0] == command and matches(wanted, found[1])):
                found = await self.take()
            assert found[0] == command
            assert matches(wanted, found[1]), (wanted, found[1])
