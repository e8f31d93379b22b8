"""A peer in a process of its own: starts it in its environment, calls it, ends it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import ConnectError, ResourceError, TimeLimitError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self, TextIO

MODULE = "lmtool.measure.bench.peers.worker"
PACKAGE = Path(__file__).parents[2]
FOREIGN = (
    "import sys, types; sys.path[:] = filter(None, sys.path); package = types.ModuleType('lmtool');"
    "package.__path__ = [sys.argv[1]]; sys.modules['lmtool'] = package; from {module} import main; main(sys.argv[2:])"
)
"""Runs a module of this package in another Python, isolated from the packages beside it and from the working folder.

A clone of an engine's repository may lie in the working folder.
"""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
LINE_LIMIT = 64 * 1024 * 1024
EXIT_SECONDS = 5.0
TAIL_BYTES = 2000


def command(python: str, module: str, words: list[str]) -> list[str]:
    """Command line that runs a module's `main(words)` in this Python or a foreign one."""
    if Path(python) == Path(sys.executable):
        return [python, "-m", module, *words]
    return [python, "-c", FOREIGN.format(module=module), str(PACKAGE), *words]


class PeerProcess:
    """Calls one peer; `async with` ends its process. One call at a time."""

    def __init__(self, peer: str, python: str, settings: Mapping[str, Any], words: list[str] | None = None) -> None:
        """peer: a name in `peers.worker`. settings: JSON; `threads` is required.

        words: command line of a program with the same calls and answers, in the place of `peers.worker`.
        """
        self._peer = peer
        self._words = words or command(python, MODULE, [peer, json.dumps(settings)])
        self._threads = int(settings["threads"])
        self._process: asyncio.subprocess.Process | None = None
        self._log: TextIO | None = None
        self.about: dict[str, Any] = {}
        """The peer's description of itself."""

    async def start(self, seconds: float) -> None:
        """Start the process and load the peer. Raises `ResourceError`, `ConnectError`, `TimeLimitError`."""
        threads = dict.fromkeys(THREAD_VARIABLES, str(self._threads))
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # closed at the end
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._log,
                limit=LINE_LIMIT,
                env={**os.environ, **threads, "TOKENIZERS_PARALLELISM": "false"},
                start_new_session=True,  # Ctrl-C reaches this program only, which ends it
            )
        except OSError as error:
            raise ResourceError(
                f"cannot start {self._words[0]!r}: {error.strerror}", "check the peer's Python"
            ) from None
        self.about = await self._answer(seconds)

    async def call(self, limit: float, method: str, /, **arguments: object) -> dict[str, Any]:
        """Call `timed`, `greedy` or a method of the peer, see `peers.worker`. limit: seconds.

        Raises `ConnectError` (the process died), `ResourceError` (the call failed), `TimeLimitError`.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, arguments]).encode() + b"\n")
        return await self._answer(limit)

    async def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise TimeLimitError(f"{self._peer} gave no answer within {seconds:g} s", "allow more: --timeout") from None
        if not line:
            status = await self._process.wait()
            raise ConnectError(f"{self._peer} ended with status {status}", *self._last_lines())
        answer: dict[str, Any] = json.loads(line)
        if "hints" in answer:
            raise ResourceError(answer["error"], *answer["hints"])
        if "error" in answer:
            raise ResourceError(f"{self._peer} failed: {answer['error']}", *self._last_lines())
        return answer

    def _last_lines(self) -> list[str]:
        assert self._log is not None
        self._log.seek(0)
        lines = [line for line in self._log.read()[-TAIL_BYTES:].splitlines() if line.strip()]
        return lines[-3:]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        """End the process: close its stdin, then SIGTERM, then SIGKILL."""
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            for signal in (process.terminate, process.kill):
                try:
                    async with asyncio.timeout(EXIT_SECONDS):
                        await process.wait()
                    break
                except TimeoutError:
                    signal()
            await process.wait()
        if self._log is not None:
            self._log.close()
