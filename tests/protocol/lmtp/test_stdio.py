"""Lines of a process's own stdin and stdout."""

import asyncio
import subprocess
import sys

import pytest

from lmtool.core.errors import RequestError
from lmtool.protocol.lmtp.stdio import LineReader

ECHO = """
import asyncio
from lmtool.protocol.lmtp.stdio import open_stdio

async def main():
    reader, writer = await open_stdio(100)
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()

asyncio.run(main())
"""


async def test_lines():
    """Lines come one by one; the last may lack its newline."""
    stream = asyncio.StreamReader(limit=11)
    lines = LineReader(stream, 10)
    stream.feed_data(b"one\n\ntwo")
    stream.feed_eof()
    assert [await lines.readline() for _ in range(4)] == [b"one\n", b"\n", b"two", b""]


@pytest.mark.parametrize("data", [b"x" * 100, b"x" * 100 + b"\n"])
async def test_long_lines(data):
    """A line above the limit is refused, whether its end is there or not."""
    stream = asyncio.StreamReader(limit=11)
    stream.feed_data(data)
    with pytest.raises(RequestError, match="more than 10 bytes"):
        await LineReader(stream, 10).readline()


def test_pipes():
    """Standard input and output may be pipes."""
    done = subprocess.run([sys.executable, "-c", ECHO], input=b"a\nb\n", capture_output=True, check=True)
    assert done.stdout == b"A\nB\n"


def test_files(tmp_path):
    """Standard input and output may be files."""
    (tmp_path / "in").write_bytes(b"a\nb")
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as target:
        subprocess.run([sys.executable, "-c", ECHO], stdin=source, stdout=target, check=True)
    assert (tmp_path / "out").read_bytes() == b"A\nB"


def test_nothing():
    """Standard input may be the null device, as under cron: it ends at once."""
    done = subprocess.run(
        [sys.executable, "-c", ECHO], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True
    )
    assert done.stdout == b""
