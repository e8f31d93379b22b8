"""Cases run against small clients, good and bad."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lmtool.core.errors import ResourceError
from lmtool.measure.conformance.case import Case, cases
from lmtool.measure.conformance.client_suite import ClientRuns, run_case
from lmtool.trace.outcomes import KnownFailures

CLIENT = """
import json, os, sys
from websockets.sync.client import connect

bad = sys.argv[1]
with connect(os.environ["LMTOOL_ENDPOINT"], compression=None) as server:
    server.send('GENERATE {"prompt": [1]%s}' % (', "stream_id": 1' if bad != "no id" else ''))
    over = False
    while not over:
        try:
            payload = json.loads(server.recv().partition(" ")[2])
        except Exception:
            if bad == "hangs":
                sys.stdin = open(os.devnull); import threading; threading.Event().wait()
            sys.exit(0 if bad == "shrugs" else "lost")
        for entry in payload if isinstance(payload, list) or bad == "lists only" else [payload]:
            if bad == "lists only" and not isinstance(entry, dict):
                sys.exit("not a list")
            if entry.get("stream_id") != 1 or over and bad != "late":
                continue
            if entry.get("error"):
                sys.exit(entry["error"])
            if "token" in entry:
                print(entry["token"] + (os.getpid() if bad == "moody" else 0), flush=True)
                over = over or entry["finish_reason"] is not None
"""


def case(name: str) -> Case:
    """The case of this id."""
    return next(case for case in cases("client") if case.id == name)


@pytest.fixture
def client(tmp_path: Path) -> list[str]:
    """The words that start a small client; one more word says what it does wrong."""
    (tmp_path / "client.py").write_text(CLIENT)
    return [sys.executable, str(tmp_path / "client.py")]


async def run(name: str, command: list[str], timeout: float = 30.0) -> tuple[str, str]:
    """Verdict and messages of a case."""
    runs = ClientRuns(command, timeout)
    await runs.learn(case("plain-answer"))
    outcome, _ = await run_case(case(name), runs, KnownFailures())
    return outcome.verdict, " · ".join(outcome.messages)


@pytest.mark.parametrize("name", ["plain-answer", "late-entries", "bare-objects", "connection-lost", "failed-stream"])
async def test_a_good_client(client: list[str], name: str) -> None:
    """It passes."""
    assert await run(name, [*client, "nothing"]) == ("pass", "")


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("late-entries", "late", "for a plain answer of the same tokens it prints"),
        ("bare-objects", "lists only", "it ended with status 1; expected 0: not a list"),
        ("stream-ids", "no id", "no stream_id"),
        ("connection-lost", "shrugs", "it ended with status 0; expected a failure"),
    ],
)
async def test_a_bad_client(client: list[str], name: str, bad: str, message: str) -> None:
    """What it does wrong is told."""
    verdict, told = await run(name, [*client, bad], 2.0 if bad == "no id" else 30.0)
    assert verdict == "fail"
    assert message in told


async def test_a_client_that_hangs(client: list[str]) -> None:
    """It is killed when its time is over."""
    assert await run("connection-lost", [*client, "hangs"], 2.0) == ("fail", "it did not end within 2 s and was killed")


async def test_the_usual_output(client: list[str]) -> None:
    """What it prints for a plain answer; None where that differs each time. `{url}` is filled in."""
    plain = case("plain-answer")
    assert await ClientRuns([*client, "nothing"], 30.0).learn(plain) == "11\n12\n13\n"
    assert await ClientRuns([*client, "moody"], 30.0).learn(plain) is None
    told = await ClientRuns([sys.executable, "-c", "print('{url}'[:15])"], 30.0).learn(plain)
    assert told == "ws://127.0.0.1:\n"


async def test_runs_are_shared(client: list[str]) -> None:
    """Cases with the same script look at one run."""
    runs = ClientRuns([*client, "nothing"], 30.0)
    assert await runs.of(case("plain-answer")) is await runs.of(case("stream-ids"))
    assert await runs.of(case("plain-answer")) is not await runs.of(case("bare-objects"))


async def test_a_command_that_does_not_exist() -> None:
    """It is an error of its own, not a failed case."""
    with pytest.raises(ResourceError, match="cannot start 'no-such-program'"):
        await ClientRuns(["no-such-program"], 1.0).learn(case("plain-answer"))
