"""This process's stdin and stdout as lines for an event loop, whatever they are connected to."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import RequestError
from lmtool.net.access.stall import STALL_SECONDS, StallTimer

if TYPE_CHECKING:
    from typing import BinaryIO


class LineReader:
    """Lines of a stream, none longer than `limit` bytes."""

    def __init__(self, stream: asyncio.StreamReader, limit: int) -> None:
        self._stream = stream
        self._limit = limit

    async def readline(self) -> bytes:
        """The next line with its newline; empty at the end. Raises `RequestError` for a line above the limit."""
        try:
            return await self._stream.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial
        except asyncio.LimitOverrunError:
            raise RequestError(f"the frame has more than {self._limit} bytes, the most that are read") from None


class FileWriter:
    """A writer to a regular file, which an event loop cannot watch and which never blocks for long."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> None:
        """Queue bytes."""
        self._file.write(data)

    async def drain(self) -> None:
        """Write what was queued."""
        self._file.flush()


class PipeWriter:
    """A writer to a pipe or terminal, which is closed where its reader takes nothing for too long."""

    def __init__(self, writer: asyncio.StreamWriter, stall_limit: float) -> None:
        self._writer = writer
        self._stall = StallTimer(writer.transport, stall_limit, self._give_up)
        self._stalled = False

    def write(self, data: bytes) -> None:
        """Queue bytes."""
        self._writer.write(data)

    async def drain(self) -> None:
        """Return when more may be queued. Raises `OSError` where the reader is gone, or was given up."""
        self._stall.start()
        await self._writer.drain()
        self._stall.stop()
        if self._stalled:
            raise BrokenPipeError("the reader took nothing for too long")

    def _give_up(self) -> None:
        self._stalled = True


LineWriter: TypeAlias = FileWriter | PipeWriter


async def open_stdio(limit: int, stall_limit: float = STALL_SECONDS) -> tuple[LineReader, LineWriter]:
    """This process's stdin and stdout.

    limit: bytes of the longest line that is read whole. stall_limit: seconds for which the reader may take nothing; 0:
    any number.
    """
    loop = asyncio.get_running_loop()
    # The stream's own limit has to be above ours, or a line of just the limit would not be found.
    stream = asyncio.StreamReader(limit=limit + 1)
    if _is_file(sys.stdin.fileno()):
        stream.feed_data(sys.stdin.buffer.read())
        stream.feed_eof()
    else:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), sys.stdin)
    if _is_file(sys.stdout.fileno()):
        return LineReader(stream, limit), FileWriter(sys.stdout.buffer)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    return LineReader(stream, limit), PipeWriter(asyncio.StreamWriter(transport, protocol, None, loop), stall_limit)


def _is_file(descriptor: int) -> bool:
    """True if it is a regular file or the null device: never waited for, and nothing that an event loop can watch."""
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) or os.path.samestat(status, Path(os.devnull).stat())
