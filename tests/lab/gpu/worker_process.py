"""A worker of `lab gpu`: starts its process, has it run sections, ends it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from tests.lab.gpu.settings import GpuBench

MODULE = "tests.lab.gpu.worker"
ROOT = Path(__file__).parents[3]
LINE_LIMIT = 64 * 1024 * 1024
TAIL_BYTES = 6000
TAIL_LINES = 40
DUMP_SECONDS = 1.0
"""For a worker whose time is over to write where it stands."""


class Worker:
    """One process; `end` it. One section at a time."""

    def __init__(self, bench: GpuBench) -> None:
        self._bench = bench
        self._process: asyncio.subprocess.Process | None = None
        self._log: TextIO = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # see `end`

    async def start(self, seconds: float) -> dict[str, Any]:
        """Start it; `ready` with what it says of the machine, or a failure as of `run`."""
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            MODULE,
            json.dumps(asdict(self._bench)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            limit=LINE_LIMIT,
            env={**os.environ, **quiet},
            start_new_session=True,  # Ctrl-C reaches this program only, which ends it
        )
        return await self._answer(seconds, lambda _: None)

    async def run(self, section: str, seconds: float, on_part: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Run a section. on_part: called with each part of its result.

        Returns `done` with its seconds, or what went wrong: `failed` (`error`, `traceback` or the end of the output).
        """
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended; reading says so
            self._process.stdin.write(f"{section}\n".encode())
            await self._process.stdin.drain()
        return await self._answer(seconds, on_part)

    async def _answer(self, seconds: float, on_part: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                while line := await self._process.stdout.readline():
                    answer: dict[str, Any] = json.loads(line)
                    if "part" not in answer:
                        return answer
                    on_part(answer["part"])
                status = await self._process.wait()
        except TimeoutError:
            await self._dump()
            return {"failed": {"error": f"its time was over after {seconds:.0f} s", "output": self._tail()}}
        return {"failed": {"error": f"the process ended with status {status}", "output": self._tail()}}

    async def _dump(self) -> None:
        """Have the process write where its threads stand."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
            await asyncio.sleep(DUMP_SECONDS)

    def _tail(self) -> list[str]:
        """The last lines of what it wrote."""
        self._log.seek(0)
        return self._log.read()[-TAIL_BYTES:].splitlines()[-TAIL_LINES:]

    @property
    def ended(self) -> bool:
        """True if the process is no more."""
        return self._process is None or self._process.returncode is not None

    async def end(self) -> None:
        """End the process and all that it has started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        self._log.close()
