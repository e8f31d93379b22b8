"""The hold on one worker process: starts it in its environment, asks, and ends it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.errors import ConnectError, ResourceError, TimeLimitError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self, TextIO

MODULE = "lmtool.bench.peers.worker"
PACKAGE = Path(__file__).parents[1]
FOREIGN = (
    "import sys, types; sys.path[:] = filter(None, sys.path); package = types.ModuleType('lmtool');"
    "package.__path__ = [sys.argv[1]]; sys.modules['lmtool'] = package; from {module} import main; main(sys.argv[2:])"
)
"""Runs a module of this package in another Python without anything else of this one's environment.

The working folder is left out too: a clone of an engine's repository may lie in it.
"""
LINE_LIMIT = 64 * 1024 * 1024
EXIT_SECONDS = 5.0
TAIL_BYTES = 2000


def command(python: str, module: str, words: list[str]) -> list[str]:
    """The command line that runs a module's `main(words)` in a Python, this one or a foreign one."""
    if Path(python) == Path(sys.executable):
        return [python, "-m", module, *words]
    return [python, "-c", FOREIGN.format(module=module), str(PACKAGE), *words]


def one_thread_pool(threads: int) -> dict[str, str]:
    """Environment that gives every library of a process the same number of threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    return dict.fromkeys(names, str(threads))


class Worker:
    """One peer in a process of its own. `async with` starts and ends it; one question at a time."""

    def __init__(self, peer: str, python: str, settings: Mapping[str, Any]) -> None:
        """peer: a name of `peers.worker`. settings: JSON; `threads` at least."""
        self._peer = peer
        self._words = command(python, MODULE, [peer, json.dumps(settings)])
        self._threads = int(settings["threads"])
        self._process: asyncio.subprocess.Process | None = None
        self._log: TextIO | None = None
        self.about: dict[str, Any] = {}
        """What it said of itself."""

    async def start(self, limit: float) -> None:
        """Start and load, within so many seconds. Raises `ResourceError`, `ConnectError`, `TimeLimitError`."""
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # closed in `close`
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._log,
                limit=LINE_LIMIT,
                env={**os.environ, **one_thread_pool(self._threads), "TOKENIZERS_PARALLELISM": "false"},
                start_new_session=True,  # Ctrl-C is this program's business, which ends it
            )
        except OSError as error:
            raise ResourceError(
                f"cannot start {self._words[0]!r}: {error.strerror}", "check the peer's Python"
            ) from None
        self.about = await self._answer(limit)

    async def ask(self, limit: float, **request: object) -> dict[str, Any]:
        """The answer to one request. Raises `ConnectError` (it died), `ResourceError` (it failed), `TimeLimitError`."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        return await self._answer(limit)

    async def _answer(self, limit: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(limit):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise TimeLimitError(f"{self._peer} gave no answer within {limit:g} s", "allow more: --timeout") from None
        if not line:
            status = await self._process.wait()
            raise ConnectError(f"{self._peer} ended with status {status}", *self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ResourceError(f"{self._peer} failed: {answer['error']}", *self._last_words())
        return answer

    def _last_words(self) -> list[str]:
        assert self._log is not None
        self._log.seek(0)
        lines = [line for line in self._log.read()[-TAIL_BYTES:].splitlines() if line.strip()]
        return lines[-3:]

    async def close(self) -> None:
        """End the process: its stdin is closed, then it is told to, then made to."""
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            for insist in (process.terminate, process.kill):
                try:
                    async with asyncio.timeout(EXIT_SECONDS):
                        await process.wait()
                    break
                except TimeoutError:
                    insist()
            await process.wait()
        if self._log is not None:
            self._log.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
