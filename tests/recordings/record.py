"""Makes the recordings anew; run it as `python -m tests.recordings.record [NAME...]`.

A recording is written only where it would be another one: how tokens were split over frames, and which stream's came
first, differs from run to run and means nothing. The sessions of LMQL's own client and server need their environment
(tests/peer/test_lmql.py says which); without it they are left as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmtool.access.policy import AccessPolicy
from lmtool.cli.serving.listening import ListenConfig, bind, url
from lmtool.cli.serving.service import Service, ServiceConfig
from lmtool.cli.trace.files import write_trace
from lmtool.cli.wiring import EMBEDDED_NAME, ModelsConfig
from lmtool.engine.config import EngineConfig
from lmtool.lmtp.config import ServerConfig
from lmtool.text.tokenizer import load_tokenizer
from lmtool.tiny.path import MODEL_DIR
from lmtool.trace.comparison import compare_again
from lmtool.trace.diff import Tolerance
from lmtool.trace.events import End, Event
from lmtool.trace.header import Header
from lmtool.trace.proxy import Proxy, parse_target
from lmtool.trace.reader import TraceReader
from lmtool.trace.recorder import Recorder
from lmtool.trace.recording import Recording
from lmtool.trace.redaction import Redaction
from lmtool.trace.writer import TraceWriter
from tests.peer.tiny_gpt2 import make_tiny_gpt2
from tests.recordings.scenarios import SCENARIOS, Scenario, Stage
from tests.recordings.written import WRITTEN

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recordings"
STORIES = ROOT / "tests/data/stories260K"
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


def source_of(scenario: Scenario) -> tuple[str, Path]:
    """Name and folder of the model that a scenario needs."""
    return (EMBEDDED_NAME, MODEL_DIR) if scenario.server == "embedded" else (STORIES.name, STORIES)


def header_of(scenario: Scenario) -> Header:
    """The first line of its recording."""
    name, folder = source_of(scenario)
    info = load_tokenizer(str(folder)).info
    return Header(
        by="lmtool",
        at="proxy",
        title=scenario.title,
        transport={"kind": "websocket", "path": "/"},
        model={"name": name, "tokenizer": {"name": info.name, "sha256": info.sha256}},
        run={"device": "cpu", "dtype": "float32"},
        times="numbered",
        verify={"level": "numbers", "tol_logprob": 1e-3, **scenario.verify},
        covers=scenario.covers,
    )


@contextlib.asynccontextmanager
async def serving(scenario: Scenario) -> AsyncIterator[tuple[str, Service]]:
    """A server as the scenario needs it; ready, unless that is what the scenario is about."""
    name, folder = source_of(scenario)
    models = ModelsConfig(None if name == EMBEDDED_NAME else str(folder))
    server = ServerConfig(max_streams=4) if scenario.server == "narrow" else ServerConfig()
    service = Service(ServiceConfig(models, EngineConfig(device="cpu", dtype="float32", threads=1), server))
    place = ListenConfig(port=0)
    sockets = bind(place)
    service.listen(sockets)
    try:
        ready = asyncio.create_task(service.ready(lambda _progress: None))
        if scenario.server != "loading":
            await ready
        yield url(place, sockets), service
        await ready
    finally:
        await service.close()


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
    proxy = Proxy(parse_target(target), recording.tell, warnings.append, clock, policy=anyone)
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


async def make(scenario: Scenario, path: Path, running: str | None) -> None:
    """Record one scenario, against the server at this URL or one of its own."""
    name, folder = source_of(scenario)
    async with contextlib.AsyncExitStack() as stack:
        service = None
        target = running or ""
        if running is None:
            target, service = await stack.enter_async_context(serving(scenario))
        spell = load_tokenizer(str(folder)).piece
        here = await stack.enter_async_context(recorded(target, path, header_of(scenario), spell))
        await scenario.play(Stage(here, name, lambda: _leave(service)))


async def _leave(service: Service | None) -> None:
    assert service is not None, "only a server of its own can be shut down"
    await service.drain(0)


def read(path: Path) -> tuple[Header, list[Event]]:
    """Header and events of a recording."""
    reader = TraceReader(path)
    return reader.header, [event for _, event in reader.located(whole=True)]


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
            for one in compare_again(events, against, "numbers", tolerance)
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


def file_name(scenario: Scenario) -> str:
    """The name of its file."""
    return f"{scenario.name}.lmtp.jsonl" + (".gz" if scenario.packed else "")


async def record(names: list[str]) -> None:
    """Make the recordings of these names, or all."""
    chosen = [one for one in SCENARIOS if not names or one.name in names]
    shared = {one.server for one in chosen} & {"stories", "embedded"}
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for kind in sorted({one.server for one in chosen}):
            group = [one for one in chosen if one.server == kind]
            async with contextlib.AsyncExitStack() as stack:
                shares = kind in shared
                running = (await stack.enter_async_context(serving(group[0])))[0] if shares else None
                for scenario in group:
                    made = Path(folder) / file_name(scenario)
                    await make(scenario, made, running)
                    sys.stdout.write(f"{put(made, FOLDER / made.name):<10} {made.name}\n")
        python = os.environ.get("LMTOOL_LMQL_PYTHON")
        if python:
            await record_lmql(python, names, Path(folder))
        for name, (header, events) in written(names):
            made = Path(folder) / f"{name}.lmtp.jsonl"
            write_trace(made, header, events, force=True, sources=[])
            sys.stdout.write(f"{put(made, FOLDER / made.name):<10} {made.name}\n")


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


async def record_lmql(python: str, names: list[str], made_in: Path) -> None:
    """Make the recordings of LMQL's own client with its own server."""
    chosen = {name: title for name, title in LMQL_SESSIONS.items() if not names or f"lmql_{name}" in names}
    if not chosen:
        return
    async with lmqls_server(python, made_in) as target:
        spell = spelling(made_in / TINY / "vocab.json")
        for name, (title, covers) in chosen.items():
            made = made_in / f"lmql_{name}.lmtp.jsonl"
            async with recorded(target, made, lmql_header(title, covers), spell) as here:
                process = await asyncio.create_subprocess_exec(
                    python, str(Path(__file__).with_name("lmql_session.py")), name, here.replace("ws:", "http:"), TINY,
                    cwd=made_in, env=lmql_environment(),
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


def written(names: list[str]) -> Iterator[tuple[str, tuple[Header, list[Event]]]]:
    """The recordings that are written by hand, because they show what no server here says."""
    for name, (header, events) in WRITTEN.items():
        if not names or name in names:
            numbered = [replace(event, time=number / 1000) for number, event in enumerate(events)]
            yield name, (header, [event for event in numbered if not isinstance(event, End)])


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:]))
