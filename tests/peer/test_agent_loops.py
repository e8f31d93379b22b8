"""A loop with a tool of OpenAI's and of Anthropic's SDK, recorded and played to the same SDK without a server."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lmtool.trace.exchanges import HttpExchange, exchanges
from lmtool.trace.reader import TraceReader
from tests.peer.agent_loops import TITLES, kept, record, replay
from tests.peer.test_http_clients import SDKS

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(SDKS is None, reason="LMTOOL_SDKS names no folder of environments"),
]


def hashes(path: Path) -> list[str]:
    """Of the bytes of each answer of a recording."""
    recorded = [one for one in exchanges(TraceReader(path)) if isinstance(one, HttpExchange)]
    return [hashlib.sha256(b"".join(part.data for part in one.parts)).hexdigest() for one in recorded]


@pytest.mark.parametrize("sdk", TITLES)
async def test_recorded_and_replayed(sdk: str, tmp_path: Path) -> None:
    """Offline the SDK gets the same bytes, and gives the program the same events, as when it was recorded."""
    path = tmp_path / "loop.lmtp.jsonl"
    live = await record(sdk, path, tmp_path)
    assert "sesame" not in path.read_text(encoding="utf-8")
    assert live["sha256"] == hashes(path)
    for told in live["apis"].values():
        assert told["text"] == 'It is {"city": "Rome", "weather": "sunny"}'
    assert await replay(sdk, path, tmp_path) == live


@pytest.mark.parametrize("sdk", TITLES)
async def test_the_recording_of_the_repository(sdk: str, tmp_path: Path) -> None:
    """What was recorded once plays to the SDK of today."""
    found = await replay(sdk, kept(sdk), tmp_path)
    assert found["sha256"] == hashes(kept(sdk))
