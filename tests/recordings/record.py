"""Records LMQL's own client with LMQL's own server; run it as `python -m tests.recordings.record [NAME...]`.

A recording is written only where it would be another one: how tokens were split over frames, and which stream's came
first, differs from run to run and means nothing. It needs LMQL's environment; tests/peer/test_lmql.py says which. All
other recordings are made again out of themselves: `lmtool trace verify recordings --update` sends them to a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from lmtool.net.access.policy import AccessPolicy
from lmtool.serving.config import ListenConfig
from lmtool.serving.listening import bind, url
from lmtool.trace.codec import Header
from lmtool.trace.comparison import Tolerance, compare_replay
from lmtool.trace.events import Event
from lmtool.trace.proxy import Proxy, parse_target
from lmtool.trace.reader import TraceReader
from lmtool.trace.recorder import Recorder, Recording
from lmtool.trace.redaction import Redaction
from lmtool.trace.writer import TraceWriter
from tests.peer.tiny_gpt2 import make_tiny_gpt2

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recordings"
TINY = "tiny-gpt2"
LMQL_SESSIONS = {
    "greedy": ("one greedy stream, and one of defaults", "FRM-1 FRM-3 GEN-1 GEN-3 TOK-1"),
    "sixteen": ("sixteen streams at once", "FRM-9 STR-6 STR-8"),
    "masks": ("forced, allowed and forbidden tokens", "GEN-5 LOG-2"),
    "sampled": ("a sampled stream; what top_k removed is -Infinity", "FRM-7 GEN-7"),
    "scores": ("the scores of what was generated", "SCO-1 SCO-2 LOG-3"),
    "info": ("MODEL_INFO", "INF-1"),
    "failing": ("an id outside the vocabulary, and the next request", "ERR-1 ERR-4"),
    "cut_and_return": ("a client that vanishes and comes back", "STR-4 ERR-7"),
    "query_where": ("a query with a length constraint", "GEN-5 FRM-2"),
    "query_choice": ("a query with a choice", "GEN-5"),
    "query_distribution": ("a query with a distribution", "SCO-1 GEN-5"),
    "query_beam": ("a query with beams", "GEN-5 STR-8"),
}
"""Name, and what it shows with which rules."""
SAME = Tolerance(1e-5, 0.0)
"""The forward passes of a CPU, with a C compiler and without, add in another order: about 2e-6."""
OTHERS_SAME = Tolerance(1e-3, 0.0)
"""LMQL's server gives a stream other numbers in another batch."""


@contextlib.asynccontextmanager
async def recorded(target: str, path: Path, header: Header, spell: Any) -> AsyncIterator[str]:
    """A proxy in front of a server that records into a file; gives its URL."""
    began = asyncio.get_running_loop().time()
    warnings: list[str] = []

    def clock() -> float:
        return asyncio.get_running_loop().time() - began

    def start(_connection: int) -> Recorder:
        return Recorder(TraceWriter(path, header, overwrite=True), Redaction((), b""), spell)

    recording = Recording(start, warnings.append, clock, split=False)
    anyone = AccessPolicy(origins=("*",))  # whom the server refuses is recorded too
    proxy = Proxy(parse_target(target), recording.record, warnings.append, clock, policy=anyone)
    place = ListenConfig(port=0)
    sockets = bind(place)
    try:
        await proxy.listen(sockets)
        yield url(place, sockets)
        async with asyncio.timeout(30):
            while proxy.open_connections:
                await asyncio.sleep(0.01)
    finally:
        await proxy.close()
        await recording.close()
    assert not warnings, warnings


def read(path: Path) -> tuple[Header, list[Event]]:
    """Header and events of a recording."""
    reader = TraceReader(path)
    return reader.header, [event for _, event in reader.with_offsets(whole=True)]


def same(one: Path, other: Path) -> bool:
    """Whether two recordings say the same."""
    (header, events), (other_header, other_events) = read(one), read(other)
    if header != other_header:
        return False
    tolerance = OTHERS_SAME if header.model.get("name") == TINY else SAME
    return not (_differences(events, other_events, tolerance) or _differences(other_events, events, tolerance))


def _differences(events: list[Event], others: list[Event], tolerance: Tolerance) -> set[object]:
    """Where the second says something else, beside what is wrong with the first one itself."""
    own, found = (
        {
            (finding.stream, finding.level, finding.position)
            for one in compare_replay(events, against, "numbers", tolerance)
            for finding in one.findings
        }
        for against in (events, others)
    )
    return found - own


def put(made: Path, place: Path) -> str:
    """Put a new recording in its place if it says something new; return what was done."""
    if place.exists() and same(place, made):
        return "unchanged"
    done = "changed" if place.exists() else "new"
    place.write_bytes(made.read_bytes())
    return done


@contextlib.asynccontextmanager
async def lmqls_server(python: str, folder: Path) -> AsyncIterator[str]:
    """LMQL's own server with the tiny model, which it knows by its folder's name; gives its URL."""
    make_tiny_gpt2(folder / TINY)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        python, "-c", "import sys; from lmql.models.lmtp.lmtp_serve import cli; cli(sys.argv[1:])",
        TINY, "--port", str(port),  # `lmql serve-model` is the same in another folder
        cwd=folder, env={**lmql_environment(), "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            while b"ready on device" not in (line := await process.stdout.readline()):
                assert line, "LMQL's server did not start"
        draining = asyncio.create_task(process.stdout.read())
        yield f"ws://127.0.0.1:{port}/"
    finally:
        process.kill()
        await process.wait()
    await draining


def lmql_environment() -> dict[str, str]:
    """For LMQL's programs."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}


async def record(python: str, names: list[str]) -> None:
    """Make the recordings of these names, or all."""
    with tempfile.TemporaryDirectory() as folder:
        made_in = Path(folder)
        async with lmqls_server(python, made_in) as target:
            spell = spelling(made_in / TINY / "vocab.json")
            for name in names or LMQL_SESSIONS:
                made = made_in / f"lmql_{name}.lmtp.jsonl"
                async with recorded(target, made, lmql_header(*LMQL_SESSIONS[name]), spell) as here:
                    process = await asyncio.create_subprocess_exec(
                        python, str(Path(__file__).with_name("lmql_session.py")),
                        name, here.replace("ws:", "http:"), TINY, cwd=made_in, env=lmql_environment(),
                    )  # fmt: skip
                    async with asyncio.timeout(120):
                        assert await process.wait() == 0, name
                sys.stdout.write(f"{put(made, FOLDER / made.name):<10} {made.name}\n")


def spelling(vocabulary: Path) -> Callable[[int], bytes]:
    """The bytes of a byte-level vocabulary's ids; it writes most bytes as themselves, the others from U+0100 on."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in plain]
    byte_of = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
    words = {i: word for word, i in json.loads(vocabulary.read_text()).items()}
    return lambda i: bytes(byte_of[one] for one in words.get(i, ""))


def lmql_header(title: str, covers: str) -> Header:
    """The first line of such a recording."""
    return Header(
        by="lmtool",
        at="proxy",
        title=f"LMQL 0.7.3's client and its server: {title}",
        transport={"kind": "websocket", "path": "/"},
        model={"name": TINY},
        run={"device": "cpu", "dtype": "float32"},
        times="numbered",
        verify={"level": "numbers", "tol_logprob": 1e-3, "sampled": "shape"},
        covers=tuple(covers.split()),
    )


if __name__ == "__main__":
    asyncio.run(record(os.environ["LMTOOL_LMQL_PYTHON"], sys.argv[1:]))
