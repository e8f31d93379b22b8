"""Recordings as cases: which server, which reason, what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lmtool.core.errors import FileError, UsageError
from lmtool.trace.codec import Header
from lmtool.trace.comparison import Comparison, Finding
from lmtool.trace.editing import redacted
from lmtool.trace.events import Event
from lmtool.trace.outcomes import KnownFailures, summary
from lmtool.trace.proxy import parse_target
from lmtool.trace.reader import TraceReader
from lmtool.trace.redaction import Redaction, parse
from lmtool.trace.verification import (
    REPORTS,
    Plan,
    RecordingCase,
    RecordingOutcome,
    Server,
    check,
    find,
    name_of,
    run,
    select,
)
from lmtool.trace.writer import write_trace
from tests.conftest import ROOT
from tests.trace.conftest import generate, token, tokens

CASE = RecordingCase("hello", "drive")
NOBODY = Server(parse_target("ws://127.0.0.1:9/"), "m")
TOP = {"top_logprobs": {"7": -0.5}}
ONE: list[Event] = [generate(0), tokens(1, token(7, 1, **TOP) | {"finish_reason": "stop"})]


class TestCases:
    """Names of recordings, and globs of them."""

    def test_find(self, tmp_path: Path) -> None:
        """Folders are searched; names are paths below them without the ending."""
        (tmp_path / "a").mkdir()
        for name in ("a/one.lmtp.jsonl", "two.lmtp.jsonl.gz", "other.txt"):
            (tmp_path / name).write_text("")
        assert list(find([tmp_path])) == ["a/one", "two"]
        assert list(find([tmp_path / "a/one.lmtp.jsonl"])) == ["one"]
        with pytest.raises(FileError, match="there is no"):
            find([tmp_path / "none"])

    def test_names(self) -> None:
        """A case is called after its file and its direction."""
        assert [name_of(file) for file in ("a.lmtp.jsonl", "b/c.lmtp.jsonl.gz", "d")] == ["a", "b/c", "d"]
        assert CASE.id == "hello[drive]"

    @pytest.mark.parametrize(
        ("pattern", "matches"),
        [
            ("hello", True),
            ("h*", True),
            ("hello[drive]", True),
            ("*[drive]", True),
            ("hello[mock]", False),
            ("x", False),
        ],
    )
    def test_globs(self, pattern: str, matches: bool) -> None:
        """A case is selected by its name in both directions, by its id in one."""
        assert CASE.matches(pattern) is matches

    def test_selection(self) -> None:
        """No glob selects all; a glob that selects nothing is a mistake."""
        assert [case.id for case in select(["hello", "other"], [])] == [
            "hello[mock]", "hello[drive]", "other[mock]", "other[drive]",
        ]  # fmt: skip
        assert select(["hello", "other"], ["hello[drive]"]) == [CASE]
        with pytest.raises(UsageError, match="no check is named x"):
            select(["hello"], ["x"])
        with pytest.raises(UsageError, match="there is no recording"):
            select([], [])


class TestCheck:
    """One case, checked."""

    @pytest.mark.parametrize(
        ("header", "servers", "reason"),
        [
            (Header(), (), "no server was named"),
            (
                Header(model={"name": "other"}),
                (NOBODY,),
                "recorded with model other, which no server under test serves",
            ),
            (
                Header(transport={"kind": "http"}),
                (NOBODY,),
                "recorded over HTTP; use --to http://… or --serve",
            ),
            (
                Header(),
                (Server(parse_target("http://127.0.0.1:9/"), None),),
                "recorded over LMTP; use --to ws://… or --serve",
            ),
            (Header(verify={"directions": ["mock"]}), (NOBODY,), "the recording says: mock only"),
            (Header(verify={"directions": ["mock"], "why": "it is odd"}), (NOBODY,), "it is odd"),
        ],
    )
    async def test_skipped(
        self, header: Header, servers: tuple[Server, ...], reason: str, write_trace: Callable[..., Path]
    ) -> None:
        """What is not checked says why."""
        outcome = await check(Plan(servers), CASE, write_trace(ONE, header=header))
        assert (outcome.verdict, outcome.reason) == ("skipped", reason)

    @pytest.mark.parametrize("kind", ["http", "websocket"])
    async def test_a_server_of_any_protocol_gets_all(self, kind: str, write_trace: Callable[..., Path]) -> None:
        """`--serve`: a server with one port for all protocols is sent recordings of each."""
        nobody = Server(parse_target("ws://127.0.0.1:9/"), "m", any_protocol=True)
        outcome = await check(Plan((nobody,)), CASE, write_trace(ONE, header=Header(transport={"kind": kind})))
        assert (outcome.verdict, outcome.reason) == ("fail", "")

    async def test_redacted_is_skipped(self, write_trace: Callable[..., Path]) -> None:
        """A recording without its prompts cannot be sent."""
        path = write_trace([generate(0, prompt={"$redacted": "prompt", "n": 1})])
        outcome = await check(Plan((NOBODY,)), CASE, path)
        assert outcome.verdict == "skipped"
        assert "redacted prompt" in outcome.reason

    async def test_a_lost_server_is_a_failure_of_the_case(self, write_trace: Callable[..., Path]) -> None:
        """A server that is not there fails the case, which may be known to fail."""
        path = write_trace(ONE)
        outcome = await check(Plan((NOBODY,)), CASE, path)
        assert (outcome.verdict, outcome.bad, outcome.trace) == ("fail", True, "")
        assert "no LMTP server at" in outcome.messages[0]
        known = Plan((NOBODY,), KnownFailures({"hello": "there is none"}))
        assert (await check(known, CASE, path)).verdict == "known-failing"

    async def test_an_altered_file(self, write_trace: Callable[..., Path]) -> None:
        """A recording that was changed by hand fails its case, which may be known to fail."""
        path, case = write_trace(ONE), RecordingCase("hello", "mock")
        path.write_text(path.read_text().replace('"token": 7', '"token": 8'))
        outcome = await check(Plan(), case, path)
        assert outcome.bad
        assert "is altered" in outcome.messages[0]
        assert (await check(Plan((), KnownFailures({"hello": "by hand"})), case, path)).verdict == "known-failing"

    async def test_a_known_failure_that_passes_fails(self, write_trace: Callable[..., Path]) -> None:
        """It has to leave the list."""
        known = KnownFailures({"hello": "a defect"})
        outcome = await check(Plan(known=known), RecordingCase("hello", "mock"), write_trace(ONE))
        assert (outcome.verdict, outcome.bad) == ("fail", True)
        assert "remove it from the list" in outcome.reason

    async def test_run_keeps_the_order(self, write_trace: Callable[..., Path]) -> None:
        """Outcomes are reported as they come, and returned in the order of the cases."""
        reported: list[RecordingOutcome] = []
        cases = [(RecordingCase(name, "mock"), write_trace(ONE, name=f"{name}.lmtp.jsonl")) for name in "abc"]
        outcomes = await run(Plan(), cases, 2, reported.append)
        assert [one.case.name for one in outcomes] == ["a", "b", "c"]
        assert {one.verdict for one in reported} == {"pass"}
        assert len(reported) == 3


def test_reports() -> None:
    """Every finding in its parts; a case's class is its direction."""
    finding = Finding("fail", "ids", '1/"a"', 2, "expected 7, got 8")
    comparison = Comparison("1/1", "GENERATE", (finding,))
    outcomes = [
        RecordingOutcome(CASE, "fail", (str(finding),), "", 0.5, "report/hello", (comparison,), "recordings/hello"),
        RecordingOutcome(RecordingCase("hello", "mock"), "pass"),
    ]
    report = json.loads(REPORTS["report.json"](outcomes))
    assert report["summary"] == {"pass": 1, "fail": 1}
    assert report["cases"][0] == {
        "name": "hello",
        "direction": "drive",
        "verdict": "fail",
        "reason": "",
        "seconds": 0.5,
        "requests": 1,
        "findings": [
            {"verdict": "fail", "level": "ids", "stream": '1/"a"', "token": 2, "message": "expected 7, got 8"}
        ],
        "recording": "recordings/hello",
        "actual": "report/hello",
    }
    assert '<testsuite name="recordings"' in REPORTS["junit.xml"](outcomes)
    assert 'classname="drive" name="hello"' in REPORTS["junit.xml"](outcomes)
    assert "| hello[drive] | fail | fail (ids) stream" in REPORTS["report.md"](outcomes)
    assert summary(outcomes, "checks") == "2 checks · 1 pass · 1 fail"


