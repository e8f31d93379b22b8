"""Patterns of formats, and for what texts are not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.inference.guide.schema.strings import (
    PATTERNS,
    SUPPORTED_FORMATS,
    literals,
    no_prefix_of,
    none_of,
    write_format,
)

TEXTS = st.text(st.sampled_from("ab.^]-\\\n\x01é"), max_size=4)


@given(st.lists(TEXTS, min_size=1, max_size=5), TEXTS)
def test_none_of(texts, text):
    """A text matches exactly if it is none of the given."""
    pattern = re.compile(none_of(texts).replace("\\x{1}", "\\x01").replace("\\x{a}", "\\n"))
    assert (pattern.fullmatch(text) is not None) == (text not in texts)


@given(st.lists(TEXTS, min_size=1, max_size=5), TEXTS)
def test_no_prefix_of(texts, text):
    """A text matches exactly if it begins with none of the given."""
    pattern = re.compile(no_prefix_of(texts).replace("\\x{1}", "\\x01").replace("\\x{a}", "\\n"))
    assert (pattern.fullmatch(text) is not None) == (not text.startswith(tuple(texts)))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("^x$", (["x"], True)),
        ("^x", (["x"], False)),
        ("^(a|b c)$", (["a", "b c"], True)),
        ("^(?:a|)$", (["a", ""], True)),
        (r"^a\.b\|c$", (["a.b|c"], True)),
        ("x", None),
        ("^a|b$", None),
        ("^a.c$", None),
        ("^[ab]$", None),
        ("^a+$", None),
        (r"^\d$", None),
        ("^(a$", None),
    ],
)
def test_literals(pattern, found):
    """Only a pattern that is nothing but texts, anchored at its start, is told as texts."""
    assert literals(pattern) == found


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
def test_patterns_of_formats(name, good, bad):
    """A format's pattern allows only texts of the format."""
    pattern = re.compile(PATTERNS[name])
    assert [text for text in good if not pattern.search(text)] == []
    assert [text for text in bad if pattern.search(text)] == []
    if name == "regex":
        for text in good:
            re.compile(text)


def test_formats_without_a_pattern():
    """A format that JSON Schema does not define says nothing, which is told; what the library holds has no pattern."""
    assert write_format("path")[0] is None
    assert "'path'" in (write_format("path")[1] or "")
    assert write_format("json-pointer") == (PATTERNS["json-pointer"], None)
    assert not SUPPORTED_FORMATS & PATTERNS.keys()


@given(st.text(st.sampled_from("ab09-^$[](){}|?*+.,:\\dbzA"), max_size=9))
def test_regular_expressions(text):
    """What passes for a regular expression is one."""
    if re.fullmatch(PATTERNS["regex"], text):
        re.compile(text)


@pytest.mark.parametrize(
    "text",
    [r"^[a-zA-Z0-9_]{3,16}$", r"^(https?|ftp)://[^/]+(/.*)?$", r"^\d+\.\d+(-(alpha|beta))?$", "a|^b", r"\bx", ""],
)
def test_usual_regular_expressions(text):
    """Classes, counts, alternatives, and groups in groups."""
    assert re.fullmatch(PATTERNS["regex"], text)


@pytest.mark.parametrize("text", ["a**", "[z-a]", "(a", "a{5,2}", "[]", "*a", "\\", r"\b*", "(?<=a)b"])
def test_what_passes_for_no_regular_expression(text):
    """What is none, or not simple enough."""
    assert not re.fullmatch(PATTERNS["regex"], text)
