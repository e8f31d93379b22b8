"""What xgrammar is given for a constraint."""

from __future__ import annotations

import json

import pytest

from lmtool import constraint
from lmtool.errors import ConstraintError
from lmtool.guide.xgrammar.sources import source
from tests.guide.xgrammar.reading import matches


def test_json() -> None:
    """A schema becomes a grammar of compact JSON; blanks are there where the client asks for them."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    compact, loose = (source(constraint.json_schema(schema, any_whitespace=blanks)) for blanks in (False, True))
    assert compact.kind == "grammar"
    assert matches(compact.text, '{"a":1}')
    assert not matches(compact.text, '{"a": 1}')
    assert matches(loose.text, '{ "a": 1 }')


def test_rewriting_helps() -> None:
    """Keywords that can be written by others are held, also in strict mode; what gets narrower is told."""
    schema = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}
    assert matches(source(constraint.json_schema(schema)).text, "[2,1]")
    assert not matches(source(constraint.json_schema(schema)).text, "[2,2]")
    contains = {"type": "array", "items": {"type": "integer"}, "contains": {"const": 3}}
    assert any("first 4 places" in told for told in source(constraint.json_schema(contains)).warnings)


def test_strict_refuses_by_name() -> None:
    """With the keyword, the other library, and the lenient way."""
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    with pytest.raises(ConstraintError) as refused:
        source(constraint.json_schema(schema))
    assert "'uniqueItems'" in refused.value.message
    assert "--structured-backend llguidance" in refused.value.hints[0]
    assert '"strict": false' in refused.value.hints[1]
    lenient = source(constraint.json_schema(schema, strict=False))
    assert "'uniqueItems'" in lenient.warnings[0]
    assert matches(lenient.text, '["a","a"]')


@pytest.mark.parametrize("schema", [False, {"not": {}}, {"type": "integer", "minimum": 2, "maximum": 1}])
def test_nothing_is_refused(schema: object) -> None:
    """A schema that no text matches is told apart."""
    with pytest.raises(ConstraintError, match="no text matches"):
        source(constraint.json_schema(schema))


def test_regex() -> None:
    """A pattern becomes a grammar, or is refused with the part that is in the way."""
    assert matches(source(constraint.regex(r"\d{3}|é+")).text, "éé")
    with pytest.raises(ConstraintError, match=r"it has \\b") as refused:
        source(constraint.regex(r"a\b"))
    assert "llguidance" in refused.value.hints[0]
    with pytest.raises(ConstraintError, match="no text matches"):
        source(constraint.regex(r"[^\s\S]"))


def test_choice() -> None:
    """Any of the texts, whatever characters they have."""
    text = source(constraint.choice(['a "quoted" one', "", "\\n\n"])).text
    assert all(matches(text, one) for one in ('a "quoted" one', "", "\\n\n"))
    assert not matches(text, "n")


def test_grammar() -> None:
    """GBNF goes as it is; Lark is refused by its name."""
    gbnf = 'root ::= "a" | b\nb ::= "b"'
    assert source(constraint.grammar(gbnf)).text == gbnf
    with pytest.raises(ConstraintError, match="Lark") as refused:
        source(constraint.grammar('start: "a"'))
    assert "takes Lark" in refused.value.hints[1]


def test_structural_tag() -> None:
    """Schemas within are held or refused like others, with their place."""
    tag = {"structures": [{"begin": "<a>", "schema": {"type": "integer"}, "end": "</a>"}], "triggers": ["<a"]}
    made = source(constraint.structural_tag(tag))
    assert made.kind == "structural_tag"
    [written] = json.loads(made.text)["format"]["tags"]
    assert matches(written["content"]["grammar"], "12")
    tag["structures"][0]["schema"] = {"uniqueItems": True, "items": {"type": "string"}}  # type: ignore[index]
    with pytest.raises(ConstraintError, match=r"structures\[0\].schema of the structural tag cannot be held"):
        source(constraint.structural_tag(tag))
