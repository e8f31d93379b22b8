"""References, joined with what stands beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmtool.inference.guide.schema.document import Document, UnsupportedError, significant

if TYPE_CHECKING:
    from lmtool.inference.guide.schema.document import Schema

_IN_PLACE = ("allOf", "anyOf", "oneOf")
_MEMBERS = ("items", "additionalProperties", "prefixItems", "properties", "patternProperties")
_MAX_DEPTH = 32


def joined(schema: Schema) -> Schema:
    """The schema, which means the same, with each target in the place of a reference that others must hold beside.

    The library can join a reference with other schemas only once it has read all that this leads to, which never comes
    about where it leads back. Raises `UnsupportedError` where that is in the same place.
    """
    return schema if isinstance(schema, bool) else _Joiner(schema).run()


class _Joiner:
    """Names the nodes in which a reference is joined with others, so that they can refer to one another."""

    def __init__(self, root: dict[str, object]) -> None:
        self._root = root
        self._document = Document(root)
        self._names: dict[int, str] = {}
        self._defined: dict[str, object] = {}

    def run(self) -> Schema:
        defined = self._root.get("$defs")
        named = {name: self._member(value) for name, value in defined.items()} if isinstance(defined, dict) else {}
        content = self._member({name: value for name, value in self._root.items() if name != "$defs"})
        return {"$defs": {**named, **self._defined}, **content}

    def _member(self, node: Any) -> Any:  # noqa: ANN401  # any JSON
        """A node about a value of its own: a reference to one with a name where a reference is joined with others."""
        if not isinstance(node, dict):
            return node
        if not self._joins(node):
            parts = {name: self._member_list(node[name]) for name in _IN_PLACE if name in node}
            return {**self._members(node), **parts}
        if (name := self._names.get(id(node))) is None:
            name = self._names[id(node)] = f"joined{len(self._names)}"
            self._defined[name] = self._in_place(node, 0)
        return {"$ref": f"#/$defs/{name}"}

    def _member_list(self, parts: Any) -> Any:  # noqa: ANN401  # any JSON
        return [self._member(part) for part in parts] if isinstance(parts, list) else parts

    def _members(self, node: dict[str, object]) -> dict[str, object]:
        written = dict(node)
        for keyword in _MEMBERS:
            value = node.get(keyword)
            if isinstance(value, dict) and keyword in {"properties", "patternProperties"}:
                written[keyword] = {name: self._member(part) for name, part in value.items()}
            elif keyword in node:
                written[keyword] = self._member_list(value) if isinstance(value, list) else self._member(value)
        return written

    def _joins(self, node: dict[str, object]) -> bool:
        said = significant(node)
        several = len(said) > 1 or (isinstance(parts := node.get("allOf"), list) and len(parts) > 1)
        return several and self._refers(node)

    def _refers(self, node: Any) -> bool:  # noqa: ANN401  # any JSON
        """Whether a node has references in its own place."""
        if not isinstance(node, dict):
            return False
        lists = (node.get(keyword) for keyword in _IN_PLACE)
        return "$ref" in node or any(self._refers(part) for parts in lists if isinstance(parts, list) for part in parts)

    def _in_place(self, node: Any, depth: int) -> Any:  # noqa: ANN401  # any JSON
        """A node without references in its own place."""
        self._document.count()
        if depth > _MAX_DEPTH:
            raise UnsupportedError("$ref", "leads back to itself in the same place")
        if not isinstance(node, dict):
            return node
        written = self._members(node)
        for keyword in _IN_PLACE:
            if isinstance(parts := node.get(keyword), list):
                written[keyword] = [self._in_place(part, depth + 1) for part in parts]
        if "$ref" in written:
            target = self._in_place(self._document.resolve(written.pop("$ref")), depth + 1)
            if not significant(written):
                return target
            every = written.get("allOf")
            written["allOf"] = [target, *(every if isinstance(every, list) else [])]
        return written
