"""Runs the cases for servers, and judges what came of each."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

from lmtool.access.outgoing import DENIED, denied, key_in
from lmtool.conformance.checks import CHECKS
from lmtool.conformance.conversation import Conversation, StepFailedError
from lmtool.conformance.outcome import Outcome, Problem, judge
from lmtool.conformance.seen import Seen
from lmtool.conformance.subject import Subject
from lmtool.errors import ConnectError, LmtoolError, TimeLimitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.conformance.case import Case, Expectation
    from lmtool.conformance.outcome import Known
    from lmtool.lmtp.endpoint import SocketEndpoint


async def meet(
    server: SocketEndpoint,
    patience: float,
    *,
    model: str | None = None,
    prompt: tuple[int, ...] | None = None,
    eos: int | None = None,
) -> Subject:
    """Ask a server what it serves.

    Raises `ConnectError`, `AccessDeniedError`, `TimeLimitError`, and `UsageError` where a name is needed.
    """
    url = server.url
    seen = Seen()
    conversation = Conversation(server, Subject(model), seen, patience)
    named = {} if model is None else {"model": model}
    try:
        await conversation.connect("a")
        if seen.handshakes["a"] != 101:
            raise _refused(server, seen.handshakes["a"])
        # A server that does not know `lmtp` passes over it; one that knows tells more.
        await conversation.send(f"MODEL_INFO {json.dumps({**named, 'stream_id': 'who', 'data': {}})}")
        await conversation.until(lambda: seen.is_answered("who"), "an answer to MODEL_INFO")
        # LMQL's server tells "<unavailable>" while its model loads.
        for _ in range(100):
            if not _is_loading(seen):
                break
            await asyncio.sleep(patience / 100)
            await conversation.fence()
    except StepFailedError as failed:
        if model is None:
            raise UsageError(
                f"{url} does not tell what it serves ({failed})", "name its model:  --model NAME"
            ) from None
        if "a" in seen.closed:
            raise ConnectError(f"{url} closed the connection on a MODEL_INFO of {model!r}") from None
        raise TimeLimitError(f"{url} did not answer a MODEL_INFO of {model!r} within {patience:g} s") from None
    finally:
        await conversation.end()
    told, key = _infos(seen)[-1] if _infos(seen) else None, key_in(server.authorization)
    subject = Subject.told(told, model=model, prompt=prompt, eos=eos, key=key)
    if subject.model is None:
        raise UsageError(f"{url} does not tell which model it serves", "name it:  --model NAME")
    return subject


def _refused(server: SocketEndpoint, status: int) -> LmtoolError:
    if status in DENIED:
        return denied(server.url, status, "", shown=server.authorization is not None)
    return ConnectError(f"no LMTP server at {server.url} (HTTP status {status})")


def _infos(seen: Seen) -> list[object]:
    return [entry["model_info"] for m in seen.received() for entry in m.entries if "model_info" in entry]


def _is_loading(seen: Seen) -> bool:
    return _infos(seen)[-1:] == ["<unavailable>"]


async def run_case(
    server: SocketEndpoint, subject: Subject, case: Case, known: Known, patience: float
) -> tuple[Outcome, Seen]:
    """Run one case; `patience`: seconds that each step may take. Raises `ConnectError` when the server is gone."""
    seen = Seen()
    lacking = subject.lacks(case)
    if lacking:
        return Outcome(case, "skipped", reason=lacking), seen
    began = time.monotonic()
    conversation = Conversation(server, subject, seen, patience)
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
    problems = problems or [p for one in case.expect for p in check(one, seen, conversation.value)]
    return judge(case, problems, time.monotonic() - began, known), seen


def check(expectation: Expectation, seen: Seen, value: Callable[[str, str], object]) -> list[Problem]:
    """What does not hold; `value` gives variables that stand for arguments."""
    arguments = {name: _filled(one, value) for name, one in expectation.arguments.items()}
    found = CHECKS[expectation.check](seen, **arguments)
    return [Problem(expectation.weight, message) for message in found]


def _filled(argument: object, value: Callable[[str, str], object]) -> object:
    if isinstance(argument, list):
        return [_filled(one, value) for one in argument]
    if not isinstance(argument, str) or not argument.startswith("$"):
        return argument
    name, _, rest = argument[1:].partition("(")
    return value(name, rest.rstrip(")"))
