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
    listed = listed_values(node)
    if listed is None:
        return None
    keywords = significant(node) - {"const" if "const" in node else "enum"}
    if not keywords:
        return listed
    dialect = document.root.get("$schema") if isinstance(document.root, dict) else None
    beside = json.dumps({name: node[name] for name in sorted(keywords)} | ({"$schema": dialect} if dialect else {}))
    if "format" in keywords or any(f'{end}"' in beside for end in ("$ref", "Ref")):
        return None
    document.count(len(listed))
    try:
        return valid_values(beside, listed, MAX_NODES)
    except UncheckedError:
        return None
