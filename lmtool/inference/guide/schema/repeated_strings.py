"""Arrays whose strings may have to repeat, beside others whose strings must not: a stream keeps all of them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.inference.guide.schema.document import (
    UNIQUE,
    Document,
    Schema,
    UnsupportedError,
    listed_values,
    may_be,
    significant,
    subschemas,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_WITHIN = (
    "items", "prefixItems", "properties", "patternProperties", "additionalProperties", "allOf",
    "anyOf", "oneOf",
)  # fmt: skip


def check_repeats(schema: Schema, document: Document) -> None:
    """Raise `UnsupportedError` where strings are kept unique, and another array may need one twice.

    Remembers in the document where others merely could have had one twice. schema: the document, rewritten.
    """
    if not document.unique_items:
        return
    nodes = list(_nodes(schema, Document(schema)))
    for node in nodes:
        if any(map(_repeats, listed_values(node) or ())) or (UNIQUE not in node and _limited(node, Document(schema))):
            raise UnsupportedError(
                "uniqueItems", "beside arrays in which certain strings may come twice is not supported"
            )
    if any(UNIQUE not in node and node.keys() & {"items", "prefixItems"} for node in nodes):
        document.narrow("where strings of one array must be unique, those of the others are, too")


def _nodes(schema: Schema, document: Document) -> Iterator[dict[str, object]]:
    waiting: list[Schema] = [schema]
    visited: set[int] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, bool) or id(node) in visited:
            continue
        visited.add(id(node))
        yield node
        waiting += subschemas(node, *_WITHIN)
        if "$ref" in node:
            waiting.append(document.resolve(node["$ref"]))


def _repeats(value: object) -> bool:
    """Whether an array in a value has a string twice."""
    if isinstance(value, dict):
        return any(map(_repeats, value.values()))
    if not isinstance(value, list):
        return False
    texts = [text for text in value if isinstance(text, str)]
    return len({*texts}) < len(texts) or any(map(_repeats, value))


def _limited(node: Mapping[str, object], document: Document) -> bool:
    """Whether a node's items may be strings, and only some."""
    items = [document.target(schema) for schema in subschemas(node, "items", "prefixItems")]
    strings = [one for one in items if isinstance(one, dict) and may_be(one, "string")]
    return any(significant(one) - {"type", "minLength"} for one in strings)
