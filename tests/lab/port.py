"""Attacks on the port itself, and how another key fares beside them: `python -m tests.lab port [OPTION...]`.

Starts `lmtool serve`, `lmtool balance` in front of one more server, and `lmtool gateway`, each with two keys. Each
attack lasts `--seconds` on `--connections` connections, which begin anew when they are closed; some show a key.
Meanwhile the other key asks for one token, ten times a second. Prints how many bytes were sent, by how much the memory
of the server and its helpers grew at most and in the end, and the longest time that the other key waited. Ends with
status 1 where memory grew by more than 30 MB, or the other key waited longer than 0.3 s. `--only WORD` takes the
attacks with this word in their name, `--server NAME` one of the servers.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from lmtool.measure.bench.targets import process_cpu_seconds, process_memory
from tests.lab.soak.connection import BINARY, PING, TEXT, frame
from tests.lab.soak.watch import family

MOST_MEGABYTES = 30.0
MOST_SECONDS = 0.3
ATTACKER, OTHER = "attacker-key", "other-key"
KEYS = f'[[keys]]\nname = "attacker"\nkey = "{ATTACKER}"\n\n[[keys]]\nname = "other"\nkey = "{OTHER}"\n'
POOLS = "pools:\n  - {id: lmtool-tiny, models: [{id: own, local: {}}]}\n"
PIECE = 1 << 16
"""Bytes that are sent at once; they are repeated for ever."""
ASK_SECONDS = 0.1
RECONNECT_SECONDS = 0.05
BODY = b'{"model": "lmtool-tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}'


@dataclass(frozen=True)
class Attack:
    """What a hostile client sends over one connection."""

    head: bytes
    """First, with `KEY` where a header with the key may stand."""
    endless: bytes
    """Then this, again and again."""
    keyed: bool
    reads: bool = False
    """True if it takes what it is sent."""
    every: float = 0.0
    """Seconds between two pieces, for a slow one."""
    connections: int = 0
    """At once; 0: as `--connections` says."""


def _post(path: str = "/v1/chat/completions", framing: str = "Transfer-Encoding: chunked") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nKEY{framing}\r\n\r\n".encode()


def _get(path: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nKEY{more}".encode()


def _socket(path: str = "/") -> bytes:
    key = base64.b64encode(bytes(16)).decode()
    upgrade = (
        f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    )
    return _get(path, upgrade)


def _many(piece: bytes) -> bytes:
    return piece * max(1, PIECE // len(piece))


INFO = b'MODEL_INFO {"stream_id": 1}'
HTTP: Mapping[str, tuple[bytes, bytes, bool]] = {
    "endless trailers": (_post() + b"0\r\n", _many(b"a:\r\n"), False),
    "one endless trailer": (_post() + b"0\r\na: ", _many(b"a"), False),
    "an endless chunk extension": (_post() + b"1;", _many(b"a"), False),
    "chunks that are mostly extensions": (_post(), _many(b"1;" + b"a" * 1000 + b"\r\nx\r\n"), False),
    "one-byte chunks": (_post(), _many(b"1\r\nx\r\n"), False),
    "an endless body": (_post(framing="Content-Length: 100000000000"), _many(b"x"), False),
    "endless headers": (_get("/health"), _many(b"a:\r\n"), False),
    "one endless header": (_get("/health", "a: "), _many(b"a"), False),
    "an endless path": (b"GET /", _many(b"a"), False),
    "pipelined /health": (b"", _many(_get("/health", "\r\n")), False),
    "pipelined /health, read": (b"", _many(_get("/health", "\r\n")), True),
    "pipelined /v1/models": (b"", _many(_get("/v1/models", "\r\n")), False),
    "pipelined completions": (b"", _many(_post(framing=f"Content-Length: {len(BODY)}") + BODY), True),
}
"""Head, what follows, and whether answers are read; each with a key and without."""
SOCKETS: Mapping[str, tuple[str, bytes, bool]] = {
    "empty fragments": ("/", frame(TEXT, b"", fin=False) + _many(frame(0, b"", fin=False)), False),
    "one-byte fragments": ("/", frame(TEXT, b"G", fin=False) + _many(frame(0, b"a", fin=False)), False),
    "empty frames": ("/", _many(frame(TEXT, b"")), False),
    "one-letter frames": ("/", _many(frame(TEXT, b"a")), False),
    "one-letter frames, read": ("/", _many(frame(TEXT, b"a")), True),
    "MODEL_INFO": ("/", _many(frame(TEXT, INFO)), False),
    "MODEL_INFO, read": ("/", _many(frame(TEXT, INFO)), True),
    "MODELS, read": ("/", _many(frame(TEXT, b'MODELS {"stream_id": 1}')), True),
    "CANCEL": ("/", _many(frame(TEXT, b'CANCEL {"stream_id": 1}')), False),
    "BUFFER, read": ("/", _many(frame(TEXT, b'BUFFER {"stream_id": 1, "name": "b", "append": [5]}')), True),
    "pings": ("/", _many(frame(PING, b"p" * 100)), False),
    "empty pings": ("/", _many(frame(PING, b"")), False),
    "Evergreen, empty messages": ("/evergreen", _many(frame(BINARY, b"")), False),
    "Evergreen, empty fragments": ("/evergreen", frame(TEXT, b"", fin=False) + _many(frame(0, b"", fin=False)), False),
}
"""Path, what follows the handshake, and whether answers are read; each with a key."""


def attacks() -> dict[str, Attack]:
    """All attacks by name."""
    found: dict[str, Attack] = {}
    for name, (head, endless, reads) in HTTP.items():
        for keyed in (False, True):
            found[f"{name}, {'key' if keyed else 'no key'}"] = Attack(head, endless, keyed, reads)
    found["handshakes, no key"] = Attack(b"", _many(_socket()), False, reads=True)
    for name, (path, endless, reads) in SOCKETS.items():
        found[f"{name}, key"] = Attack(_socket(path), endless, True, reads)
    found["slow heads, no key"] = Attack(_get("/health"), b"a", False, every=1.0, connections=500)
    found["slow bodies, no key"] = Attack(_post(), b"1\r\nx\r\n", False, every=1.0, connections=500)
    found["slow bodies, key"] = Attack(_post(), b"1\r\nx\r\n", True, every=1.0, connections=500)
    found["connections that say nothing, no key"] = Attack(b"", b"", False, every=1.0, connections=500)
    return found


def as_sent(data: bytes, *, keyed: bool) -> bytes:
    """The bytes with the attacker's key, or without one."""
    return data.replace(b"KEY", f"Authorization: Bearer {ATTACKER}\r\n".encode() if keyed else b"")


