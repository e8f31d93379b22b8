"""The specification of LMTP, its tests and the cases of conformance name the same rules.

Our own server passes all these cases (tests/cli/conformance/test_server.py), so no test here repeats one.
"""

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

import lmtool.protocol.lmtp
from lmtool.measure.conformance.case import Role, cases

SPEC = Path(lmtool.protocol.lmtp.__path__[0]) / "SPEC.md"
RULE = re.compile(r"^\*\*([A-Z]+-\d+)\*\* \((must|compat|beyond)\) ", re.MULTILINE)
RULES = [name for name, _ in RULE.findall(SPEC.read_text())]
LEADING_IDS = re.compile(r"^([A-Z]+-\d+(?:, [A-Z]+-\d+)*): ")


def of_the_spec():
    for file in sorted(Path(__file__).parent.glob("test_lmtp_*.py")):
        if file.name == Path(__file__).name:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield f"{file.name}::{node.name}", ast.get_docstring(node) or ""


TESTS = dict(of_the_spec())
CHECKED = {rule for doc in TESTS.values() for rule in (LEADING_IDS.match(doc) or ["", ""])[1].split(", ")}
CHECKED |= {rule for role in get_args(Role) for case in cases(role) for rule in case.rules}


def test_rules_have_one_id_each():
    """No id of SPEC.md is given twice, and each line in bold is a rule with a grade."""
    assert len(RULES) == len(set(RULES)) > 60
    assert len(re.findall(r"^\*\*[A-Z]", SPEC.read_text(), re.MULTILINE)) == len(RULES)


def test_ids_count_up():
    """The rules of each heading are counted from 1 without a gap."""
    for prefix in {rule.partition("-")[0] for rule in RULES}:
        numbers = [int(rule.partition("-")[2]) for rule in RULES if rule.startswith(f"{prefix}-")]
        assert numbers == list(range(1, len(numbers) + 1)), prefix


@pytest.mark.parametrize("rule", RULES)
def test_rule_is_checked(rule):
    """Every rule of SPEC.md is named by at least one test here, or by a case that our server and client pass."""
    assert rule in CHECKED


@pytest.mark.parametrize("test", TESTS)
def test_test_names_its_rules(test):
    """Every test of the specification names the rules that it checks, and they exist."""
    found = LEADING_IDS.match(TESTS[test])
    assert found, "the docstring begins with the ids of its rules"
    assert set(found[1].split(", ")) <= set(RULES)


def test_rules_named_elsewhere_exist():
    """A rule that the code or the specification itself refers to exists."""
    prefixes = "|".join({rule.partition("-")[0] for rule in RULES})
    for file in [*SPEC.parent.glob("*.py"), SPEC]:
        assert set(re.findall(rf"\b(?:{prefixes})-\d+\b", file.read_text())) <= set(RULES), file.name
