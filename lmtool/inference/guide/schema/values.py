"""The values of `const` and `enum` that the keywords beside them allow."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from lmtool.inference.guide.json_validation import UncheckedError, valid_values
from lmtool.inference.guide.schema.document import MAX_NODES, listed_values, significant

_REFERENCE = re.compile(r'"\$ref": "#/\$defs/([A-Za-z0-9_.-]+)"')
_CHARACTERS = 200
"""Characters of a schema that count as one subschema."""

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.inference.guide.schema.document import Document


def allowed_values(node: Mapping[str, object], document: Document) -> list[object] | None:
    """Return the only values that a node allows, in its order; None where it lists none, or where that is not certain.

    It is not beside references that cannot be followed, nor beside `format`, which is no more than an annotation to
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
    beside = _with_definitions({name: node[name] for name in sorted(keywords)}, document)
    if beside is None or '"format"' in beside:
        return None
    document.count(len(listed))
    try:
        return valid_values(beside, listed, MAX_NODES)
    except UncheckedError:
        return None


def _with_definitions(node: dict[str, object], document: Document) -> str | None:
    """A node's text, with the definitions to which it refers; None where it refers to something else."""
    defined = document.root.get("$defs") if isinstance(document.root, dict) else None
    texts, waiting = dict[str, str](), [json.dumps(node)]
    for text in waiting:
        document.count(len(text) // _CHARACTERS)
        names = _REFERENCE.findall(text)
        if len(names) < text.count('$ref"') + text.count('Ref"') or not isinstance(defined, dict | None):
            return None
        for name in set(names) - texts.keys():
            if defined is None or name not in defined:
                return None
            texts[name] = json.dumps(defined[name])
            waiting.append(texts[name])
    parts = ",".join(f"{json.dumps(name)}:{text}" for name, text in texts.items())
    return f'{waiting[0][:-1]},"$defs":{{{parts}}}}}' if parts else waiting[0]


def _listed_by_a_part(node: Mapping[str, object]) -> list[object] | None:
    """The values that a part of an `allOf` lists."""
    parts = node.get("allOf")
    listed = (listed_values(part) for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
    return next((values for values in listed if values is not None), None)
