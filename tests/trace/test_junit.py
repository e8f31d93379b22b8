"""JUnit files, read back by an XML parser."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from lmtool.trace.junit import JUnitCase, junit


def test_a_suite_counts_its_cases() -> None:
    """Counts and the sum of times stand at the suite, what was wrong at its case."""
    cases = [
        JUnitCase("mock", "one", 0.5, "passed", ""),
        JUnitCase("drive", "two", 0.25, "failed", "id 3: expected 4\nstream 1"),
        JUnitCase("drive", "three", 0, "skipped", "no server"),
    ]
    suite = ET.fromstring(junit("recordings", cases).encode())
    assert suite.attrib == {
        "name": "recordings", "tests": "3", "failures": "1", "errors": "0", "skipped": "1", "time": "0.750",
    }  # fmt: skip
    _, failed, skipped = suite
    (failure,), (why,) = failed, skipped
    assert (failure.get("message"), failure.text) == ("id 3: expected 4", "id 3: expected 4\nstream 1")
    assert why.get("message") == "no server"


@given(st.text(), st.text(), st.sampled_from(["passed", "failed", "skipped"]))
def test_any_text_is_well_formed(name: str, told: str, result: str) -> None:
    """Whatever a peer sent may stand in a name or a message."""
    suite = ET.fromstring(junit("s", [JUnitCase("c", name, 0, result, told)]).encode("utf-8", "replace"))
    assert len(suite) == 1
