"""Verdicts, and the lists of known failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.conformance.case import read
from lmtool.conformance.outcome import Known, Outcome, Problem, Verdict, counts, judge, read_known
from lmtool.errors import FileError, UsageError

CASE = read({"id": "a", "title": "A holds", "rules": ["GEN-3"], "script": "fence"}, "server")
FAILING, FLAKY = Known({"a": "it is old"}), Known(flaky={"a": "it is moody"})
FAIL, WARN, NOTE = Problem("fail", "wrong"), Problem("non-strict", "odd"), Problem("info", "look")


@pytest.mark.parametrize(
    ("problems", "known", "verdict", "bad"),
    [
        ([], Known(), "pass", False),
        ([NOTE], Known(), "info", False),
        ([NOTE, WARN], Known(), "non-strict", False),
        ([NOTE, WARN, FAIL], Known(), "fail", True),
        ([FAIL], FAILING, "known-failing", False),
        ([], FAILING, "fixed", True),
        ([WARN], FAILING, "fixed", True),
        ([FAIL], FLAKY, "known-flaky", False),
        ([], FLAKY, "pass", False),
    ],
)
def test_verdicts(problems: list[Problem], known: Known, verdict: Verdict, bad: bool) -> None:
    """The worst problem counts; a known failure must still fail."""
    outcome = judge(CASE, problems, 1.0, known)
    assert (outcome.verdict, outcome.bad) == (verdict, bad)


def test_messages() -> None:
    """A known failure that passes says what to do; a skipped case says why."""
    assert judge(CASE, [], 0.0, FAILING).messages == [
        "it passes: remove it from the list of known failures (it is old)"
    ]
    assert Outcome(CASE, "skipped", reason="no eos").messages == ["no eos"]
    assert judge(CASE, [FAIL, NOTE], 0.0, Known()).messages == ["wrong", "look"]


def test_lists_of_known_failures(tmp_path: Path) -> None:
    """One case and its reason a line; a list that names no case, or gives no reason, is refused."""
    file = tmp_path / "list"
    file.write_text("# a comment\n\na  # it is old\n")
    assert read_known(file, None, ["a", "b"]) == Known({"a": "it is old"})
    assert read_known(None, file, ["a"]) == Known(flaky={"a": "it is old"})
    with pytest.raises(FileError, match="'a', which does not exist"):
        read_known(file, None, ["b"])
    with pytest.raises(FileError, match="cannot read"):
        read_known(tmp_path / "none", None, [])
    file.write_text("a\n")
    with pytest.raises(UsageError, match="no reason"):
        read_known(file, None, ["a"])


def test_counts() -> None:
    """Verdicts that occur, from best to worst."""
    outcomes = [judge(CASE, [FAIL], 0.0, Known()), judge(CASE, [], 0.0, Known()), judge(CASE, [], 0.0, Known())]
    assert counts(outcomes) == {"pass": 2, "fail": 1}
