"""Objects of a JSON Schema, in xgrammar's notation: named properties in order, then any others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.guide.schema.document import Schema, UnsupportedError, named_schemas, names, schemas
from lmtool.guide.schema.strings import none_of
from lmtool.guide.xgrammar import notation
from lmtool.guide.xgrammar.json_rules import literal
from lmtool.guide.xgrammar.matching import found_in_json
from lmtool.guide.xgrammar.pattern import PatternError
from lmtool.guide.xgrammar.scalars import count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.guide.xgrammar.json_rules import JsonRules

_MAX_EXCLUDED = 500
"""Most characters of names that the names of further properties are told apart from."""


def object_(node: Mapping[str, object], rules: JsonRules, value: Callable[[Schema], str | None]) -> str | None:
    """Return the expression of a node's objects; None where there is none. Raises `UnsupportedError`.

    value: gives the expression of a schema within.
    """
    properties = named_schemas(node.get("properties", {}), "properties")
    required = names(node.get("required", []), "required")
    [open_to] = schemas([node.get("additionalProperties", True)], "additionalProperties")
    properties = {**properties, **{name: open_to for name in required if name not in properties}}
    if count(node, "maxProperties") == 0:
        return rules.bracketed("{", None if required or count(node, "minProperties") else notation.NOTHING, "}")
    further = _further(node, properties, open_to, rules, value)
    if not properties:
        return rules.bracketed("{", _unnamed(node, further, rules), "}")
    _check_counts(node, properties, required, further)
    return rules.bracketed("{", _members(properties, required, further, rules, value), "}")


def _member(key: str | None, held: str | None, rules: JsonRules) -> str | None:
    return notation.sequence([key, rules.between(":"), held])


def _members(
    properties: dict[str, Schema],
    required: list[str],
    further: str | None,
    rules: JsonRules,
    value: Callable[[Schema], str | None],
) -> str | None:
    """The expression of all members: named ones in order, those not required with or without, then further ones."""
    comma = rules.between(",")
    more = notation.repeated(notation.sequence([comma, further]), 0, None)
    alone = notation.choice([notation.sequence([further, more]), notation.NOTHING])
    after, first = more, alone
    for name in reversed(properties):
        member = rules.rules.new(_member(literal(name), value(properties[name]), rules), "member")
        begun = notation.sequence([member, after])
        followed = notation.sequence([comma, member])
        if name in required:
            after, first = notation.sequence([followed, after]), begun
        else:
            after = notation.sequence([notation.repeated(followed, 0, 1), after])
            first = notation.choice([begun, first])
        after, first = (rules.rules.new(part, "members") for part in (after, first))
    return first


def _further(
    node: Mapping[str, object],
    properties: Mapping[str, Schema],
    open_to: Schema,
    rules: JsonRules,
    value: Callable[[Schema], str | None],
) -> str | None:
    """The expression of a member that is not named; None where there is none."""
    patterns = named_schemas(node.get("patternProperties", {}), "patternProperties")
    if patterns:
        if len(patterns) > 1 or properties:
            raise UnsupportedError("patternProperties", "is supported with one pattern and no properties beside")
        [(pattern, held)] = patterns.items()
        return _member(_key(pattern, "patternProperties"), value(held), rules)
    if open_to is False:
        return None
    if not properties:
        return _member(rules.string, value(open_to), rules)
    if sum(map(len, properties)) > _MAX_EXCLUDED:
        return None
    key = rules.rules.new(_key(none_of(properties), "properties"), "name")
    return rules.rules.new(_member(key, value(open_to), rules), "further")


def narrowed(node: Mapping[str, object]) -> str | None:
    """Return in which way fewer objects than a node's are written, if so."""
    properties = node.get("properties")
    if "patternProperties" in node and node.get("additionalProperties", True) is not False:
        return "beside patternProperties, only properties that match it are used"
    if not isinstance(properties, dict) or node.get("additionalProperties", True) is False:
        return None
    if sum(map(len, properties)) > _MAX_EXCLUDED:
        return "of an object with long or many properties, only those that the schema names are used"
    return None


def _key(pattern: str, keyword: str) -> str | None:
    quote = notation.text('"')
    try:
        return notation.sequence([quote, found_in_json(pattern), quote])
    except PatternError as problem:
        raise UnsupportedError(keyword, f"{pattern!r:.60} has {problem}, which is not supported") from None


def _unnamed(node: Mapping[str, object], further: str | None, rules: JsonRules) -> str | None:
    """The expression of all members where none is named; that none comes twice is seen to by `UniqueNames`."""
    least, most = count(node, "minProperties") or 0, count(node, "maxProperties")
    if least > 1:
        raise UnsupportedError("minProperties", "above 1 is supported only where properties are named")
    more = notation.repeated(
        notation.sequence([rules.between(","), further]), 0, None if most is None else max(most - 1, 0)
    )
    some = None if most == 0 else notation.sequence([further, more])
    return notation.choice([some, notation.NOTHING if least == 0 else None])


def _check_counts(
    node: Mapping[str, object], properties: Mapping[str, Schema], required: list[str], further: str | None
) -> None:
    """See that counts say nothing more than the names do."""
    least, most = count(node, "minProperties") or 0, count(node, "maxProperties")
    if least > len(set(required)):
        raise UnsupportedError("minProperties", "above the number of required properties is not supported here")
    if most is not None and (further is not None or most < len(properties)):
        raise UnsupportedError("maxProperties", "below the number of properties is not supported here")
