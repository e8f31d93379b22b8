"""The specification of Evergreen and its tests name the same rules."""

import ast
import re
from pathlib import Path

import pytest

import lmtool.protocol.evergreen

SPEC = (Path(lmtool.protocol.evergreen.__path__[0]) / "SPEC.md").read_text()
RULES = re.findall(r"^\*\*(EVG-\d+)\*\* \((?:must|follows|settled)\) ", SPEC, re.MULTILINE)
LEADING_IDS = re.compile(r"^(EVG-\d+(?:, EVG-\d+)*): ")
TESTS = {
    f"{file.name}::{node.name}": ast.get_docstring(node) or ""
    for file in sorted(Path(__file__).parent.glob("test_evergreen_*.py"))
    if file.name != Path(__file__).name
    for node in ast.walk(ast.parse(file.read_text()))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
}
CHECKED = {rule for doc in TESTS.values() for rule in (LEADING_IDS.match(doc) or ["", ""])[1].split(", ")}


def test_there_are_43_rules():
    """They are counted from 1 without a gap."""
    assert [f"EVG-{number}" for number in range(1, 44)] == RULES


@pytest.mark.parametrize("rule", RULES)
def test_rule_is_checked(rule):
    """Every rule is named by at least one test here."""
    assert rule in CHECKED


@pytest.mark.parametrize("test", TESTS)
def test_test_names_its_rules(test):
    """Every test begins with the rules that it checks, and they exist."""
    found = LEADING_IDS.match(TESTS[test])
    assert found
    assert set(found[1].split(", ")) <= set(RULES)