class TestRedacted:
    """Recordings without what clients or models said."""

    @pytest.mark.parametrize("what", ["prompt", "text"])
    @pytest.mark.parametrize(
        ("name", "verdict"),
        [
            ("one_greedy_stream", "pass"),
            ("a_page_of_another_site", "pass"),
            ("buffers", "pass"),
            ("evergreen_sessions", "info"),
            ("frames_that_cannot_be_read", "info"),
        ],
    )
    async def test_mock(self, tmp_path: Path, name: str, verdict: str, what: str) -> None:
        """Played to clients as far as they go: what cannot be sent again is named, and fails nothing."""
        outcome = await check(Plan(report=tmp_path), RecordingCase(name, "mock"), redacted_copy(name, what, tmp_path))
        told = "not verified: what its client sent was redacted"
        if (name, what) == ("frames_that_cannot_be_read", "text"):
            verdict = "pass"  # its frames are the client's own words
        assert (outcome.verdict, told in "".join(outcome.messages)) == (verdict, verdict == "info")

    async def test_texts_cannot_be_compared(self, tmp_path: Path, served: str) -> None:
        """A recording without its answers is compared in form only; at another level the case is skipped."""
        path, servers = redacted_copy("one_greedy_stream", "text", tmp_path), (Server(parse_target(served), None),)
        outcome = await check(Plan(servers, report=tmp_path), CASE, path)
        assert (outcome.verdict, outcome.reason) == ("skipped", "the answers of this recording were redacted")
        assert (await check(Plan(servers, level="shape", report=tmp_path), CASE, path)).verdict == "pass"

    async def test_http_answers_of_which_parts_are_left(self, tmp_path: Path, served: str) -> None:
        """Members that were left out are not compared; the others are."""
        path = redacted_copy("plain_http", "prompt", tmp_path)
        plan = Plan((Server(parse_target(served), None, any_protocol=True),), report=tmp_path)
        outcome = await check(plan, CASE, path)
        assert outcome.verdict == "pass", outcome.messages
        lines = path.read_text(encoding="utf-8").replace('"", {}', '"", {"lmtp": 2}').splitlines()[:-1]
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
        assert (await check(plan, CASE, path)).verdict == "fail"


def redacted_copy(name: str, what: str, folder: Path) -> Path:
    """A recording of this repository without a part."""
    reader, redaction = TraceReader(ROOT / f"recordings/{name}.lmtp.jsonl"), Redaction(parse(what), b"salt")
    path = folder / f"{name}.lmtp.jsonl"
    write_trace(path, redaction.header(reader.header), redacted(reader, redaction))
    return path
