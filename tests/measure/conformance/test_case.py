"""Cases as data."""

from __future__ import annotations

from typing import Any

import pytest

from lmtool.measure.conformance.case import CaseError, cases, read, select

WELL = {"id": "a", "title": "A holds", "rules": ["GEN-3"], "script": "fence"}


@pytest.mark.parametrize("role", ["server", "client"])
def test_all_files_are_well_formed(role: Any) -> None:
    """Every case has a name of its own, rules that exist, steps and something that is expected."""
    found = cases(role)
    assert len({case.id for case in found}) == len(found) > 20
    assert all(case.rules and case.script for case in found)
    assert all(case.expect or case.exit != "any" or "idle" in str(case.script) for case in found)


def test_a_case_has_the_grade_of_its_first_rule() -> None:
    """Grade and sentence come from the specification."""
    case = read(WELL, "server")
    assert case.grade == "compat"
    assert case.sentence.startswith("`max_tokens`")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rules": ["GEN-99"]}, r"rules has \['GEN-99'\]"),
        ({"needs": ["luck"]}, "luck"),
        ({"colour": "red"}, "colour"),
        ({"title": ""}, "expected a text"),
        ({"script": "shout"}, "no step"),
        ({"expect": [{"check": "luck"}]}, "no check 'luck'"),
        ({"expect": [{"check": "ending"}]}, "missing a required"),
        ({"expect": [{"check": "lists", "weight": "heavy"}]}, "heavy"),
    ],
)
def test_mistakes_in_a_file_are_found(change: dict[str, Any], message: str) -> None:
    """What a case names must exist; the error says which case."""
    with pytest.raises(CaseError, match=f"server case a: .*{message}"):
        read({**WELL, **change}, "server")


def test_choosing() -> None:
    """By grade, and by globs of case ids and rules."""
    everything = cases("server")
    assert {case.grade for case in select(everything, ("must",))} == {"must"}
    assert [case.id for case in select(everything, only=("empty-sc*",))] == ["empty-score"]
    assert all("TOK-3" in case.rules for case in select(everything, only=("TOK-3",)))
    assert select(everything) == list(everything)
