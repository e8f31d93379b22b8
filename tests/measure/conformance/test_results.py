"""Results of cases: verdicts, known failures, traces, reports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from lmtool.core.errors import FileError
from lmtool.measure.conformance import results
from lmtool.measure.conformance.case import read
from lmtool.measure.conformance.results import Problem, judge, read_known, save
from lmtool.measure.conformance.transcript import ConnectionEnd, Message
from lmtool.trace.events import Close, Frame, Open, Remark
from lmtool.trace.outcomes import KnownFailures, Outcome, Verdict
from lmtool.trace.reader import TraceReader
from tests.measure.conformance.conftest import said, token

CASE = read({"id": "a", "title": "A holds", "rules": ["GEN-3"], "script": "fence"}, "server")
NONE, FAILING, FLAKY = KnownFailures(), KnownFailures({"a": "it is old"}), KnownFailures(flaky={"a": "it is moody"})
FAIL, WARN, NOTE = Problem("fail", "wrong"), Problem("non-strict", "odd"), Problem("info", "look")
OUTCOMES = [
    judge(CASE, [], 0.5, NONE),
    replace(judge(CASE, [Problem("fail", "a < b | \x1b")], 0.25, NONE), trace="report/a.lmtp.jsonl"),
    judge(CASE, [FAIL], 0.0, FAILING),
    judge(CASE, [], 0.0, FAILING),
    Outcome(CASE, "skipped", reason="no eos"),
]


class TestVerdicts:
    """Problems, and what is known of a case."""

    @pytest.mark.parametrize(
        ("problems", "known", "verdict", "bad"),
        [
            ([], NONE, "pass", False),
            ([NOTE], NONE, "info", False),
            ([NOTE, WARN], NONE, "non-strict", False),
            ([NOTE, WARN, FAIL], NONE, "fail", True),
            ([FAIL], FAILING, "known-failing", False),
            ([], FAILING, "fixed", True),
            ([WARN], FAILING, "fixed", True),
            ([FAIL], FLAKY, "known-flaky", False),
            ([], FLAKY, "pass", False),
        ],
    )
    def test_the_worst_problem_counts(
        self, problems: list[Problem], known: KnownFailures, verdict: Verdict, bad: bool
    ) -> None:
        """A known failure must still fail."""
        outcome = judge(CASE, problems, 1.0, known)
        assert (outcome.verdict, outcome.bad) == (verdict, bad)
        assert outcome.messages == tuple(problem.message for problem in problems)

    def test_lists_name_cases_that_exist(self, tmp_path: Path) -> None:
        """A list of known failures cannot go stale."""
        file = tmp_path / "list"
        file.write_text("score  # it is old\n")
        assert read_known("server", file, None) == KnownFailures({"score": "it is old"})
        for failing, flaky in ((file, None), (None, file)):
            with pytest.raises(FileError, match="'score', which does not exist"):
                read_known("client", failing, flaky)


class TestTrace:
    """The trace of a case."""

    def test_it_can_be_read(self, tmp_path: Path) -> None:
        """Frames of all connections byte for byte, closes with their codes, problems as marks, rules in the header."""
        frame = token(logprob=float("-inf"))
        transcript = said(token(), frame)
        transcript.handshakes["a"] = 101
        transcript.add(Message.of(0.3, "b", ">", "GENERATE " + "x" * 100_000))
        transcript.closed["b"] = ConnectionEnd(0.4, 1009, "too big", "server")
        path = save(tmp_path / "new", CASE, transcript, ["one is missing"])
        assert path.name == "server-a.lmtp.jsonl"
        reader = TraceReader(path)
        events = list(reader)
        assert reader.ending is not None
        assert reader.ending.state == "complete"
        assert (reader.header.title, reader.header.covers) == ("a: A holds", ("GEN-3",))
        frames = [event for event in events if isinstance(event, Frame)]
        assert [one.wire() for one in frames[:2]] == [token(), frame]
        assert len(str(frames[2].wire())) == 2**16
        assert [(one.connection, one.code, one.by) for one in events if isinstance(one, Close)] == [(2, 1009, "server")]
        assert [one.text for one in events if isinstance(one, Remark) and one.kind == "mark"] == ["one is missing"]
        assert len([one for one in events if isinstance(one, Open)]) == 2
        assert save(tmp_path / "new", CASE, transcript, ["one is missing"]) == path

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        """It is a FileError."""
        (tmp_path / "file").write_text("")
        with pytest.raises(FileError, match="cannot make the folder"):
            save(tmp_path / "file", CASE, said(), [])


class TestReports:
    """Outcomes for other programs and for people."""

    def test_junit(self) -> None:
        """Well-formed, whatever a server sent; only what counts as failed is a failure."""
        suite = ET.fromstring(results.REPORTS["junit"](OUTCOMES))
        assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "2", "1")
        failures = [failure.get("message") for failure in suite.iter("failure")]
        assert failures[0] == "a < b | \ufffd"
        assert "remove it" in str(failures[1])
        assert {case.get("classname") for case in suite.iter("testcase")} == {"server.GEN-3"}
        assert [out.text for out in suite.iter("system-out")] == ["known-failing: it is old\nwrong"]

    def test_json(self) -> None:
        """Counts, and all that is known of each case."""
        report = json.loads(results.REPORTS["json"](OUTCOMES))
        assert report["summary"] == {"pass": 1, "skipped": 1, "known-failing": 1, "fixed": 1, "fail": 1}
        assert [case["trace"] for case in report["cases"][:2]] == [None, "report/a.lmtp.jsonl"]
        assert (report["cases"][2]["reason"], report["cases"][2]["messages"]) == ("it is old", ["wrong"])
        assert report["cases"][4]["messages"] == ["no eos"]
        assert report["cases"][0]["grade"] == "compat"

    def test_markdown(self) -> None:
        """Counts by grade, and a row for everything but a plain pass."""
        text = results.REPORTS["markdown"](OUTCOMES)
        assert "| compat | 1 | 4 |" in text
        assert "| a | GEN-3 | compat | fail | a < b \\| \x1b |" in text
        assert text.count("\n| a |") == 4

    def test_lines(self) -> None:
        """A failure says what was wrong, the rule's own words, and how to open the trace."""
        assert results.lines(OUTCOMES[0]) == ["pass          a  [GEN-3 · compat]"]
        lines = results.lines(OUTCOMES[1])
        assert lines[0].startswith("fail ")
        assert lines[2].startswith("    GEN-3: `max_tokens`")
        assert lines[-1] == "    lmtool inspect report/a.lmtp.jsonl"
        assert "(it is old)" in results.lines(OUTCOMES[2])[0]
        assert results.summary(OUTCOMES) == "5 cases · 1 pass · 1 skipped · 1 known-failing · 1 fixed · 1 fail"
