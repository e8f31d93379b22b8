"""Structural tags as xgrammar takes them, each schema and pattern in them written as a grammar of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.errors import ConstraintError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.guide.schema.document import Schema

MAX_WORDS = 1000
"""Most tags and other parts of one structural tag."""
_LISTS = {"sequence": "elements", "or": "elements", "triggered_tags": "tags", "tags_with_separator": "tags"}
_HOLDERS = ("tag", "optional", "plus", "star")
_PLAIN: Mapping[str, frozenset[str]] = {
    "const_string": frozenset({"value"}),
    "any_text": frozenset({"excludes"}),
    "sequence": frozenset({"elements"}),
    "or": frozenset({"elements"}),
    "tag": frozenset({"begin", "content", "end"}),
    "triggered_tags": frozenset({"triggers", "tags", "at_least_one", "stop_after_first", "excludes"}),
    "tags_with_separator": frozenset({"tags", "separator", "at_least_one", "stop_after_first"}),
    "optional": frozenset({"content"}),
    "plus": frozenset({"content"}),
    "star": frozenset({"content"}),
}
"""The parts that xgrammar is given as they are, with their members."""


class TagWriter:
    """Writes the parts of one structural tag."""

    def __init__(self, schema: Callable[[Schema, str], str], pattern: Callable[[str, str], str]) -> None:
        """schema, pattern: give the grammar of one that stands at a place; both may raise `ConstraintError`."""
        self._schema = schema
        self._pattern = pattern
        self._parts = 0

    def written(self, tag: Mapping[str, object]) -> dict[str, object]:
        """Return the whole tag. Raises `ConstraintError`, which names the part that is wrong."""
        if "format" in tag:
            return {"type": "structural_tag", "format": self._part(tag["format"], "format")}
        structures, triggers = tag.get("structures"), tag.get("triggers")
        if not isinstance(structures, list) or not structures or not isinstance(triggers, list) or not triggers:
            raise ConstraintError('the structural tag needs "structures" and "triggers", arrays of at least one entry')
        tags = [self._structure(entry, f"structures[{at}]") for at, entry in enumerate(structures)]
        return {
            "type": "structural_tag",
            "format": {"type": "triggered_tags", "triggers": triggers, "tags": tags},
        }

    def _structure(self, entry: object, where: str) -> dict[str, object]:
        if not isinstance(entry, dict) or not isinstance(entry.get("schema"), dict | bool):
            raise ConstraintError(f'{where} needs "begin" and "end", strings, and "schema", a JSON Schema')
        content = {"type": "grammar", "grammar": self._schema(entry["schema"], f"{where}.schema")}
        begin, end = entry.get("begin"), entry.get("end", "")
        return {"type": "tag", "begin": _text(begin, f"{where}.begin"), "content": content, "end": _text(end, where)}

    def _part(self, node: object, where: str) -> dict[str, object]:
        self._parts += 1
        kind = node.get("type") if isinstance(node, dict) else None
        if self._parts > MAX_WORDS:
            raise ConstraintError(f"the structural tag has more than {MAX_WORDS} parts", "send fewer tags")
        if not isinstance(node, dict) or not isinstance(kind, str) or kind not in {*_PLAIN, "json_schema", "regex"}:
            known = ", ".join([*_PLAIN, "json_schema", "regex"])
            raise ConstraintError(f"{where}.type is {kind!r:.60}; expected one of {known}")
        if kind == "json_schema":
            return self._grammar(node, "json_schema", where)
        if kind == "regex":
            return self._grammar(node, "pattern", where)
        return self._plain(kind, node, where)

    def _grammar(self, node: dict[str, object], member: str, where: str) -> dict[str, object]:
        """A part as a grammar: xgrammar's own reading of schemas and patterns leaves things out without a word."""
        if more := node.keys() - {"type", member}:
            raise ConstraintError(f"{where}.{min(more)} is not supported", "leave it out")
        place, value = f"{where}.{member}", node.get(member)
        if member == "pattern":
            return {"type": "grammar", "grammar": self._pattern(_text(value, place), place)}
        if not isinstance(value, dict | bool):
            raise ConstraintError(f"{place} is {value!r:.60}; expected a JSON Schema: an object or a boolean")
        return {"type": "grammar", "grammar": self._schema(value, place)}

    def _plain(self, kind: str, node: dict[str, object], where: str) -> dict[str, object]:
        if more := node.keys() - _PLAIN[kind] - {"type"}:
            raise ConstraintError(f"{where}.{min(more)} is not supported", "leave it out")
        written = dict(node)
        if kind in _LISTS:
            name = _LISTS[kind]
            parts = node.get(name)
            if not isinstance(parts, list) or not parts:
                raise ConstraintError(f"{where}.{name} is {parts!r:.60}; expected a list of at least one entry")
            typed = [{"type": "tag", **part} if name == "tags" and isinstance(part, dict) else part for part in parts]
            written[name] = [self._part(part, f"{where}.{name}[{at}]") for at, part in enumerate(typed)]
        if kind in _HOLDERS:
            written["content"] = self._part(node.get("content"), f"{where}.content")
        if kind == "tag":
            written |= {name: _text(node.get(name), f"{where}.{name}") for name in ("begin", "end")}
        return written


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ConstraintError(f"{where} is {value!r:.60}; expected a text")
    return value
