"""The values of `const` and `enum` that the keywords beside them allow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lmtool.guide.json_validation import UncheckedError, valid_values
from lmtool.guide.schema.document import MAX_NODES, listed_values, significant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.guide.schema.document import Document


def allowed_values(node: Mapping[str, object], document: Document) -> list[object] | None:
    """Return the only values that a node allows, in its order; None where it lists none, or where that is not certain.

    It is not beside references, which lead out of the node, nor beside `format`, which is no more than an annotation to
    validators.
    """
    listed, keywords = listed_values(node), significant(node)
    if listed is None:
        listed = _listed_by_a_part(node)
    else:
        keywords -= {"const" if "const" in node else "enum"}
    if listed is None:
        return None
    if not keywords:
        return listed
    dialect = document.root.get("$schema") if isinstance(document.root, dict) else None
    beside = json.dumps({name: node[name] for name in sorted(keywords)} | ({"$schema": dialect} if dialect else {}))
    if '"format"' in beside or any(f'{end}"' in beside for end in ("$ref", "Ref")):
        return None
    document.count(len(listed))
    try:
        return valid_values(beside, listed, MAX_NODES)
    except UncheckedError:
        return None


def _listed_by_a_part(node: Mapping[str, object]) -> list[object] | None:
    """The values that a part of an `allOf` lists."""
    parts = node.get("allOf")
    listed = (listed_values(part) for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
    return next((values for values in listed if values is not None), None)
