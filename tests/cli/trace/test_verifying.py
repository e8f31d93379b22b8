"""One run of the checks: which server, which reason, what is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lmtool.cli.trace.verifying import Plan, Server, ask, check, find, run
from lmtool.errors import ConnectError, FileError
from lmtool.trace.events import Event
from lmtool.trace.header import Header
from lmtool.trace.proxy import parse_target
from lmtool.trace.verification import Case, Known, Outcome
from tests.conftest import ROOT
from tests.trace.conftest import generate, token, tokens, write_trace

__all__ = ["write_trace"]  # a fixture

NOBODY = Server(parse_target("ws://127.0.0.1:9/"), "m")
TOP = {"top_logprobs": {"7": -0.5}}
ONE: list[Event] = [generate(0), tokens(1, token(7, 1, **TOP) | {"finish_reason": "stop"})]


def test_find(tmp_path: Path) -> None:
    """Folders are searched; names are paths below them without the ending."""
    (tmp_path / "a").mkdir()
    for name in ("a/one.lmtp.jsonl", "two.lmtp.jsonl.gz", "other.txt"):
        (tmp_path / name).write_text("")
    assert list(find([tmp_path])) == ["a/one", "two"]
    assert list(find([tmp_path / "a/one.lmtp.jsonl"])) == ["one"]
    with pytest.raises(FileError, match="there is no"):
        find([tmp_path / "none"])


async def test_ask(served: str) -> None:
    """A server is asked for its model; one of HTTP is not."""
    assert (await ask(served)).model == "stories260K"
    assert (await ask("http://127.0.0.1:9/v1")).model is None
    with pytest.raises(ConnectError):
        await ask("ws://127.0.0.1:9/")


@pytest.mark.parametrize(
    ("header", "servers", "reason"),
    [
        (Header(), (), "no server was named"),
        (Header(model={"name": "other"}), (NOBODY,), "it is of other, which no server under test has"),
        (Header(transport={"kind": "http"}), (NOBODY,), "it is of another protocol, which no server under test has"),
        (Header(verify={"directions": ["mock"]}), (NOBODY,), "the recording says: mock only"),
        (Header(verify={"directions": ["mock"], "why": "it is odd"}), (NOBODY,), "it is odd"),
    ],
)
async def test_skipped(
    header: Header, servers: tuple[Server, ...], reason: str, write_trace: Callable[..., Path]
) -> None:
    """What is not checked says why."""
    outcome = await check(Plan(servers), Case("a", "drive"), write_trace(ONE, header=header))
    assert (outcome.judgement, outcome.reason) == ("skipped", reason)


async def test_redacted_is_skipped(write_trace: Callable[..., Path]) -> None:
    """A recording without its prompts cannot be sent."""
    path = write_trace([generate(0, prompt={"$redacted": "prompt", "n": 1})])
    outcome = await check(Plan((NOBODY,)), Case("a", "drive"), path)
    assert outcome.judgement == "skipped"
    assert "redacted prompt" in outcome.reason


async def test_a_lost_server_is_a_failure_of_the_case(write_trace: Callable[..., Path]) -> None:
    """A server that is not there fails the case, which may be known to fail."""
    path = write_trace(ONE)
    outcome = await check(Plan((NOBODY,)), Case("a", "drive"), path)
    assert (outcome.judgement, outcome.failed) == ("fail", True)
    assert "no LMTP server at" in outcome.findings[0]
    known = Plan((NOBODY,), Known(failing=(("a", "there is none"),)))
    assert (await check(known, Case("a", "drive"), path)).judgement == "known-failing"


async def test_an_altered_file(write_trace: Callable[..., Path]) -> None:
    """A recording that was changed by hand fails its case, which may be known to fail."""
    path = write_trace(ONE)
    path.write_text(path.read_text().replace('"token": 7', '"token": 8'))
    outcome = await check(Plan(), Case("a", "mock"), path)
    assert outcome.failed
    assert "is altered" in outcome.findings[0]
    known = Plan((), Known(failing=(("a", "by hand"),)))
    assert (await check(known, Case("a", "mock"), path)).judgement == "known-failing"


async def test_run_keeps_the_order(write_trace: Callable[..., Path]) -> None:
    """Outcomes are told as they come, and returned in the order of the cases."""
    told: list[Outcome] = []
    cases = [(Case(name, "mock"), write_trace(ONE, name=f"{name}.lmtp.jsonl")) for name in "abc"]
    outcomes = await run(Plan(), cases, 2, told.append)
    assert [one.case.name for one in outcomes] == ["a", "b", "c"]
    assert {one.judgement for one in told} == {"pass"}
    assert len(told) == 3


def test_serve_here(lmtool, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """`--serve MODEL` serves the model for the checks, in float32 on the CPU."""
    recording = ROOT / "recordings/one_greedy_stream.lmtp.jsonl"
    done = lmtool("trace", "verify", str(recording), "--serve", str(ROOT / "tests/data/stories260K"))
    assert (done.returncode, done.stdout.split()) == (
        0,
        ["pass", "one_greedy_stream[mock]", "pass", "one_greedy_stream[drive]"],
    ), done.stderr
