"""Runs the cases for clients: a command against a scripted server, once a case, and judges what it did."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from lmtool.conformance.client_checks import CLIENT_CHECKS
from lmtool.conformance.outcome import Problem, judge
from lmtool.conformance.ran import Ran
from lmtool.conformance.scripted_server import ScriptedServer
from lmtool.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.conformance.case import Case
    from lmtool.conformance.outcome import Known, Outcome
    from lmtool.conformance.script import Step

TOKENS = (11, 12, 13)
"""Ids of an answer."""
_MOST_OUTPUT = 2**20
"""Bytes of a client's output that are looked at."""


class Runs:
    """Runs of one client command; cases with the same script share one."""

    def __init__(self, command: Sequence[str], patience: float, tokens: tuple[int, ...] = TOKENS) -> None:
        """Make none yet. patience: seconds that the command may take; tokens: three ids to answer with."""
        self._command = command
        self._patience = patience
        self._tokens = tokens
        self._made: dict[tuple[Sequence[Step], bool], Ran] = {}
        self._usual: str | None = None

    async def learn(self, plain: Case) -> str | None:
        """What the command prints for a plain answer, asked twice; None where that is not the same both times.

        Later runs know it. Raises `ResourceError` when the command cannot be started.
        """
        first, again = await self.of(plain), await self._run(plain)
        self._usual = first.usual = first.stdout if first.stdout == again.stdout else None
        return self._usual

    async def of(self, case: Case) -> Ran:
        """The run for a case. Raises `ResourceError` when the command cannot be started."""
        key = (case.script, case.bare_info)
        if key not in self._made:
            self._made[key] = await self._run(case)
            self._made[key].usual = self._usual
        return self._made[key]

    async def _run(self, case: Case) -> Ran:
        ran = Ran()
        server = ScriptedServer(case.script, ran, self._tokens, bare=case.bare_info)
        url = await server.listen()
        try:
            words = [word.replace("{url}", url) for word in self._command]
            await _command(words, url, ran, self._patience)
        finally:
            await server.close()
        return ran


async def run_case(case: Case, runs: Runs, known: Known) -> tuple[Outcome, Ran]:
    """Judge one case. Raises `ResourceError` when the command cannot be started."""
    began = time.monotonic()
    ran = await runs.of(case)
    problems = [*_ending(case, ran)]
    for one in case.expect:
        problems += [Problem(one.weight, message) for message in CLIENT_CHECKS[one.check](ran, **one.arguments)]
    return judge(case, problems, time.monotonic() - began, known), ran


def _ending(case: Case, ran: Ran) -> list[Problem]:
    if ran.status is None:
        return [Problem("fail", f"it did not end within {ran.patience:g} s and was killed")]
    if case.exit == "ok" and ran.status != 0:
        return [Problem("fail", f"it ended with status {ran.status}; expected 0: {ran.stderr.strip()[-200:]}")]
    if case.exit == "failure" and ran.status == 0:
        return [Problem("fail", "it ended with status 0; expected a failure")]
    return []


async def _command(words: list[str], url: str, ran: Ran, patience: float) -> None:
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
    ran.patience = patience
    try:
        async with asyncio.timeout(patience):
            await process.wait()
        ran.status = process.returncode
    except TimeoutError:
        ran.status = None
    finally:
        # Whatever it has started ends with it, or its pipes would stay open.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    ran.stdout, ran.stderr = await reading


async def _head(stream: asyncio.StreamReader) -> str:
    """The beginning of what comes; the rest is read and dropped."""
    kept = bytearray()
    while data := await stream.read(2**16):
        kept += data[: max(0, _MOST_OUTPUT - len(kept))]
    return kept.decode("utf-8", "replace")
