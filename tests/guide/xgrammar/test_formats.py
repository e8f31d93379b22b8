"""Patterns of formats."""

from __future__ import annotations

import ipaddress
import re
import uuid
from datetime import date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.guide.schema.formats import HELD
from lmtool.guide.xgrammar.formats import PATTERNS
from lmtool.guide.xgrammar.matching import found_in_json

CHECKS = {
    "date": date.fromisoformat,
    "date-time": datetime.fromisoformat,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uuid": uuid.UUID,
}


def test_every_format_is_there() -> None:
    """All that llguidance holds are held here too; each pattern is one that can be written."""
    assert HELD - {"unknown"} <= PATTERNS.keys()
    assert all(found_in_json(pattern) is not None for pattern in PATTERNS.values())


@pytest.mark.parametrize("name", CHECKS)
def test_texts_are_of_the_format(name: str) -> None:
    """Whatever the pattern allows, the standard library reads."""

    @given(st.from_regex(PATTERNS[name], fullmatch=True, alphabet=st.characters(codec="ascii")))
    def check(text: str) -> None:
        CHECKS[name](text)

    check()


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", "2024-02-28", "2023-02-29"),
        ("time", "12:00:00Z", "24:00:00Z"),
        ("duration", "P1DT2H", "P"),
        ("email", "a.b@c.org", "a@"),
        ("hostname", "a-b.org", "-a.org"),
        ("ipv4", "10.0.0.255", "10.0.0.01"),
        ("uri", "https://a.org/x?y#z", "a.org"),
    ],
)
def test_examples(name: str, good: str, bad: str) -> None:
    """One text of the format, and one that only looks so."""
    assert re.search(PATTERNS[name], good)
    assert not re.search(PATTERNS[name], bad)
