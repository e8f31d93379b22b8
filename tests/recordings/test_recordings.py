"""Every recording, in both directions; and what all of them together show."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lmtool.cli.trace.verify import local_server
from lmtool.trace.outcomes import KnownFailures
from lmtool.trace.proxy import parse_target
from lmtool.trace.reader import TraceReader
from lmtool.trace.verification import Plan, RecordingCase, Server, check, find

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recordings"
FILES = find([FOLDER])
BY_MODEL = {name: TraceReader(path).header.model.get("name") for name, path in FILES.items()}
KNOWN = KnownFailures.read(FOLDER / "known-failing.txt", None)
LARGEST = 200_000
"""Bytes of one file."""

RULES = re.findall(
    r"^\*\*([A-Z]+-\d+)\*\*", (ROOT / "lmtool/protocol/lmtp/SPEC.md").read_text(encoding="utf-8"), re.MULTILINE
)
NOT_SHOWN = {
    "INF-9": "no trace holds a key, and without one a server tells no limits of it",
    **dict.fromkeys(
        ("SYS-1", "SYS-2", "SYS-3", "SYS-4"), "what holds a stream up depends on the server's load, and so what is told"
    ),
    "TRA-11": "a proxy that records puts the server's own Host in the place of the one that was asked for",
    "TRA-12": "no trace holds a key, so none can be sent again",
    "TRA-14": "a trace holds no pings",
    "TRA-7": "a trace of a pipe has the same frames; that they are lines is not kept",
    "TRA-9": "how many steps share a frame depends on how fast a client reads, and means nothing in a trace",
}
"""Rules that no recording can show, and why."""


async def verified(name: str, direction: str, servers: tuple[Server, ...], report: Path) -> str:
    """The verdict of one check; it fails with everything that was found."""
    case = RecordingCase(name, "drive" if direction == "drive" else "mock")
    outcome = await check(Plan(servers, KNOWN, timeout=30.0, report=report), case, FILES[name])
    assert not outcome.bad, "\n".join([outcome.reason, *outcome.messages])
    return outcome.verdict


@pytest.mark.parametrize("name", FILES)
async def test_mock(name: str, tmp_path: Path) -> None:
    """Played by the mock server, a recording gives any client and ours what was recorded."""
    await verified(name, "mock", (), tmp_path)


@pytest.mark.parametrize("name", [name for name, model in BY_MODEL.items() if model == "stories260K"])
async def test_drive(name: str, served: str, tmp_path: Path) -> None:
    """Sent to our server with the same model, a recording is answered as it was."""
    await verified(name, "drive", (Server(parse_target(served), "stories260K"),), tmp_path)


@pytest.mark.parametrize("name", [name for name, model in BY_MODEL.items() if model == "lmtool-tiny"])
async def test_drive_embedded(name: str, embedded: str, tmp_path: Path) -> None:
    """The same with the embedded model, which has a chat template."""
    await verified(name, "drive", (Server(parse_target(embedded), "lmtool-tiny"),), tmp_path)


@pytest.fixture
async def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """Our server with the model that LMQL's sessions were recorded with."""
    from tests.peer.tiny_gpt2 import make_tiny_gpt2

    folder = tmp_path_factory.mktemp("models") / "tiny-gpt2"
    make_tiny_gpt2(folder)
    async with local_server(str(folder)) as server:
        yield server


async def test_drive_as_lmqls_client_did(tiny_gpt2: Server, tmp_path: Path) -> None:
    """What LMQL's own client asked of LMQL's own server, our server answers with the same tokens and numbers."""
    names = [name for name, model in BY_MODEL.items() if model == "tiny-gpt2"]
    assert names
    failed = []
    for name in names:
        try:
            await verified(name, "drive", (tiny_gpt2,), tmp_path)
        except AssertionError as error:
            failed.append(f"{name}: {error}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_file(path: Path) -> None:
    """A recording is complete, small, has a title, and names no rule that there is not."""
    reader = TraceReader(path)
    list(reader)
    assert reader.ending is not None
    assert reader.ending.state == "complete"
    assert path.stat().st_size < LARGEST
    assert reader.header.title
    assert reader.header.times == "numbered"
    assert set(reader.header.covers) <= set(RULES)


def test_every_rule_is_shown() -> None:
    """Every rule of SPEC.md that a trace can show is shown by a recording; there are at least thirty of these."""
    shown = {rule for path in FILES.values() for rule in TraceReader(path).header.covers}
    assert sorted(set(RULES) - shown) == sorted(NOT_SHOWN)
    assert len(FILES) >= 30
