"""Hostile Evergreen sessions at their full sizes, and how others fare beside them: `python -m tests.lab evergreen`.

Starts `lmtool serve MODEL OPTION...` with a port of gRPC, and sends each of `CASES` over each wire that can carry it,
from a process of its own. Prints how each session ended, how long that took, and how much memory the server and its
helpers had at most above what they had before; 16 seeded streams run beside it over LMTP, and are compared, token by
token and logprob by logprob, with the same streams alone. Ends with status 1 where a session has another status than it
should, or takes more than 5 s or 300 MB, or where a stream differs. `--only WORD` takes the cases with this word.

`--late SECONDS` measures something else: how long the first token takes after the last leaf of a prompt of `--parts`
leaves of `--words-each` words, where that comes so much later than the rest, in parts of the time that such a prompt
takes at once. The words are `w3` to `w31999`, each a token of the models of `bench engine random:NAME`. Meanwhile no
more can be computed than there is time for: a third is possible where a prompt takes less than one and a half of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import grpc
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

import lmtool
from lmtool.protocol.evergreen.codec import encode, pack_struct
from lmtool.protocol.evergreen.messages import Action, AnyMessage, NamedParameter, NodeFragment, SessionMessage
from tests.lab.frames import BEGUN, STREAMS, Streams, server, told
from tests.protocol.evergreen.harness import action, leaf, parent

MOST_SECONDS = 5.0
MOST_MEGABYTES = 300.0
PATH = "/evergreen.v2.EvergreenService/StartSession"
WEBSOCKET, GRPC = "WebSocket", "gRPC"
BOTH = (WEBSOCKET, GRPC)
OPEN = "open"
"""What is told of a session that goes on, because nothing is wrong with it yet."""


def packed(fragments: Iterator[NodeFragment], size: int = 8_000) -> Iterator[bytes]:
    """Messages of as many fragments, with a child each, as one may have."""
    while batch := tuple(itertools.islice(fragments, size)):
        yield encode(SessionMessage(batch))


def nested_any(levels: int) -> AnyMessage:
    """An Any in an Any, and so on."""
    name = "type.googleapis.com/google.protobuf.Any"
    heads, size = [], 0
    for _ in range(levels):
        length, rest = b"", size
        while rest > 127:
            length, rest = length + bytes([rest & 127 | 128]), rest >> 7
        heads.append(b"\x0a" + bytes([len(name)]) + name.encode() + b"\x12" + length + bytes([rest]))
        size += len(heads[-1])
    return AnyMessage(name, b"".join(reversed(heads)))


def nested_json(levels: int) -> str:
    """The same as proto-JSON, in the config of an action."""
    name = '{"@type":"type.googleapis.com/google.protobuf.Any","value":'
    return f'{{"actions":[{{"name":"GENERATE","configs":[{name * levels}{{}}{"}" * levels}]}}]}}'


def asked() -> bytes:
    """An action whose output is large, many of them."""
    config = pack_struct({"max_tokens": 2000, "top_logprobs": 20, "ignore_eos": True})
    outputs = {"response": "r{}", "tokens": "t{}", "logprobs": "l{}"}
    many = [
        action("GENERATE", {"prompt": "p"}, {n: i.format(at) for n, i in outputs.items()}, configs=(config,))
        for at in range(16)
    ]
    return encode(SessionMessage((leaf("p", "Once upon a time"),), tuple(many)))


@dataclass(frozen=True)
class Case:
    """One hostile client."""

    make: Callable[[], Iterator[bytes | str]]
    """Its messages; text is proto-JSON."""
    status: str
    word: str = ""
    """What the reason names."""
    wires: tuple[str, ...] = BOTH
    ends: str = "waits"
    """What it does after its messages: `waits`, `half-closes`, `leaves` at once, or `reads nothing` for a while."""


def _one(*parts: NodeFragment, actions: tuple[Action, ...] = ()) -> Iterator[bytes]:
    yield encode(SessionMessage(parts, actions))


def _text(text: str) -> Iterator[str]:
    yield text


CASES: dict[str, Case] = {
    "2^40 leaves by doubling": Case(
        lambda: packed(parent(f"n{at}", f"n{at + 1}", f"n{at + 1}") for at in range(40)),
        "RESOURCE_EXHAUSTED",
        "max_leaves",
    ),
    "100,000 levels": Case(
        lambda: packed(parent(f"n{at}", f"n{at + 1}") for at in range(100_000)), "RESOURCE_EXHAUSTED", "max_nesting"
    ),
    "100,000 levels from below": Case(
        lambda: packed(parent(f"n{at}", f"n{at + 1}") for at in reversed(range(100_000))),
        "RESOURCE_EXHAUSTED",
        "max_nesting",
    ),
    "a cycle of 60": Case(
        lambda: packed(parent(f"n{at}", f"n{(at + 1) % 60}") for at in range(60)), "INVALID_ARGUMENT", "n0"
    ),
    "a cycle of 100,000": Case(
        lambda: packed(parent(f"n{at}", f"n{(at + 1) % 100_000}") for at in range(100_000)),
        "RESOURCE_EXHAUSTED",
        "max_nesting",
    ),
    "a million ids": Case(
        lambda: packed(leaf(f"n{at}", "x") for at in range(1_000_000)), "RESOURCE_EXHAUSTED", "max_nodes"
    ),
    "a million children": Case(
        lambda: packed((parent("p", *("c",) * 1000, seq=at, continued=True) for at in range(1000)), 16),
        "RESOURCE_EXHAUSTED",
        "max_children",
    ),
    "a huge seq": Case(lambda: _one(leaf("a", "x", 2**31 - 1)), "RESOURCE_EXHAUSTED", "max_fragments"),
    "a negative seq": Case(lambda: _one(leaf("a", "x", -(2**31))), "INVALID_ARGUMENT", "seq"),
    "two million empty fragments": Case(
        lambda: iter([b"\x0a\x00" * 2_000_000]), "RESOURCE_EXHAUSTED", "max_message_items"
    ),
    "1.3 million empty fragments as JSON": Case(
        lambda: _text('{"nodeFragments":[' + "{}," * 1_300_000 + "{}]}"),
        "RESOURCE_EXHAUSTED",
        "max_message_items",
        (WEBSOCKET,),
    ),
    "nested Any": Case(
        lambda: _one(leaf("p", "x"), actions=(action("GENERATE", {"prompt": "p"}, {}, configs=(nested_any(10_000),)),)),
        "INVALID_ARGUMENT",
        "google.protobuf.Any",
    ),
    "nested Any as JSON": Case(lambda: _text(nested_json(30_000)), "INVALID_ARGUMENT", "", (WEBSOCKET,)),
    "half-close in the middle": Case(
        lambda: _one(leaf("a", "x", continued=True), actions=(action("GENERATE", {"prompt": "a"}, {}),)),
        "FAILED_PRECONDITION",
        "waits for node 'a'",
        (GRPC,),
        "half-closes",
    ),
    "cut in the middle": Case(
        lambda: _one(actions=(action("GENERATE", {"prompt": "a"}, {"response": "b"}),)),
        OPEN,
        ends="leaves",
    ),
    "output never read": Case(lambda: iter([asked()]), OPEN, ends="reads nothing"),
}


async def over_websocket(url: str, case: Case, messages: list[bytes | str]) -> str:
    """How the session ended: `STATUS_NAME: text`, or `open`."""
    async with connect(f"{url.rstrip('/')}/evergreen", compression=None, max_queue=1, ping_interval=None) as websocket:
        with contextlib.suppress(ConnectionClosed):
            for message in messages:
                await websocket.send(message)
                await asyncio.sleep(0)  # the server may have closed
            if case.ends == "waits":
                while True:
                    await websocket.recv()
            await asyncio.sleep(MOST_SECONDS if case.ends == "reads nothing" else 0)
            websocket.transport.abort()
            return OPEN
    return websocket.close_reason or str(websocket.close_code)


def over_grpc(address: str, case: Case, messages: list[bytes | str]) -> str:
    """The same over gRPC; call it in a thread."""
    over = threading.Event()

    def requests() -> Iterator[bytes | str]:
        yield from messages
        if case.ends != "half-closes":
            over.wait()

    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options) as channel:
        call = channel.stream_stream(PATH)(requests())
        try:
            if case.ends in ("leaves", "reads nothing"):
                time.sleep(MOST_SECONDS if case.ends == "reads nothing" else 0.5)
                call.cancel()
                return OPEN
            for _ in call:
                pass
        except grpc.RpcError:
            pass
        finally:
            over.set()
        return f"{call.code().name}: {call.details()}"


async def one_byte_a_second(url: str, address: str, wire: str) -> str:
    """Send the beginning of a session, one byte a second, for as long as a case may take."""
    where = urlsplit(url) if wire == WEBSOCKET else urlsplit(f"//{address}")
    _, writer = await asyncio.open_connection(where.hostname, where.port)
    head = f"GET /evergreen HTTP/1.1\r\nHost: {where.netloc}\r\n" if wire == WEBSOCKET else "PRI * HTTP/2.0\r\n"
    for byte in head.encode()[: int(MOST_SECONDS)]:
        writer.write(bytes([byte]))
        await asyncio.sleep(1)
    writer.transport.abort()
    return OPEN


class Memory:
    """The most memory of a process and its children since it was made, in megabytes, above what they had then."""

    def __init__(self, process: int) -> None:
        self._process = process
        for each in self._family():
            Path(f"/proc/{each}/clear_refs").write_text("5")  # the peak is counted from here on
        self._before = self._sum("VmRSS")

    def _family(self) -> list[int]:
        found = [self._process]
        for each in found:
            for task in Path(f"/proc/{each}/task").glob("*/children"):
                found += [int(child) for child in task.read_text().split()]
        return found

    def _sum(self, name: str) -> float:
        lines = [line for each in self._family() for line in Path(f"/proc/{each}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024

    @property
    def peak(self) -> float:
        """So far."""
        return self._sum("VmHWM") - self._before


async def attack(url: str, address: str, process: int, only: list[str]) -> bool:
    """Send every case, and print how it went; whether all went as they should."""
    os.nice(4)
    sys.stdout.write(f"{BEGUN}\n")
    sys.stdout.flush()
    good = True
    names = [*CASES, "one byte a second"]
    for name in [name for name in names if not only or any(word in name for word in only)]:
        case = CASES.get(name)
        messages = [] if case is None else list(case.make())  # what that takes is not the server's time
        for wire in case.wires if case is not None else BOTH:
            memory, began = Memory(process), time.perf_counter()
            if case is None:
                end = await one_byte_a_second(url, address, wire)
            elif wire == WEBSOCKET:
                end = await over_websocket(url, case, messages)
            else:
                end = await asyncio.to_thread(over_grpc, address, case, messages)
            took, peak = time.perf_counter() - began, memory.peak
            patient = case is None or case.ends == "reads nothing"  # it takes that long by itself
            right = end == OPEN if case is None else end.startswith(case.status) and case.word in end
            fine = right and peak < MOST_MEGABYTES and (took < MOST_SECONDS or patient)
            good = good and fine
            verdict = "ok  " if fine else "FAIL"
            sys.stdout.write(f"{verdict} {took:5.2f} s {peak:6.1f} MB  {wire:9}  {name}: {end[:90]}\n")
            sys.stdout.flush()
    return good


async def measure(options: argparse.Namespace) -> bool:
    """Attack a server beside streams; whether all is as it should be."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with server([*options.words, "--grpc-port", str(port)]) as (url, process):
        streams = Streams(url, seeded=True)
        running = asyncio.create_task(streams.run())
        await asyncio.wait([running], timeout=3.0)
        streams.take()
        await asyncio.wait([running], timeout=options.seconds)
        quiet = streams.take()
        sys.stdout.write(told("gaps, quiet", quiet))
        words = [sys.executable, "-m", "tests.lab.evergreen", "--attack", url, f"127.0.0.1:{port}", str(process)]
        words += [word for each in options.only or () for word in ("--only", each)]
        attacking = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
        assert attacking.stdout is not None
        async for line in attacking.stdout:
            if line.decode().strip() == BEGUN:
                streams.take()
            else:
                sys.stdout.write(line.decode())
                sys.stdout.flush()
        loud = streams.take()
        await asyncio.wait([running], timeout=options.seconds)
        if running.done():
            await running
        running.cancel()
        sys.stdout.write(told("gaps, beside", loud))
        ratio = loud[int(len(loud) * 0.99)] / quiet[int(len(quiet) * 0.99)]
        differ = sum(len(said) > 1 for said in streams.said.values())
        whole = sum(bool(said) for said in streams.said.values())
        sys.stdout.write(f"p99 {ratio:.2f} times the quiet one; {differ} of {whole} streams differ\n")
        return not await attacking.wait() and not differ and whole == STREAMS


