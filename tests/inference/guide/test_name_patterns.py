"""Patterns for names: which leave few."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from lmtool.inference.guide.name_patterns import has_too_few_names, is_endless, matches, names_of


@pytest.mark.parametrize(
    "pattern",
    [
        "^[a-z]+$", "^x-", "a", "", "b$", "^.*$", "^[^a]*$", "^([a-z]+)$", "^(?:a+|b*)$", r"^a\$", "^a{2,}$",
        "^(a|b)*$", "^[a-zA-Z_][a-zA-Z0-9_]*$", "^(a)+$|b$", r"^\d+$", "^/", r"^\\+$",
    ],
)  # fmt: skip
def test_endless(pattern):
    """Every beginning of a name goes on in any number of ways."""
    assert is_endless(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "^a$", "^[ab]$", "^(a|b[0-9]*)$", "^(id|x-.*)$", "^.{1,3}$", "^a+$|^b$", r"^\w+\b", r"^a\+$", "^[*+]$",
        "^(a+)b$", "^(a+)(b)$", "^(x|(y+))$", "^$", r"^a*\z",
    ],
)  # fmt: skip
def test_not_certainly_endless(pattern):
    """Some beginnings leave few names, or may."""
    assert not is_endless(pattern)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("^a$", {"a"}),
        ("^[a-c]$", {"a", "b", "c"}),
        ('^(ü|"|ab?)$', {"ü", '"', "a", "ab"}),
        ("^$", {""}),
        ("a", None),
        ("^[a-z]+$", None),
        ("^.$", None),
        ("^[ab]{3}$", None),
        ("^a{20}$", {"a" * 20}),
        ("(?=a)", None),
        ("^" + "(a|b)" * 20 + "[cd]x$", None),
    ],
)
def test_names_of(pattern, names):
    """All names, where they are fewer than enough."""
    assert names_of(pattern, 6) == names


@pytest.mark.parametrize(
    ("node", "lacks"),
    [
        ({"patternProperties": {"^a$": {}}, "minProperties": 2}, True),
        ({"patternProperties": {"^a$": {}, "^[ab]$": {}}, "minProperties": 2}, False),
        ({"patternProperties": {"^a$": {}}, "properties": {"a": {}, "b": {}}, "minProperties": 2}, False),
        ({"patternProperties": {"^a$": {}}, "properties": {"a": {}, "b": False}, "minProperties": 2}, True),
        ({"patternProperties": {"^a$": {}, "^b": False}, "minProperties": 2}, True),
        ({"patternProperties": {"^a$": {}, "^b": {}}, "minProperties": 2}, False),
        ({"patternProperties": {"^a$": {}}}, False),
        ({"patternProperties": {"^[a-z]$": {}}, "minProperties": 1000}, True),
        ({"patternProperties": {"^[a-z]{2}$": {}}, "minProperties": 1000}, False),
        ({"minProperties": 2, "properties": {"a": {}}}, False),
    ],
)
def test_lacks_names(node, lacks):
    """An object may need more properties than there are names for it, where no others are allowed."""
    assert has_too_few_names({**node, "additionalProperties": False}) == lacks
    assert not has_too_few_names(node)


def test_from_several_threads():
    """Answers are validated in threads while other schemas are compiled: what is kept of a pattern is never moved."""
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(names_of, "^[a-z]{1,3}$", 2000) for _ in range(4)]
        judged = [threads.submit(matches, "^[a-z]{1,3}$", "abc") for _ in range(4000)]
        assert all(one.result() for one in judged)
        assert all(one.result() is None for one in found)
