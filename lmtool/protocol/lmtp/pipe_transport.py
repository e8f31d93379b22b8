"""Transport to a server that this client starts: frames on its stdin and stdout; its processes end with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from lmtool.core.errors import ConnectError

if TYPE_CHECKING:
    from lmtool.protocol.lmtp.endpoint import CommandEndpoint

EXIT_SECONDS = 5.0
"""Time for a server, and then for the processes that it leaves behind, to exit by themselves."""
POLL_SECONDS = 0.05
LONGEST_LOG_LINE = 1000
"""Characters of a line of the server's stderr that are passed on."""
LOG_CHUNK = 64 * 1024
"""Bytes of stderr that are read at once, and of a line that are kept."""


class PipeTransport:
    """An open transport to a child process, which leads a process group of its own."""

    def __init__(self, process: asyncio.subprocess.Process, endpoint: CommandEndpoint, limit: int) -> None:
        """process: started by `start`. limit: bytes of the longest frame."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._name = endpoint.program
        self._limit = limit
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._on_log = endpoint.on_log
        self._error_lines: list[str] = []
        self._logging = None if process.stderr is None else asyncio.create_task(self._read_log(process.stderr))

    @classmethod
    async def start(cls, endpoint: CommandEndpoint, limit: int) -> PipeTransport:
        """Start the server. Raises OSError where there is no such program."""
        process = await asyncio.create_subprocess_exec(
            *endpoint.words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if endpoint.on_log is None else asyncio.subprocess.PIPE,
            limit=limit,
            start_new_session=True,  # Ctrl-C in a terminal is for this program alone; the server ends with its input
        )
        return cls(process, endpoint, limit)

    def expect_pongs(self) -> None:
        """Nothing to do: a pipe ends with the processes at its other end, and carries no pings."""

    async def send(self, frame: str) -> None:
        """Send a frame; returns when the next may be sent. Raises `ConnectError`."""
        try:
            self._stdin.write(frame.encode() + b"\n")
            await self._stdin.drain()
        except OSError:
            raise await self._lost() from None

    async def receive(self) -> str | bytes:
        """Wait for the next frame. Raises `ConnectError` when there will be none."""
        try:
            line = await self._stdout.readline()
        except ValueError:
            raise ConnectError(f"{self._name!r} sent a line above {self._limit} bytes") from None
        if not line:
            raise await self._lost()
        try:
            return line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            return line

    async def close(self) -> None:
        """Close the server's stdin, upon which it exits; terminate or kill it otherwise, and all that it started."""
        self._stdin.close()
        for insist in (self._process.terminate, self._process.kill):
            if await self._exited():
                break
            insist()
        await self._end_group()
        await self._process.wait()
        if self._logging is not None:
            await self._logging

    async def _exited(self) -> bool:
        """Wait for the server's exit, `EXIT_SECONDS` at most; return whether it has exited."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_SECONDS):
                await self._process.wait()
        return self._process.returncode is not None  # `wait` waits for pipes as well, which others may hold

    async def _end_group(self) -> None:
        """End the processes that the server has left behind.

        Killed at once they could not release shared memory: they get time to exit by themselves.
        """
        if sys.platform == "win32":
            return
        group, deadline = self._process.pid, asyncio.get_running_loop().time() + EXIT_SECONDS
        with contextlib.suppress(ProcessLookupError, PermissionError):  # none is left; macOS says so of zombies
            while asyncio.get_running_loop().time() < deadline:
                self._reap(group)
                os.killpg(group, 0)
                await asyncio.sleep(POLL_SECONDS)
            os.killpg(group, signal.SIGKILL)

    def _reap(self, group: int) -> None:
        """Collect orphans of the group, which become this process's children where it is a container's first."""
        if self._process.returncode is None:
            return  # the server itself is for asyncio to collect
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-group, os.WNOHANG)[0]:
                pass

    async def _lost(self) -> ConnectError:
        """Why the connection was lost: the error that the server wrote to stderr, else its exit status."""
        if not await self._exited():
            return ConnectError(f"{self._name!r} has closed its input or output")
        if self._logging is not None:
            await asyncio.wait([self._logging], timeout=EXIT_SECONDS)
        if self._error_lines:
            return ConnectError(*self._error_lines)
        status = self._process.returncode or 0
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"has ended with exit status {status}"
        return ConnectError(f"{self._name!r} {how}")

    async def _read_log(self, stderr: asyncio.StreamReader) -> None:
        rest = b""
        while data := await stderr.read(LOG_CHUNK):
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[:LOG_CHUNK]
            for line in lines:
                self._log(line.decode("utf-8", "replace").rstrip())
        self._log(rest.decode("utf-8", "replace").rstrip())

    def _log(self, line: str) -> None:
        """Pass on a line of the server's stderr, unless it belongs to its last words: an error and its hints."""
        assert self._on_log is not None
        if line.startswith("error: "):
            self._error_lines = [line.removeprefix("error: ")]
        elif self._error_lines and line.startswith("  "):
            self._error_lines.append(line.strip())
        elif line:
            self._on_log(line.removeprefix("warning: ")[:LONGEST_LOG_LINE])
