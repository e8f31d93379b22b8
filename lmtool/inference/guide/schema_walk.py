"""Changes every schema of a document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    Change: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose value is no schema, whatever it looks like."""
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
"""Keywords whose value has schemas under names of the client's."""


def changed(schema: Any, change: Change) -> Any:  # noqa: ANN401  # any JSON
    """A document in which each schema is what `change` returns for it, inner ones first.

    Data and names are left alone. The same object where nothing changes.
    """
    if isinstance(schema, list):
        parts = [changed(part, change) for part in schema]
        return schema if all(new is old for new, old in zip(parts, schema, strict=True)) else parts
    if not isinstance(schema, dict):
        return schema
    written = {keyword: _value(keyword, value, change) for keyword, value in schema.items()}
    return change(schema if all(written[keyword] is schema[keyword] for keyword in schema) else written)


def _value(keyword: str, value: Any, change: Change) -> Any:  # noqa: ANN401  # any JSON
    if keyword in DATA:
        return value
    if keyword not in NAMED or not isinstance(value, dict):
        return changed(value, change)
    named = {name: changed(part, change) for name, part in value.items()}
    return value if all(named[name] is value[name] for name in value) else named
