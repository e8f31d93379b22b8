"""`lmtool trace serve`, as a process that a real client talks to."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from lmtool.cli.trace.serve import _address
from tests.cli.trace_runner import CONVERSATION, trace


@pytest.mark.parametrize("once", [False, True])
async def test_a_recording_answers(tmp_path: Path, *, once: bool) -> None:
    """The recorded stream comes back byte for byte, and again unless --once; Ctrl-C ends it, status 0."""
    (tmp_path / "a").write_text(CONVERSATION)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lmtool", "trace", "serve"),
        *(str(tmp_path / "a"), "--port", "0", "--speed", "max", *(["--once"] if once else [])),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    said = ""
    try:
        while (found := re.search(r"answering 1 recorded requests at (ws://\S+)", said)) is None:
            line = await asyncio.wait_for(process.stderr.readline(), 60)
            assert line, said
            said += line.decode()
        async with connect(found[1]) as client:
            await client.send('GENERATE {"model": "m", "prompt": [5, 6], "stream_id": 1, "max_tokens": 3}')
            frames = [await client.recv() for _ in range(3)]
            await client.send('GENERATE {"model": "m", "prompt": [5, 6], "stream_id": 2, "max_tokens": 3}')
            again = str(await client.recv())
        process.send_signal(signal.SIGINT)
        rest = (await asyncio.wait_for(process.stderr.read(), 60)).decode()
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert frames[1] == 'TOKEN [{"token": 12, "stream_id": 1, "logprob": -Infinity}]'
    assert again.startswith('TOKEN [{"token": ') is not once
    assert ("all recorded answers to this request were used" in again) is once
    assert f"{1 if once else 2} requests answered · {int(once)} not recorded · 0 recorded requests unused" in rest
    assert "is cut" in said


def test_where_clients_connect() -> None:
    """Of a recording of HTTP alone the address is one that SDKs take."""
    here = "ws://127.0.0.1:8080/"
    assert _address(here, {"http"}) == "http://127.0.0.1:8080/"
    assert [_address(here, one) for one in ({"lmtp"}, {"http", "lmtp"}, {"evergreen"}, set())] == [here] * 4
    assert _address("unix:/tmp/a", {"http"}) == "unix:/tmp/a"


@pytest.mark.parametrize("speed", ["fast", "0", "-1", "inf", "nan"])
def test_a_speed_is_a_number_or_max(tmp_path: Path, speed: str) -> None:
    """Anything else is a usage error."""
    (tmp_path / "a").write_text(CONVERSATION)
    result = trace("serve", tmp_path / "a", "--speed", speed)
    assert result.exit_code == 2
    assert f"--speed {speed} is not a speed" in result.stderr


@pytest.mark.parametrize("words", [("--on-miss", "forward"), ("--to", "ws://127.0.0.1:1/")])
def test_forward_needs_to_know_where(tmp_path: Path, words: tuple[str, ...]) -> None:
    """`--on-miss forward` and `--to URL` belong together."""
    (tmp_path / "a").write_text(CONVERSATION)
    result = trace("serve", tmp_path / "a", *words)
    assert result.exit_code == 2
    assert "belong together" in result.stderr
