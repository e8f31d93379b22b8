"""Patterns whose classes of characters leave out a quote or a backslash, written so that the library leaves it out.

Of a class with all control characters, or all but the line feed, it takes every escape, also those of a quote and of a
backslash that the class does not have (derivre 0.3, `json_quote`). Without one control character it looks at each.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from lmtool.guide.schema_walk import changed

_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_ESCAPED = ('"', "\\")
_CONTROLS = [chr(number) for number in range(32) if chr(number) != "\n"]


@lru_cache(maxsize=1024)
def exact_pattern(pattern: str) -> str:
    """The pattern, without the character U+0000 where it would let a quote or a backslash through."""
    if "[" not in pattern:
        return pattern
    return "".join(_exact(part) if part.startswith("[") and len(part) > 1 else part for part in _PARTS.findall(pattern))


def _exact(characters: str) -> str:
    """A class as it is written, or without U+0000."""
    try:
        has = re.compile(characters).match
    except re.error:
        return characters
    if all(map(has, _ESCAPED)) or not all(map(has, _CONTROLS)):
        return characters
    return f"[{characters}--[\\x00]]"


def exact_patterns(schema: Any) -> Any:  # noqa: ANN401  # any JSON
    """A document with such patterns; the same object where there is nothing to change."""
    return changed(schema, _exact_node)


def _exact_node(node: dict[str, Any]) -> dict[str, Any]:
    pattern, patterns = node.get("pattern"), node.get("patternProperties")
    if isinstance(pattern, str) and (exact := exact_pattern(pattern)) != pattern:
        node = {**node, "pattern": exact}
    if isinstance(patterns, dict) and any(exact_pattern(name) != name for name in patterns):
        node = {**node, "patternProperties": {exact_pattern(name): part for name, part in patterns.items()}}
    return node
