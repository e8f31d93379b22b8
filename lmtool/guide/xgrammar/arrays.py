"""Arrays of a JSON Schema, in xgrammar's notation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.guide.schema.document import Schema, schemas
from lmtool.guide.xgrammar import notation
from lmtool.guide.xgrammar.scalars import count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.guide.xgrammar.json_rules import JsonRules


def array(node: Mapping[str, object], rules: JsonRules, value: Callable[[Schema], str | None]) -> str | None:
    """Return the expression of a node's arrays; None where there is none. Raises `UnsupportedError`.

    value: gives the expression of a schema within.
    """
    least, most = count(node, "minItems") or 0, count(node, "maxItems")
    fixed, further = _places(node)
    comma = rules.between(",")

    def items(at: int) -> str | None:
        """What may stand from a place on, each with its comma in front; None where nothing may end there."""
        if at < len(fixed):
            here = (
                None if most is not None and at >= most else notation.sequence([comma, value(fixed[at]), after[at + 1]])
            )
            return rules.rules.new(notation.choice([here, notation.NOTHING if least <= at else None]), "items")
        more = None if most is None else max(most - at, 0)
        return notation.repeated(notation.sequence([comma, value(further)]), max(least - at, 0), more)

    after: dict[int, str | None] = {}
    for at in range(max(len(fixed), 1), 0, -1):
        after[at] = items(at)
    start = None if most == 0 else notation.sequence([value(fixed[0] if fixed else further), after[1]])
    return rules.bracketed("[", notation.choice([start, notation.NOTHING if least == 0 else None]), "]")


def _places(node: Mapping[str, object]) -> tuple[list[Schema], Schema]:
    """The schemas of the first items, and of all further ones."""
    items = node.get("items", True)
    if isinstance(items, list):
        [further] = schemas([node.get("additionalItems", True)], "additionalItems")
        return schemas(items, "items"), further
    [further] = schemas([items], "items")
    return schemas(node.get("prefixItems", []), "prefixItems"), further
