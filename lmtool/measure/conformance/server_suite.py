"""Runs the cases for servers, and judges each transcript."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

from lmtool.core.errors import ConnectError, LmtoolError, TimeLimitError, UsageError
from lmtool.measure.conformance.checks import CHECKS
from lmtool.measure.conformance.conversation import Conversation, StepFailedError
from lmtool.measure.conformance.results import Problem, judge
from lmtool.measure.conformance.server_under_test import ServerUnderTest
from lmtool.measure.conformance.transcript import Transcript
from lmtool.net.access.outgoing import DENIED, denied, key_in
from lmtool.trace.outcomes import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.measure.conformance.case import Case, Expectation
    from lmtool.protocol.lmtp.endpoint import SocketEndpoint
    from lmtool.trace.outcomes import KnownFailures


async def ask_server(
    server: SocketEndpoint,
    timeout_s: float,
    *,
    model: str | None = None,
    prompt: tuple[int, ...] | None = None,
    eos: int | None = None,
) -> ServerUnderTest:
    """Ask a server what it serves.

    Raises `ConnectError`, `AccessDeniedError`, `TimeLimitError`, and `UsageError` where a name is needed.
    """
    url = server.url
    transcript = Transcript()
    conversation = Conversation(server, ServerUnderTest(model), transcript, timeout_s)
    named = {} if model is None else {"model": model}
    try:
        await conversation.connect("a")
        if transcript.handshakes["a"] != 101:
            raise _refused(server, transcript.handshakes["a"])
        # A server that does not know `lmtp` passes over it; one that knows tells more.
        await conversation.send(f"MODEL_INFO {json.dumps({**named, 'stream_id': 'who', 'data': {}})}")
        await conversation.until(lambda: transcript.is_answered("who"), "an answer to MODEL_INFO")
        # LMQL's server tells "<unavailable>" while its model loads.
        for _ in range(100):
            if _infos(transcript)[-1:] != ["<unavailable>"]:
                break
            await asyncio.sleep(timeout_s / 100)
            await conversation.fence()
    except StepFailedError as failed:
        if model is None:
            raise UsageError(
                f"{url} does not tell what it serves ({failed})", "name its model:  --model NAME"
            ) from None
        if "a" in transcript.closed:
            raise ConnectError(f"{url} closed the connection on a MODEL_INFO of {model!r}") from None
        raise TimeLimitError(f"{url} did not answer a MODEL_INFO of {model!r} within {timeout_s:g} s") from None
    finally:
        await conversation.end()
    info, key = _infos(transcript)[-1] if _infos(transcript) else None, key_in(server.authorization)
    under_test = ServerUnderTest.of(info, model=model, prompt=prompt, eos=eos, key=key)
    if under_test.model is None:
        raise UsageError(f"{url} does not tell which model it serves", "name it:  --model NAME")
    return under_test


def _refused(server: SocketEndpoint, status: int) -> LmtoolError:
    if status in DENIED:
        return denied(server.url, status, "", key_sent=server.authorization is not None)
    return ConnectError(f"no LMTP server at {server.url} (HTTP status {status})")


def _infos(transcript: Transcript) -> list[object]:
    return [entry["model_info"] for m in transcript.received() for entry in m.entries if "model_info" in entry]


async def run_case(
    server: SocketEndpoint, under_test: ServerUnderTest, case: Case, known: KnownFailures, timeout_s: float
) -> tuple[Outcome[Case], Transcript]:
    """Run one case; `timeout_s`: seconds that each step may take. Raises `ConnectError` when the server is gone."""
    transcript = Transcript()
    if reason := under_test.missing(case):
        return Outcome(case, "skipped", reason=reason), transcript
    start = time.monotonic()
    conversation = Conversation(server, under_test, transcript, timeout_s)
    problems: list[Problem] = []
    try:
        await conversation.connect("a")
        for step in case.script:
            await conversation.do(step)
    except StepFailedError as failed:
        problems = [Problem("fail", str(failed))]
    finally:
        await conversation.end()
    # A step that failed says more than the checks that could not hold then.
    problems = problems or [p for one in case.expect for p in check(one, transcript, conversation.value)]
    return judge(case, problems, time.monotonic() - start, known), transcript


def check(expectation: Expectation, transcript: Transcript, value: Callable[[str, str], object]) -> list[Problem]:
    """What does not hold; `value` gives variables that stand for arguments."""
    arguments = {name: _substituted(one, value) for name, one in expectation.arguments.items()}
    messages = CHECKS[expectation.check](transcript, **arguments)
    return [Problem(expectation.weight, message) for message in messages]


def _substituted(argument: object, value: Callable[[str, str], object]) -> object:
    if isinstance(argument, list):
        return [_substituted(one, value) for one in argument]
    if not isinstance(argument, str) or not argument.startswith("$"):
        return argument
    name, _, rest = argument[1:].partition("(")
    return value(name, rest.rstrip(")"))
