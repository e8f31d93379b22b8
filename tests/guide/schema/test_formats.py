"""Formats."""

from __future__ import annotations

import re

import pytest

from lmtool.guide.schema.formats import HELD, PATTERNS, write_format


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "uri-reference",
            ["", "a", "/a/b", "../a?b=c#d", "http://h:80/a", "//h/a", "mailto:a@b", "%20"],
            ["a b", "%2", "\\", "http://a b"],
        ),
        ("iri", ["http://h/", "urn:a:b"], ["", "/a", "a b"]),
        ("uri-template", ["/a/{b}", "{a,b}c", ""], ["{", "a b", "{}"]),
        ("json-pointer", ["", "/a/0", "/~0~1", "/é "], ["a", "/~2", "~"]),
        ("relative-json-pointer", ["0", "1/a", "2#"], ["", "01", "/a", "-1"]),
        ("idn-hostname", ["a", "a-b.c1"], ["", "-a", "a..b", "a b"]),
        ("idn-email", ["a@b", "a.b+c@d-e.f"], ["a", "@b", "a@", "a b@c"]),
        ("regex", ["", "abc", r"a\.b", "\\d"], ["(", "[", "*", "\\"]),
    ],
)
def test_patterns(name, good, bad):
    """A format's pattern allows only texts of the format."""
    pattern = re.compile(PATTERNS[name])
    assert [text for text in good if not pattern.search(text)] == []
    assert [text for text in bad if pattern.search(text)] == []
    if name == "regex":
        for text in good:
            re.compile(text)


def test_others():
    """A format that JSON Schema does not define says nothing, which is told; what the library holds has no pattern."""
    assert write_format("path")[0] is None
    assert "'path'" in (write_format("path")[1] or "")
    assert write_format("json-pointer") == (PATTERNS["json-pointer"], None)
    assert not HELD & PATTERNS.keys()
