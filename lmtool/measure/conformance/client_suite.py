"""Runs the cases for clients: a command against a scripted server, once a case, and judges each run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from lmtool.core.errors import ResourceError
from lmtool.measure.conformance.client_checks import CLIENT_CHECKS
from lmtool.measure.conformance.results import Problem, judge
from lmtool.measure.conformance.scripted_server import ScriptedServer
from lmtool.measure.conformance.transcript import ClientRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.measure.conformance.case import Case
    from lmtool.measure.conformance.case_script import Step
    from lmtool.trace.outcomes import KnownFailures, Outcome

TOKENS = (11, 12, 13)
"""Ids of an answer."""
_MAX_OUTPUT = 2**20
"""Bytes of a client's output that are looked at."""


class ClientRuns:
    """Runs of one client command; cases with the same script share one."""

    def __init__(self, command: Sequence[str], timeout: float, tokens: tuple[int, ...] = TOKENS) -> None:
        """Make none yet. timeout: seconds that the command may take; tokens: three ids to answer with."""
        self._command = command
        self._timeout = timeout
        self._tokens = tokens
        self._runs: dict[tuple[Sequence[Step], bool], ClientRun] = {}
        self._usual: str | None = None

    async def learn(self, plain: Case) -> str | None:
        """What the command prints for a plain answer, asked twice; None where that is not the same both times.

        Later runs know it. Raises `ResourceError` when the command cannot be started.
        """
        first, again = await self.of(plain), await self._run(plain)
        self._usual = first.usual = first.stdout if first.stdout == again.stdout else None
        return self._usual

    async def of(self, case: Case) -> ClientRun:
        """The run for a case. Raises `ResourceError` when the command cannot be started."""
        key = (case.script, case.bare_info)
        if key not in self._runs:
            self._runs[key] = await self._run(case)
            self._runs[key].usual = self._usual
        return self._runs[key]

    async def _run(self, case: Case) -> ClientRun:
        run = ClientRun()
        server = ScriptedServer(case.script, run, self._tokens, bare=case.bare_info)
        url = await server.listen()
        try:
            words = [word.replace("{url}", url) for word in self._command]
            await _command(words, url, run, self._timeout)
        finally:
            await server.close()
        return run


async def run_case(case: Case, runs: ClientRuns, known: KnownFailures) -> tuple[Outcome[Case], ClientRun]:
    """Judge one case. Raises `ResourceError` when the command cannot be started."""
    start = time.monotonic()
    run = await runs.of(case)
    problems = [*_ending(case, run)]
    for one in case.expect:
        problems += [Problem(one.weight, message) for message in CLIENT_CHECKS[one.check](run, **one.arguments)]
    return judge(case, problems, time.monotonic() - start, known), run


def _ending(case: Case, run: ClientRun) -> list[Problem]:
    if run.status is None:
        return [Problem("fail", f"it did not end within {run.timeout:g} s and was killed")]
    if case.exit == "ok" and run.status != 0:
        return [Problem("fail", f"it ended with status {run.status}; expected 0: {run.stderr.strip()[-200:]}")]
    if case.exit == "failure" and run.status == 0:
        return [Problem("fail", "it ended with status 0; expected a failure")]
    return []


async def _command(words: list[str], url: str, run: ClientRun, timeout_s: float) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "LMTOOL_ENDPOINT": url},
            start_new_session=True,
        )
    except OSError as error:
        raise ResourceError(
            f"cannot start {words[0]!r}: {error.strerror}", "give the client's command after --"
        ) from None
    assert process.stdout is not None
    assert process.stderr is not None
    reading = asyncio.gather(_head(process.stdout), _head(process.stderr))
    run.timeout = timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
        run.status = process.returncode
    except TimeoutError:
        run.status = None
    finally:
        # Whatever it has started ends with it, or its pipes would stay open.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    run.stdout, run.stderr = await reading


async def _head(stream: asyncio.StreamReader) -> str:
    """The beginning of what comes; the rest is read and dropped."""
    head = bytearray()
    while data := await stream.read(2**16):
        head += data[: max(0, _MAX_OUTPUT - len(head))]
    return head.decode("utf-8", "replace")
