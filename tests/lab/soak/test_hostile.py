"""Attacks on a real server over all of its wires, beside good streams; and servers that break, which are noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.lab.soak.attacks import GRPC, ROUTES, SOCKETS
from tests.lab.soak.connection import Address
from tests.lab.soak.good_streams import GoodStreams
from tests.lab.soak.hostile import Attacker
from tests.lab.soak.tally import Tally
from tests.lab.soak.visits import Visitor
from tests.lab.soak.wires import SoakTarget, find_wires
from tests.serving.keyed_wires import keyed_server

KEYS = '[[keys]]\nname = "soak"\nkey = "soak-key"\n'
ALL = (*SOCKETS, *ROUTES, GRPC)


async def test_a_server_that_holds(tmp_path: Path) -> None:
    """Every wire is found, hundreds of attacks are answered as they should be, and good streams do not change."""
    async with keyed_server(KEYS, tmp_path) as server:
        address = Address.of(server.url, "soak-key")
        target = await find_wires(address, "lmtool-tiny", server.grpc.removeprefix("grpc://"))
        assert target.wires == ALL
        assert target.pool == "own"
        good, tally = GoodStreams(address, target, len(ALL) - 1, 12), Tally()
        await good.once()
        running = asyncio.create_task(good.endless())
        attackers = [Attacker(address, target, tally, f"test {number}", 60) for number in range(12)]
        visitors = [Visitor(address, target, tally, f"test {number}", 60) for number in range(8)]

        async def visit(visitor: Visitor) -> None:
            for part in ("churn", "faults", "churn", "faults"):
                await visitor.turn(part)

        async def attack(attacker: Attacker) -> None:
            for _ in range(10):
                await attacker.turn()

        await asyncio.gather(*map(attack, attackers), *map(visit, visitors))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await good.once()
        await good.close()
        assert [*tally.breaches, *good.breaches] == [], "\n".join([*tally.breaches, *good.breaches])
        assert all(each.equal > 1 for each in good.streams if each.wire != "unified")  # a pool's answers are not seeded
        assert {wire for part, wire, _ in tally.outcomes if part == "hostile"} == set(ALL)
        assert tally.sent("hostile") > 120
        assert tally.sent("churn") == tally.sent("faults") == 16


async def test_wires_over_a_unix_socket(tmp_path: Path) -> None:
    """The same wires, and the same answers."""
    async with keyed_server(KEYS, tmp_path) as server:
        address, tally = Address.of(server.unix, "soak-key"), Tally()
        target = await find_wires(address, "lmtool-tiny", None)
        assert target.wires == ALL[:-1]
        good = GoodStreams(address, target, len(ALL) - 2, 6)
        await good.once()
        await good.once()
        await good.close()
        attacker = Attacker(address, target, tally, "unix", 60)
        for _ in range(8):
            await attacker.turn()
        assert [*tally.breaches, *good.breaches] == [], "\n".join([*tally.breaches, *good.breaches])
        assert all(each.equal for each in good.streams if each.wire != "unified")


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[Address]:
    """A server that answers every connection with these bytes, and closes it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(answer)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield Address.of(f"127.0.0.1:{listening.sockets[0].getsockname()[1]}")


BROKEN = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops"
TARGET = SoakTarget(("chat",), "m")


async def test_a_server_that_fails_is_noticed() -> None:
    """A 500 is a breach that names the attack; plain requests must be answered well."""
    async with answering(BROKEN) as address:
        tally = Tally()
        attacker = Attacker(address, TARGET, tally, "s", 5)
        for _ in range(5):
            await attacker.turn()
        assert all("status 500: oops" in one for one in tally.breaches)
        assert "(seed s, attack 1)" in tally.breaches[0]
        tally = Tally()
        await Visitor(address, TARGET, tally, "s", 5).turn("churn")
        assert tally.breaches == ["churn chat: a plain request was answered with 500: oops"]


async def test_a_server_that_hangs_up_is_noticed() -> None:
    """Whoever sends nonsense may be cut off, whoever sends a plain request may not."""
    async with answering(b"") as address:
        tally = Tally()
        await Attacker(address, TARGET, tally, "s", 5).turn()
        assert tally.breaches == []
        await Visitor(address, TARGET, tally, "s", 5).turn("churn")
        assert "closed the connection of a plain request" in tally.breaches[0]


async def test_a_server_that_does_not_answer_is_noticed() -> None:
    """A whole request is answered in time; half of one need not be."""

    async def swallow(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with await asyncio.start_server(swallow, "127.0.0.1", 0) as listening:
        address = Address.of(f"127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        tally = Tally()
        await Visitor(address, TARGET, tally, "s", 0.05).turn("churn")
    assert tally.breaches == ["churn chat: no byte within 0.05 s"]


class Changing(GoodStreams):
    """Streams of a server that says something else the second time."""

    async def http(self, each: object, record: object) -> tuple[object, ...]:
        self.calls = getattr(self, "calls", 0) + 1
        return ("a", self.calls)


@pytest.mark.parametrize("settled", [False, True])
async def test_a_stream_that_changes_is_noticed(monkeypatch: pytest.MonkeyPatch, settled: bool) -> None:
    """Unless it did so on the quiet server already: such answers, of other providers, cannot be compared."""
    from tests.lab.soak import good_streams

    monkeypatch.setitem(good_streams._WAYS, "http", Changing.http)
    good = Changing(Address.of(":1"), TARGET, 1, 4)
    await good.once()
    if settled:
        await good.once()
        assert "says something else each time" in good.settle()[0]
    await good.once()
    assert good.breaches == (
        [] if settled else ["good stream 0 over chat differs from its first run: at 1: 1 became 2"]
    )
