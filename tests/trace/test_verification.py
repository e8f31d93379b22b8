"""What outcomes mean."""

from __future__ import annotations

import pytest

from lmtool.errors import UsageError
from lmtool.trace.comparison import Comparison
from lmtool.trace.findings import Finding, Verdict
from lmtool.trace.verification import Case, Known, Outcome, judge, name_of, read_list, select

CASE = Case("hello", "drive")
KNOWN = Known((("hello[drive]", "a defect"),), (("sometimes", "the clock"),))


def test_names() -> None:
    """A case is called after its file and its direction."""
    assert [name_of(file) for file in ("a.lmtp.jsonl", "b/c.lmtp.jsonl.gz", "d")] == ["a", "b/c", "d"]
    assert CASE.id == "hello[drive]"


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [("hello", True), ("h*", True), ("hello[drive]", True), ("*[drive]", True), ("hello[mock]", False), ("x", False)],
)
def test_globs(pattern: str, matches: bool) -> None:
    """A case is chosen by its name in both directions, by its id in one."""
    assert CASE.matches(pattern) is matches


def test_selection() -> None:
    """No glob chooses all; a glob that chooses nothing is a mistake."""
    cases = [CASE, Case("hello", "mock"), Case("other", "mock")]
    assert select(cases, []) == cases
    assert select(cases, ["hello"]) == cases[:2]
    with pytest.raises(UsageError, match="nothing is called x"):
        select(cases, ["x"])


@pytest.mark.parametrize(
    ("name", "verdict", "judgement"),
    [
        ("hello", "fail", "known-failing"),
        ("hello", "pass", "fail"),
        ("hello", "tie", "fail"),
        ("sometimes", "fail", "known-flaky"),
        ("sometimes", "pass", "pass"),
        ("else", "fail", "fail"),
        ("else", "tie", "tie"),
    ],
)
def test_judgements(name: str, verdict: Verdict, judgement: str) -> None:
    """What is known to fail must still fail; what is flaky may; all else is what it is."""
    assert judge(Case(name, "drive"), verdict, KNOWN)[0] == judgement


def test_a_stale_entry_says_what_to_do() -> None:
    """A case that is known to fail and passes asks to be taken off the list."""
    assert judge(CASE, "pass", KNOWN)[1] == "known to fail (a defect), and passes: remove it from the list"


def test_lists_need_reasons() -> None:
    """Each line of a list has a pattern and a reason; comments and empty lines mean nothing."""
    assert read_list(["# all", "", "a*  # b: c # d"]) == (("a*", "b: c # d"),)
    with pytest.raises(UsageError, match="'a' in a list of known failures has no reason"):
        read_list(["a"])


def test_findings_begin_with_the_worst() -> None:
    """Who reads only the first finding reads why it failed."""
    found = (Finding("info", "ids", "1/1", None, "one"), Finding("fail", "ids", "1/2", 3, "two"))
    outcome = Outcome(CASE, "fail", comparisons=(Comparison("1/1", "GENERATE", found),))
    assert outcome.findings[0] == "fail (ids) stream 1/2 token 3: two"
    assert outcome.failed