async def late(options: argparse.Namespace) -> bool:
    """Time the first token after the last leaf, where it comes at once and where it comes late; print both."""
    async with server(options.words) as (url, _):
        words, count = Random(0), options.parts * options.words_each
        for turn in range(-1, options.turns):  # the first one warms up
            took = {}
            for seconds in (0.0, options.late):
                body = " ".join(f"w{words.randint(3, 31_999)}" for _ in range(count))
                took[seconds] = await first_token(url, body, seconds, options.parts)
            if turn < 0:
                continue
            cold, behind = took[0.0], took[options.late]
            least = max(0.0, 1 - options.late / cold)  # what cannot be computed while the leaf is waited for
            line = f"at once {cold:.3f} s, after {options.late:g} s {behind:.3f} s: {behind / cold:.3f} of it"
            sys.stdout.write(f"{line}, at least {least:.3f} is possible\n")
    return True


async def first_token(url: str, body: str, seconds: float, parts: int) -> float:
    """Seconds from the last leaf of a prompt to the first piece of its answer; the last leaf comes so much later."""
    size = len(body) // parts
    async with lmtool.session(url) as session:
        connection = session.connection
        whole, answer = session.output(), "answer"
        outputs = (NamedParameter("response", answer),)
        config = (pack_struct({"max_tokens": 1, "ignore_eos": True}),)
        [response] = connection.start(
            Action("GENERATE", (NamedParameter("prompt", whole.id),), outputs, config)
        ).values()
        for at in range(parts):
            await whole.child().put(body[at * size : (at + 1) * size])
        await asyncio.sleep(seconds)
        began = time.perf_counter()
        await whole.child().put(" and the last words")
        whole.close()
        await connection.growth(response.node)
        return time.perf_counter() - began


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of the streams alone, before and after")
    parser.add_argument("--only", action="append", default=[], help="take cases with this in their name")
    parser.add_argument("--late", type=float, help="measure the first token of a prompt whose last leaf comes late")
    parser.add_argument("--parts", type=int, default=10, help="leaves of that prompt")
    parser.add_argument("--words-each", type=int, default=40, help="words of each of them")
    parser.add_argument("--turns", type=int, default=5, help="prompts, each another one")
    parser.add_argument("--attack", nargs=3, help=argparse.SUPPRESS)
    given, given.words = parser.parse_known_args()
    if given.attack:
        ended = asyncio.run(attack(given.attack[0], given.attack[1], int(given.attack[2]), given.only))
    else:
        ended = asyncio.run(late(given) if given.late is not None else measure(given))
    sys.exit(not ended)
