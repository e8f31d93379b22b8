"""The newer form of structural tags, `{"format": ...}`, as a Lark grammar."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from lmtool.errors import ConstraintError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.guide.schema.document import Schema

_UNSPOKEN = re.compile("[\x7f-\x9f\u2028\u2029]")
"""Characters that Lark's strings cannot have as they are, beside those that JSON's cannot."""


def quoted(text: str) -> str:
    """Return a text as a string of Lark's."""
    return _UNSPOKEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))


def tag_format(node: object) -> str:
    """Return the Lark grammar of a format. Raises `ConstraintError`, which names the part that is wrong.

    Free text (`any_text`, `triggered_tags`) may stand at the end only, `any_text` also as all that a tag holds: what
    follows it would otherwise not be found.
    """
    return _Writer().written(node)


def captured_format(node: object) -> tuple[str, list[Schema | None]]:
    """The grammar of a format that captures its JSON, and the schemas by the numbers of the captures.

    A schema is None where it is not strict. Special tokens are left out: they are no part of a text.
    """
    writer = _Writer(captures=True)
    return writer.written(node), writer.schemas


class _Writer:
    """Writes a rule for each part."""

    def __init__(self, *, captures: bool = False) -> None:
        self.schemas: list[Schema | None] = []
        self._captures = captures
        self._rules: list[str] = []
        self._kinds: Mapping[str, Callable[[dict[str, object], str, bool], str]] = {
            "const_string": lambda node, where, _: quoted(_text(node, "value", where)),
            "json_schema": lambda node, where, _: self._json(node, where),
            "token": lambda node, where, _: '""' if captures else _token(node.get("token"), f"{where}.token"),
            "regex": self._regex,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered,
            "tags_with_separator": self._separated,
        }

    def written(self, node: object) -> str:
        start = self._node(node, "format", last=True)
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules, "TAG_TEXT: /(.|\\n)*/", ""])

    def _node(self, node: object, where: str, *, last: bool) -> str:
        """What stands for a part in a rule. last: whether nothing comes after it."""
        if not isinstance(node, dict) or node.get("type") not in self._kinds:
            raise ConstraintError(f"{where} needs a type: one of {', '.join(self._kinds)}")
        if node.get("excludes"):
            raise ConstraintError(f"{where}.excludes is not supported", "leave it out")
        return self._kinds[str(node["type"])](node, where, last)

    def _rule(self, body: str, attributes: str = "") -> str:
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def _json(self, node: dict[str, object], where: str) -> str:
        """A schema; with `strict` false what of it cannot be held is left out."""
        schema = {} if node.get("json_schema") is True else node.get("json_schema")
        if not isinstance(schema, dict):
            raise ConstraintError(f"{where}.json_schema is {schema!r:.60}; expected a JSON Schema: an object or true")
        lenient = node.get("strict") is False
        options = {"whitespace_flexible": False, "coerce_one_of": lenient, "lenient": lenient}
        body = "%json " + json.dumps({**schema, "x-guidance": options})
        self.schemas.append(None if lenient else schema)
        return self._rule(body, f'[capture="{len(self.schemas) - 1}"]') if self._captures else body

    def _regex(self, node: dict[str, object], where: str, _: bool) -> str:
        return self._rule("/" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", _text(node, "pattern", where)) + "/")

    def _any_text(self, _: dict[str, object], where: str, last: bool) -> str:
        return "TAG_TEXT" if last else _misplaced(where)

    def _sequence(self, node: dict[str, object], where: str, last: bool) -> str:
        parts = _several(node, "elements", where)
        ends = [last and at == len(parts) - 1 for at in range(len(parts))]
        return self._rule(
            " ".join(
                self._node(part, f"{where}.elements[{at}]", last=end)
                for at, (part, end) in enumerate(zip(parts, ends, strict=True))
            )
        )

    def _or(self, node: dict[str, object], where: str, last: bool) -> str:
        parts = _several(node, "elements", where)
        return self._rule(
            " | ".join(self._node(part, f"{where}.elements[{at}]", last=last) for at, part in enumerate(parts))
        )

    def _tag(self, node: dict[str, object], where: str, _: bool) -> str:
        return self._rule(f"{quoted(_text(node, 'begin', where, empty=True))} {self._inside(node, where)}")

    def _inside(self, node: dict[str, object], where: str) -> str:
        """A tag's content and end."""
        end, content = _text(node, "end", where, empty=True), node.get("content")
        if end and isinstance(content, dict) and content.get("type") == "any_text" and not content.get("excludes"):
            return self._rule("/(?s:.*)/", f"[suffix={quoted(end)}]")
        inner = self._node(content, f"{where}.content", last=False)
        return f"{inner} {quoted(end)}"

    def _triggered(self, node: dict[str, object], where: str, last: bool) -> str:
        if not last:
            _misplaced(where)
        triggers = [text for text in _several(node, "triggers", where) if isinstance(text, str) and text]
        tags = []
        for at, given in enumerate(_several(node, "tags", where)):
            place, tag = f"{where}.tags[{at}]", given if isinstance(given, dict) else {}
            begin = _text(tag, "begin", place)
            trigger = next((text for text in triggers if begin.startswith(text)), None)
            if trigger is None:
                raise ConstraintError(f"{place}.begin is {begin!r}; expected a text that begins with one of triggers")
            found = self._rule(f"TAG_TEXT {quoted(trigger)}", "[lazy]")
            tags.append(f"{found} {quoted(begin[len(trigger) :])} {self._inside(tag, place)}")
        one = self._rule(" | ".join(tags))
        if node.get("stop_after_first"):
            return one if node.get("at_least_one") else f"({one} | TAG_TEXT)"
        return f"{one}{'+' if node.get('at_least_one') else '*'} {self._rule('TAG_TEXT')}"

    def _separated(self, node: dict[str, object], where: str, _: bool) -> str:
        tags = _several(node, "tags", where)
        one = self._rule(" | ".join(self._node(tag, f"{where}.tags[{at}]", last=False) for at, tag in enumerate(tags)))
        more = (
            "" if node.get("stop_after_first") else f" ({quoted(_text(node, 'separator', where, empty=True))} {one})*"
        )
        return f"({one}{more})" if node.get("at_least_one") else f"({one}{more})?"


def _misplaced(where: str) -> str:
    raise ConstraintError(f"{where} is free text with something behind it", "put it at the end, or alone into a tag")


def _token(number: object, where: str) -> str:
    """A special token, which no text matches."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConstraintError(f"{where} is {number!r:.60}; expected the id of a token")
    return f"<[{number}]>"


def _text(node: dict[str, object], name: str, where: str, *, empty: bool = False) -> str:
    value = node.get(name)
    if not isinstance(value, str) or not (value or empty):
        raise ConstraintError(f"{where}.{name} is {value!r:.60}; expected a text")
    return value


def _several(node: dict[str, object], name: str, where: str) -> list[object]:
    value = node.get(name)
    if not isinstance(value, list) or not value:
        raise ConstraintError(f"{where}.{name} is {value!r:.60}; expected a list of at least one entry")
    return value
