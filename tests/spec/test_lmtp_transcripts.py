"""The transcripts of the specification, each sent to a real server."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.lmtp.harness import split
from tests.spec.document import SPEC

TRANSCRIPTS = re.findall(r"^```lmtp\n(.*?)^```$", SPEC, re.MULTILINE | re.DOTALL)
ANY = "\N{HORIZONTAL ELLIPSIS}"
"""Stands for `...`: as a value for any value, as a name for any further members."""
COMMANDS = ("GENERATE", "SCORE", "MODEL_INFO", "MODELS", "CANCEL")


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


async def test_transcripts(start_server: Any) -> None:
    """GEN-1, SCO-1, INF-1, INF-6, MOD-2, MOD-3, CAN-1, TXT-2, ERR-1, ERR-2, ERR-3, EXT-5: as the document shows."""
    with start_server("lmtool-tiny") as server:
        server.expect("ready")
        for transcript in TRANSCRIPTS:
            async with asyncio.timeout(60), connect(server.url, compression=None) as connection:
                answers, skipping = Answers(connection), False
                for line in transcript.splitlines():
                    if line.startswith("> "):
                        await connection.send(line[2:])
                    elif line == "< TOKEN [...]":
                        skipping = True
                    else:
                        await answers.expect(line.removeprefix("< "), skipping=skipping)
                        skipping = False


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_transcript(command: str) -> None:
    """GEN-1, SCO-1, INF-1, CAN-1: the document shows each command at work."""
    assert any(f"> {command} " in transcript for transcript in TRANSCRIPTS)


def test_a_transcript_can_fail() -> None:
    """GEN-1: another token, number or field is not what the document shows."""
    (wanted,) = expected('[{"token":5,"logprob":-0.59,"usage":{...},"error":...,"list":[1]}]')
    found = {"token": 5, "logprob": -0.5874, "usage": {"a": 1}, "error": "x", "list": [1]}
    assert matches(wanted, found)
    for other in ({"token": 6}, {"logprob": -0.7}, {"usage": 3}, {"list": [1, 2]}, {"list": [True]}, {"more": 1}):
        assert not matches(wanted, {**found, **other})
    assert matches(expected('{"a":1,...}'), {"a": 1, "b": 2})
    assert not matches(expected('{"a":1,...}'), {"b": 2})
