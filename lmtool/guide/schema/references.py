"""Where references lead: every target becomes a definition, and what stands beside a reference is joined with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmtool.guide.schema.document import ASSERTIONS, Document, UnsupportedError, significant
from lmtool.guide.schema_walk import changed

if TYPE_CHECKING:
    from lmtool.guide.schema.document import Schema

_DATA = frozenset({"const", "enum", "default", "examples"})
_DEFINITIONS = ("$defs", "definitions")
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", *_DEFINITIONS})
_IDS = ("$id", "id", "$anchor", "$dynamicAnchor")
_OF_A_DOCUMENT = frozenset({"$schema", "$id", "id", *_DEFINITIONS})
_IN_PLACE = ("allOf", "anyOf", "oneOf")
_MEMBERS = ("items", "additionalProperties", "additionalItems", "prefixItems", "properties", "patternProperties")
_MAX_DEPTH = 32


def as_definitions(schema: Schema) -> Schema:
    """The schema, which means the same, with every target of a reference under `$defs` or `definitions`.

    What stands elsewhere may be rewritten, or not looked at: a condition, a part of a list, the root. The same object
    where there is nothing to change, or where parts have ids of their own.
    """
    if isinstance(schema, bool) or any(map(_has_ids, schema.values())):
        return schema
    moved: dict[str, str] = {}
    _find_targets(schema, moved)
    if not moved:
        return schema
    document, taken = Document(schema), schema.get("$defs")
    named = taken if isinstance(taken, dict) else {}
    for number, pointer in enumerate(moved):
        moved[pointer] = next(name for at in range(len(named) + 1) if (name := f"part{number}-{at}") not in named)
    targets: dict[str, Schema] = {}
    for pointer, name in moved.items():
        try:
            target = document.resolve(pointer)
        except UnsupportedError:  # for others to say, with its place
            return schema
        if target is schema:
            target = {keyword: value for keyword, value in schema.items() if keyword not in _OF_A_DOCUMENT}
        targets[name] = _renamed(target, moved)
    written = _renamed(schema, moved)
    if "#" in moved:
        written = {keyword: value for keyword, value in written.items() if keyword in _OF_A_DOCUMENT}
        written["$ref"] = f"#/$defs/{moved['#']}"
    defined = written.get("$defs")
    return {**written, "$defs": {**(defined if isinstance(defined, dict) else {}), **targets}}


def _has_ids(value: Any) -> bool:  # noqa: ANN401  # any JSON
    if isinstance(value, list):
        return any(map(_has_ids, value))
    if not isinstance(value, dict):
        return False
    return any(isinstance(value.get(name), str) for name in _IDS) or any(map(_has_ids, value.values()))


def _find_targets(value: Any, found: dict[str, str], *, named: bool = False) -> None:  # noqa: ANN401  # any JSON
    """Add the references out of definitions, in order. named: whether the value has schemas by name."""
    if isinstance(value, list):
        for part in value:
            _find_targets(part, found)
    elif isinstance(value, dict):
        reference = None if named else value.get("$ref")
        if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
            path = reference.split("/")[1:]
            if len(path) != 2 or path[0] not in _DEFINITIONS:
                found[reference] = ""
        for keyword, part in value.items():
            if named or keyword not in _DATA:
                _find_targets(part, found, named=not named and keyword in _NAMED)


def _renamed(value: Any, moved: dict[str, str], *, named: bool = False) -> Any:  # noqa: ANN401  # any JSON
    if isinstance(value, list):
        return [_renamed(part, moved) for part in value]
    if not isinstance(value, dict):
        return value
    written = {
        keyword: _renamed(part, moved, named=not named and keyword in _NAMED) if named or keyword not in _DATA else part
        for keyword, part in value.items()
    }
    if not named and isinstance(reference := value.get("$ref"), str) and reference in moved:
        written["$ref"] = f"#/$defs/{moved[reference]}"
    return written


def alone(schema: Schema) -> Schema:
    """The schema without what stands beside references, where its dialect says that this means nothing.

    The library holds it nevertheless. The same object where there is nothing to change.
    """
    return changed(schema, _alone) if Document(schema).ref_stands_alone else schema


def _alone(node: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(node.get("$ref"), str) or significant(node) == {"$ref"}:
        return node
    return {keyword: value for keyword, value in node.items() if keyword == "$ref" or keyword not in ASSERTIONS}


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
        written = {name: value for name, value in self._root.items() if name in _OF_A_DOCUMENT}
        for keyword in _DEFINITIONS:
            if isinstance(defined := self._root.get(keyword), dict):
                written[keyword] = {name: self._member(value) for name, value in defined.items()}
        content = self._member({name: value for name, value in self._root.items() if name not in _OF_A_DOCUMENT})
        own = written.get("$defs")
        written["$defs"] = {**(own if isinstance(own, dict) else {}), **self._defined}
        return {**written, **content}

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