async def attack_once(host: str, port: int, attack: Attack, total: list[int]) -> None:
    """Attack over one connection until it is closed. total: to whose first item the bytes are added that were sent."""
    reading = None
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return
    try:
        writer.transport.set_write_buffer_limits(PIECE)
        head, endless = (as_sent(part, keyed=attack.keyed) for part in (attack.head, attack.endless))
        writer.write(head)
        if head.startswith(b"GET") and b"Upgrade" in head:
            answer = await reader.readuntil(b"\r\n\r\n")
            if b" 101 " not in answer:
                return
        if attack.reads:
            reading = asyncio.create_task(_discard(reader))
        while not writer.transport.is_closing():
            writer.write(endless)
            await writer.drain()
            total[0] += len(endless)
            await asyncio.sleep(attack.every)
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        if reading is not None:
            reading.cancel()
        writer.transport.abort()


async def _discard(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(PIECE):
            pass


async def attack_for(host: str, port: int, name: str, seconds: float, connections: int) -> None:
    """Attack over several connections; prints the bytes sent and how often a connection was closed."""
    os.nice(15)  # as if it were another machine
    attack = attacks()[name]
    total = [0, 0]

    async def endless() -> None:
        while True:
            await attack_once(host, port, attack, total)
            total[1] += 1
            await asyncio.sleep(RECONNECT_SECONDS)

    tasks = [asyncio.create_task(endless()) for _ in range(attack.connections or connections)]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    sys.stdout.write(f"{total[0]} {total[1]}\n")


async def ask(host: str, port: int) -> float:
    """Seconds that one token takes for the other key, over a connection of its own. Raises where it is refused."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {OTHER}\r\n"
        writer.write(
            f"{head}Connection: close\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
            + BODY
        )
        answer = await reader.read()
        if b" 200 " not in answer[:20]:
            raise RuntimeError(answer[:500].decode())
    finally:
        writer.close()
    return time.perf_counter() - began


@dataclass
class Target:
    """A server under attack."""

    name: str
    host: str
    port: int
    process: int
    waits: list[float] = field(default_factory=list)
    """Seconds that the other key waited."""
    busy: list[float] = field(default_factory=list)
    """CPU seconds that the server took meanwhile: how long it would be with a processor of its own."""
    memory: list[float] = field(default_factory=list)
    """Megabytes."""

    def look(self) -> float:
        """Megabytes of the server and its helpers now; those without files where they are shared."""
        own, *others = family(self.process)
        size = (process_memory(own) or 0) + sum(process_memory(each, files=False) or 0 for each in others)
        self.memory.append(size / 1e6)
        return self.memory[-1]

    async def watch(self) -> None:
        """Ask and look until cancelled; one request that takes long does not keep others from being sent."""
        tasks: set[asyncio.Task[None]] = set()

        async def one() -> None:
            used = process_cpu_seconds(self.process) or 0.0
            self.waits.append(await asyncio.wait_for(ask(self.host, self.port), 30))
            self.busy.append((process_cpu_seconds(self.process) or 0.0) - used)

        try:
            while True:
                if len(tasks) < 20:
                    tasks.add(asyncio.create_task(one()))
                self.look()
                await asyncio.sleep(ASK_SECONDS)
                for task in [task for task in tasks if task.done()]:
                    tasks.discard(task)
                    task.result()
        finally:
            await asyncio.gather(*tasks, return_exceptions=True)

    async def under(self, name: str, seconds: float, connections: int) -> str:
        """Attack it; a line on how it went, which begins with `BAD` where a bar is missed."""
        before = self.look()
        quiet = max([await ask(self.host, self.port) for _ in range(10)])
        self.waits, self.busy, self.memory = [], [], []
        watching = asyncio.create_task(self.watch())
        words = [sys.executable, "-m", "tests.lab.port", "--attack", name, "--at", f"{self.host}:{self.port}"]
        words += ["--seconds", str(seconds), "--connections", str(connections)]
        process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
        watching.cancel()
        ended = (await asyncio.gather(watching, return_exceptions=True))[0]
        most = max(self.memory)
        await asyncio.sleep(0.5)
        after = self.look()
        sent, closed = out.split()
        waits = sorted(self.waits) or [99.0]
        refused = ended if not isinstance(ended, asyncio.CancelledError) else None
        good = most - before <= MOST_MEGABYTES and waits[-1] <= MOST_SECONDS and refused is None
        return (
            f"{'ok ' if good else 'BAD'} {self.name:8} {name:48} sent {int(sent) / 1e6:8.1f} MB  ends {int(closed):6} "
            f" memory +{most - before:6.1f} MB, then {after - before:+6.1f}  other key {len(waits)} times, p99 "
            f"{waits[int(len(waits) * 0.99)]:.3f} s, longest {waits[-1]:.3f} ({quiet:.3f} before), "
            f"CPU of the server meanwhile at most {max(self.busy, default=0):.2f} s"
            f"{'' if refused is None else f'  {refused!r}'}\n"
        )


@contextlib.asynccontextmanager
async def started(name: str, *words: str) -> AsyncIterator[Target]:
    """A server in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        ready, keys = Path(folder) / "ready", Path(folder) / "keys.toml"
        keys.write_text(KEYS)
        command = [sys.executable, "-m", "lmtool", name, *words, "--port", "0", "--ready-file", str(ready)]
        process = subprocess.Popen([*command, "--api-keys", str(keys), "-q"])
        try:
            while not ready.is_file():
                if process.poll() is not None:
                    raise RuntimeError(f"the server ended with status {process.returncode}")
                await asyncio.sleep(0.1)
            url = urlsplit(ready.read_text().strip())
            assert url.hostname is not None
            assert url.port is not None
            yield Target(name, url.hostname, url.port, process.pid)
        finally:
            process.terminate()
            process.wait(30)


@contextlib.asynccontextmanager
async def servers(names: list[str]) -> AsyncIterator[list[Target]]:
    """Servers of these names; a balancer and a gateway ask a server of their own."""
    async with contextlib.AsyncExitStack() as stack:
        found = [await stack.enter_async_context(started("serve"))] if "serve" in names else []
        if {"balance", "gateway"} & set(names):
            worker = await stack.enter_async_context(started("serve"))
            url = f"user:{OTHER}@{worker.host}:{worker.port}"
            if "balance" in names:
                found.append(await stack.enter_async_context(started("balance", f"ws://{url}/")))
            if "gateway" in names:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                config = Path(folder) / "pools.yaml"
                config.write_text(POOLS)
                words = ("--config", str(config), "-e", f"ws://{url}/")
                found.append(await stack.enter_async_context(started("gateway", *words)))
        yield found


async def main(options: argparse.Namespace) -> bool:
    """Attack everything and print it; whether every bar was held."""
    names = [name for name in attacks() if not options.only or any(word in name for word in options.only)]
    held = True
    async with servers(options.server or ["serve", "balance", "gateway"]) as targets:
        for target in targets:
            for _ in range(20):
                await ask(target.host, target.port)
            for name in names:
                line = await target.under(name, options.seconds, options.connections)
                held = held and line.startswith("ok")
                sys.stdout.write(line)
                sys.stdout.flush()
    return held


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each attack")
    parser.add_argument("--connections", type=int, default=1, help="of an attack that is not slow")
    parser.add_argument("--only", action="append", help="take attacks with this in their name")
    parser.add_argument("--server", action="append", help="serve, balance or gateway")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack:
        place, _, number = given.at.rpartition(":")
        asyncio.run(attack_for(place, int(number), given.attack, given.seconds, given.connections))
    else:
        sys.exit(not asyncio.run(main(given)))
