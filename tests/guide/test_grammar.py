"""What each kind of constraint is written as, and how a refusal reads."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmtool import constraint
from lmtool.errors import ConstraintError
from lmtool.guide.grammar import noun, refusal
from tests.guide.following import accepts, compiled, walk

PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "[^a]", r"\d", ".", r"\.", "é", " ", r"\w", '"', r"\\"]),
    lambda inner: st.one_of(
        st.builds("({}|{})".format, inner, inner),
        st.builds("{}{}".format, inner, inner),
        st.builds("(?:{})*".format, inner),
        st.builds("(?:{})?".format, inner),
        st.builds("(?:{}){{1,3}}".format, inner),
    ),
    max_leaves=6,
)
TEXTS = st.text(st.sampled_from('ab1.é "\\\n/'), max_size=5)


@given(PATTERNS, st.lists(TEXTS, max_size=8))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_regex_like_re(templates, pattern, texts):
    """A text is a whole match exactly where Python's `re.fullmatch` finds one."""
    template = templates.make(constraint.regex(pattern))
    for text in texts:
        assert accepts(templates, template, text) == (re.fullmatch(pattern, text) is not None), text


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "pattern", [r"\d{3}-\d{4}", r"(?:[A-Z][a-z]{1,8} ){2,4}[.!]", r"a*b|c+", r"^[ab]{5}\Z", r"x{0,40}"]
)
def test_random_walks_match(compiler, templates, pattern, seed):
    """Whatever is drawn from the masks matches once it has ended."""
    text, ended = walk(compiler, templates, compiled(compiler, constraint.regex(pattern)), seed)
    assert ended
    assert re.fullmatch(pattern, text)


@given(st.lists(st.text(max_size=6), min_size=1, max_size=8), TEXTS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_choice(templates, texts, other):
    """Exactly the texts of a choice are allowed, whatever characters they have; beginnings of one another too."""
    template = templates.make(constraint.choice(texts))
    assert all(accepts(templates, template, text) for text in texts)
    assert accepts(templates, template, other) == (other in texts)


@pytest.mark.parametrize(
    "source",
    ['start: "a" b+\nb: "x" | "y"', 'root ::= "a" b+\nb ::= "x" | "y"', "start: A\nA: /a[xy]+/"],
)
def test_grammars(templates, source):
    """Lark and GBNF are told apart and mean what they say."""
    template = templates.make(constraint.grammar(source))
    assert accepts(templates, template, "axyx")
    assert not accepts(templates, template, "a")
    assert not accepts(templates, template, "axz")


TAG = {
    "structures": [
        {
            "begin": "<f=add>",
            "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
            "end": "</f>",
        },
        {"begin": "<f=stop>", "schema": {"type": "null"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("no tag", True),
        ('Hm. <f=add>{"n":1}</f> and <f=stop>null</f>.', True),
        ('<f=add>{"n":"1"}</f>', False),
        ("<f=other>", False),
        ('<f=add>{"n":1}', False),
    ],
)
def test_structural_tag(templates, text, allowed):
    """Text is free until a trigger; from there the tag, its schema and its end must follow."""
    assert accepts(templates, templates.make(constraint.structural_tag(TAG)), text) == allowed


@pytest.mark.parametrize(
    "tag",
    [
        {},
        {"structures": [], "triggers": ["<"]},
        {"structures": [{"begin": "<f>"}], "triggers": ["<"]},
        {"structures": [{"begin": "f", "schema": {}, "end": ""}], "triggers": ["<"]},
        {"structures": [{"begin": "<f>", "schema": 1, "end": ""}], "triggers": ["<"]},
        {"structures": [{"begin": "<f>", "schema": {}, "end": 1}], "triggers": ["<"]},
    ],
)
def test_bad_structural_tags(templates, tag):
    """A tag that is not one is refused by its part."""
    with pytest.raises(ConstraintError, match=r"structur|triggers"):
        templates.make(constraint.structural_tag(tag))


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?=a)b", "look-ahead"),
        (r"(a)\1", "back-references"),
        (r"a\bb", "supported at the ends only"),
        ("(a", "unclosed group"),
        ("a{2,1}", "repetition"),
    ],
)
def test_refusals_say_why(templates, pattern, why):
    """A regular expression that cannot be held is refused in words, without the library's pictures."""
    with pytest.raises(ConstraintError, match=why) as caught:
        templates.make(constraint.regex(pattern))
    assert "\n" not in caught.value.message


def test_refusal_of_a_schema_hints_at_lenience():
    """Only a strict schema can be had more leniently."""
    strict, lenient = (constraint.json_schema({}, strict=strict) for strict in (True, False))
    assert "false" in refusal(strict, "no").hints[0]
    assert refusal(lenient, "no").hints == ()
    assert noun(strict) == "JSON Schema"
