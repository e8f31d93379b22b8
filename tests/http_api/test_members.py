"""Members of a request, read once each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lmtool.http_api.errors import ApiError
from lmtool.http_api.members import Members


def test_values_of_the_right_type() -> None:
    """Each reader returns what stands there; null and nothing are the same."""
    members = Members({"a": "x", "b": True, "c": 3, "d": 0.5, "e": ["x", "y"], "f": {"g": 1}, "h": None})
    assert (members.text("a"), members.flag("b"), members.integer("c", 0, 9)) == ("x", True, 3)
    assert (members.number("d", 0, 1, 9.0), members.texts("e", 2)) == (0.5, ("x", "y"))
    assert members.mapping("f") == {"g": 1}
    assert (members.text("h"), members.number("i", 0, 1, 9.0), members.texts("j", 2)) == (None, 9.0, ())
    members.end()


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (1, lambda m: m.text("x")),
        ("yes", lambda m: m.flag("x")),
        (1.5, lambda m: m.integer("x", 0, 9)),
        (True, lambda m: m.integer("x", 0, 9)),
        (10, lambda m: m.integer("x", 0, 9)),
        (float("nan"), lambda m: m.number("x", 0, 1, 0)),
        ("0.5", lambda m: m.number("x", 0, 1, 0)),
        ([""], lambda m: m.texts("x", 4)),
        (["a"] * 5, lambda m: m.texts("x", 4)),
        ([], lambda m: m.inner("x")),
        ("z" * 5000, lambda m: m.mapping("x")),
    ],
)
def test_a_wrong_value_is_named(value: object, read: Callable[[Members], object]) -> None:
    """400, with the member, the value, shortened, and what was expected."""
    with pytest.raises(ApiError) as raised:
        read(Members({"x": value}, "outer."))
    assert (raised.value.status, raised.value.param) == (400, "outer.x")
    assert raised.value.message.startswith("outer.x is ")
    assert len(raised.value.message) < 200


def test_what_nobody_read_is_refused() -> None:
    """A misspelt parameter is not ignored in silence; what says nothing about the answer is."""
    members = Members({"max_token": 3, "user": "me"})
    members.integer("max_tokens", 0, 9)
    with pytest.raises(ApiError, match="max_token is not known here; did you mean max_tokens") as raised:
        members.end()
    assert (raised.value.param, raised.value.code) == ("max_token", "unknown_parameter")
    Members({"user": "me", "metadata": {}}).end()
