"""Loops of SDKs with a tool, recorded between the SDK and `quoting_server`, and played to it again.

`LMTOOL_SDKS=ENVS python -m tests.peer.agent_loops` makes `recordings/openai_tool_loop` and its like anew.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from lmtool.trace.codec import Header
from lmtool.trace.exchanges import recorded_requests
from lmtool.trace.reader import TraceReader
from lmtool.trace.recorder import Recorder
from lmtool.trace.redaction import Redaction
from lmtool.trace.replaying import mock_server
from lmtool.trace.writer import TraceWriter
from tests.peer.quoting_server import quoting
from tests.trace.test_proxy import proxy_to

HERE = Path(__file__).parent
RECORDINGS = HERE.parents[1] / "recordings"
TITLES = {
    "openai": "an agent of OpenAI's SDK: thought, call of a tool and answer, by chat completions and by responses",
    "anthropic": "an agent of Anthropic's SDK: thought, call of a tool and answer, by messages",
}
"""By the name of the SDK's environment."""


def kept(sdk: str) -> Path:
    """The recording in the repository."""
    return RECORDINGS / f"{sdk}_tool_loop.lmtp.jsonl"


def command(sdk: str, url: str) -> list[str]:
    """The words that run the loop of an SDK against a server."""
    python = f"{os.environ['LMTOOL_SDKS']}/{sdk}/bin/python"
    return [python, str(HERE / "clients" / f"{sdk}_loop.py"), url, url]


async def run(sdk: str, url: str, home: Path) -> dict[str, Any]:
    """What a loop writes."""
    from tests.peer.test_http_clients import ran

    found: dict[str, Any] = await asyncio.to_thread(ran, command(sdk, url), home)
    return found


async def record(sdk: str, path: Path, home: Path) -> dict[str, Any]:
    """Record a loop into a file; return what it wrote."""
    with quoting() as url:
        async with proxy_to(url) as proxy:
            found = await run(sdk, f"http://127.0.0.1:{proxy.port}", home)
        events = proxy.events
    header = Header(
        by="lmtool", at="proxy", title=TITLES[sdk], transport={"kind": "http", "path": "/"}, json="compact",
        times="numbered", redacted=("headers",), model={"name": "scripted"},
    )  # fmt: skip
    recorder = Recorder(TraceWriter(path, header, overwrite=True), Redaction(("headers",), b""))
    recorder.record(events)
    recorder.close(events[-1].time)
    return found


async def replay(sdk: str, path: Path, home: Path) -> dict[str, Any]:
    """Play a recording to its loop; return what that wrote."""
    async with mock_server(recorded_requests(list(TraceReader(path)))) as port:
        return await run(sdk, f"http://127.0.0.1:{port}", home)


async def keep() -> None:
    """Make the recordings anew."""
    for sdk in TITLES:
        await record(sdk, kept(sdk), Path(os.environ.get("TMPDIR", "/tmp")))


if __name__ == "__main__":
    try:
        asyncio.run(keep())
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))
