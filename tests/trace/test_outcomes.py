"""Outcomes of checks: known failures, and reports for machines and people."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import FileError, UsageError
from lmtool.trace.outcomes import (
    KnownFailures,
    Outcome,
    Verdict,
    as_json,
    junit,
    markdown,
    parse_known,
    summary,
    unmatched,
)

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Case:
    """A check of this name, in a class of its own."""

    id: str

    @property
    def label(self) -> str:
        return f"{self.id} [label]"

    @property
    def junit_name(self) -> tuple[str, str]:
        return "class", self.id

    def matches(self, pattern: str) -> bool:
        return pattern in (self.id, "*")


MESSAGE = "expected <7> & |, got \x1b[1m"
OUTCOMES = [
    Outcome(Case("good"), "pass", seconds=0.25),
    Outcome(Case("bad"), "fail", (MESSAGE, "more"), "", 0.5),
    Outcome(Case("other"), "skipped", reason="no server was named"),
    Outcome(Case("old"), "known-failing", ("wrong",), "a defect"),
    Outcome(Case("mended"), "fixed", (), "remove it"),
]


class TestKnownFailures:
    """What a list of known failures makes of a verdict."""

    KNOWN = KnownFailures({"hello": "a defect"}, {"sometimes": "the clock"})

    @pytest.mark.parametrize(
        ("name", "verdict", "judged", "bad"),
        [
            ("hello", "fail", "known-failing", False),
            ("hello", "pass", "fixed", True),
            ("hello", "tie", "fixed", True),
            ("sometimes", "fail", "known-flaky", False),
            ("sometimes", "pass", "pass", False),
            ("else", "fail", "fail", True),
            ("else", "tie", "tie", False),
        ],
    )
    def test_judged(self, name: str, verdict: Verdict, judged: str, bad: bool) -> None:
        """What is known to fail must still fail; what is flaky may; all else is what it is."""
        found, reason = self.KNOWN.judge(Case(name), verdict)
        assert (found, Outcome(Case(name), found).bad) == (judged, bad)
        assert bool(reason) == (judged != verdict)

    def test_a_stale_entry_says_what_to_do(self) -> None:
        """A case that is known to fail and passes asks to be taken off the list; a pattern may name no case."""
        assert self.KNOWN.judge(Case("hello"), "pass")[1] == (
            "known to fail (a defect), and passes: remove it from the list"
        )
        assert unmatched(["a", "b", "*"], [Case("a")]) == ["b"]

    def test_lists_need_reasons(self, tmp_path: Path) -> None:
        """Each line of a list has a pattern and a reason; comments and empty lines mean nothing."""
        assert parse_known(["# all", "", "a*  # b: c # d"]) == {"a*": "b: c # d"}
        with pytest.raises(UsageError, match="'a' in a list of known failures has no reason"):
            parse_known(["a"])
        (tmp_path / "list").write_text("a  # it is old\n")
        assert KnownFailures.read(tmp_path / "list", None) == KnownFailures({"a": "it is old"})
        assert KnownFailures.read(None, tmp_path / "list") == KnownFailures(flaky={"a": "it is old"})
        with pytest.raises(FileError, match="cannot read"):
            KnownFailures.read(tmp_path / "none", None)


class TestReports:
    """The same outcomes in each form."""

    def test_junit(self) -> None:
        """One test case each, failures with their messages, whatever characters these have."""
        suite = ET.fromstring(junit("recordings", OUTCOMES).encode())
        assert suite.attrib == {
            "name": "recordings", "tests": "5", "failures": "2", "errors": "0", "skipped": "1", "time": "0.750",
        }  # fmt: skip
        good, bad, other, old, mended = suite
        assert (good.get("name"), good.get("classname"), good.get("time"), len(good)) == ("good", "class", "0.250", 0)
        clean = MESSAGE.replace("\x1b", "\ufffd")
        assert (bad[0].tag, bad[0].get("message"), bad[0].text) == ("failure", clean, f"{clean}\nmore")
        assert other[0].get("message") == "no server was named"
        assert old[0].text == "known-failing: a defect\nwrong"
        assert mended[0].get("message") == "remove it"

    @given(st.text(), st.text(), st.sampled_from(["pass", "fail", "skipped"]))
    def test_any_text_is_well_formed(self, name: str, message: str, verdict: Verdict) -> None:
        """Whatever a peer sent may stand in a name or a message."""
        outcome = Outcome(Case(name), verdict, (message,), message)
        assert len(ET.fromstring(junit("s", [outcome]).encode("utf-8", "replace"))) == 1

    def test_json(self) -> None:
        """Counts, from the best verdict to the worst, and each outcome as it is described."""
        report = json.loads(as_json(OUTCOMES, lambda one: {"id": one.case.id}))
        assert list(report["summary"].items()) == [
            ("pass", 1), ("skipped", 1), ("known-failing", 1), ("fixed", 1), ("fail", 1),
        ]  # fmt: skip
        assert report["cases"][1] == {"id": "bad"}

    def test_markdown(self) -> None:
        """A table of what is not a plain pass; a bar in a message does not break it."""
        text = markdown(["# Title", ""], OUTCOMES, {"case": lambda case: case.id})
        assert text.startswith("# Title\n\n| case | verdict | why |\n|---|---|---|\n| bad | fail | ")
        assert "& \\|, got" in text
        assert "| other | skipped | no server was named |" in text
        assert "good" not in text

    def test_lines(self) -> None:
        """A line for each, then the first ten messages of what did not simply pass."""
        assert OUTCOMES[0].lines == ["pass          good [label]"]
        assert OUTCOMES[2].lines == ["skipped       other [label]  (no server was named)"]
        assert OUTCOMES[3].lines == ["known-failing old [label]  (a defect)", "    wrong"]
        many = Outcome(Case("bad"), "fail", tuple(map(str, range(12)))).lines
        assert (len(many), many[-2:]) == (12, ["    9", "    ... and 2 more"])
        assert summary(OUTCOMES, "checks") == "5 checks · 1 pass · 1 skipped · 1 known-failing · 1 fixed · 1 fail"
