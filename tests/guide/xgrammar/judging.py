"""Whether the grammar written for a schema allows a value, without the library."""

from __future__ import annotations

import json

from lmtool.guide.schema.document import Schema
from lmtool.guide.xgrammar.notation import Rules
from lmtool.guide.xgrammar.schema_writer import SchemaWriter
from tests.guide.xgrammar.reading import matches


def written(schema: Schema, *, strict: bool = True) -> tuple[str | None, tuple[str, ...]]:
    """The grammar of a schema (None: no text matches) and its warnings."""
    rules = Rules()
    writer = SchemaWriter(schema, rules, strict=strict, any_whitespace=False)
    root = writer.value(schema)
    return None if root is None else rules.written(root), writer.warnings


def allows(schema: Schema, value: object, *, strict: bool = True) -> bool:
    """Whether a value, as compact JSON, is one of the grammar's texts."""
    grammar, _ = written(schema, strict=strict)
    text = value if isinstance(value, str) and value.startswith("{") else json.dumps(value, separators=(",", ":"))
    return grammar is not None and matches(grammar, text)
