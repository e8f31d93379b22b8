"""Structural tags (free text with structured parts) as Lark grammars, and the positions of JSON in their text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import ConstraintError
from lmtool.inference.guide.dialects import in_2020_12
from lmtool.inference.guide.patterns import ecma_pattern, exact_patterns
from lmtool.inference.guide.schema.open_names import OpenNames, open_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lmtool.inference.guide.schema.document import Schema

_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029]")
"""Characters that must be escaped in Lark strings, in addition to those of JSON."""


class UnmarkedTextError(Exception):
    """The end of some free text is marked only by special tokens, which the text does not show."""


@dataclass(frozen=True, slots=True)
class JsonPart:
    """One JSON value of a tag."""

    markers: tuple[str, ...]
    """Constant texts of which one precedes it, "" for the start of the answer; empty if there is no constant text."""
    schema: Schema
    strict: bool


def lark_string(text: str) -> str:
    """Return a text as a Lark string."""
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))


def tag_grammar(
    tag: Mapping[str, object], read: Callable[[Schema], Schema] = in_2020_12, *, captures: bool = False
) -> tuple[str, list[JsonPart]]:
    """Return the Lark grammar of a structural tag in either form, and its JSON parts in order.

    captures: capture each JSON part under its index and leave out special tokens, which are not part of a text.
    read: returns the schema to use for a strict schema. Free text (`any_text`, `triggered_tags`) comes last, or what
    follows it could not be found; `any_text` may also be the whole content of a tag or precede a special token.
    Raises `ConstraintError` with the wrong part, and `UnmarkedTextError` for a tag whose JSON cannot be captured.
    """
    writer = _Writer(read, captures=captures)
    return writer.grammar(as_format(tag)), writer.parts


def as_format(tag: Mapping[str, object]) -> object:
    """Format of a structural tag, converted from the older form if needed. Raises `ConstraintError`."""
    if "format" in tag:
        return tag["format"]
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not structures or not isinstance(triggers, list) or not triggers:
        raise ConstraintError('the structural tag needs "structures" and "triggers", arrays of at least one entry')
    tags = [_as_tag(entry, f"structures[{at}]", triggers) for at, entry in enumerate(structures)]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def _as_tag(entry: object, where: str, triggers: list[object]) -> Mapping[str, object]:
    if not isinstance(entry, dict) or not isinstance(entry.get("begin"), str) or "schema" not in entry:
        raise ConstraintError(f'{where} needs "begin" and "end", strings, and "schema", a JSON Schema')
    begin, end, schema = entry["begin"], entry.get("end", ""), entry["schema"]
    if not any(isinstance(text, str) and text and begin.startswith(text) for text in triggers):
        raise ConstraintError(f"{where}.begin is {begin!r}; expected a text that begins with one of triggers")
    if not isinstance(schema, dict | bool) or not isinstance(end, str):
        raise ConstraintError(f'{where} needs "schema", an object or a boolean, and "end", a string')
    allowed = {"not": {}} if schema is False else schema
    return {"begin": begin, "content": {"type": "json_schema", "json_schema": allowed}, "end": end}


def open_names_in(parts: Sequence[JsonPart]) -> tuple[OpenNames, tuple[bytes, ...]]:
    """Open names of these parts together, and all texts after which one of them begins.

    Raises `ConstraintError` if names are open and no constant text marks the start of the JSON.
    """
    names = [open_names(part.schema) for part in parts]
    if any(own.any and not part.markers for own, part in zip(names, parts, strict=True)):
        raise ConstraintError(
            "the structural tag has a JSON Schema with names that it does not list, and no constant text before it",
            "put a const_string before it, or list the names and set additionalProperties to false",
        )
    joined = OpenNames(
        any(own.any for own in names),
        any(own.may_run_out for own in names),
        unique_items=any(own.unique_items for own in names),
    )
    return joined, tuple({marker.encode(): None for part in parts for marker in part.markers})


class _Writer:
    """Writes one rule per part of a format."""

    def __init__(self, read: Callable[[Schema], Schema], *, captures: bool) -> None:
        self.parts: list[JsonPart] = []
        self._read = read
        self._captures = captures
        self._rules: list[str] = []
        self._before: tuple[str, ...] = ("",)
        """Constant texts of which one precedes the next part; empty if there is no constant text."""
        self._kinds: Mapping[str, Callable[[dict[str, object], str, bool], str]] = {
            "const_string": self._const,
            "json_schema": self._json,
            "token": self._token,
            "regex": self._regex,
            "any_text": self._any_text,
            "optional": self._optional,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered,
            "tags_with_separator": self._separated,
        }

    def grammar(self, node: object) -> str:
        start = self._node(node, "format", last=True)
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules, "TAG_TEXT: /(.|\\n)*/", ""])

    def _node(self, node: object, where: str, *, last: bool) -> str:
        """Return the rule body of a part. last: nothing follows it."""
        if not isinstance(node, dict) or node.get("type") not in self._kinds:
            raise ConstraintError(f"{where} needs a type: one of {', '.join(self._kinds)}")
        if node.get("excludes") and node["type"] != "regex":
            raise ConstraintError(f"{where}.excludes is not supported", "leave it out")
        return self._kinds[str(node["type"])](node, where, last)

    def _rule(self, body: str, attributes: str = "") -> str:
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def _alternatives(self, nodes: Sequence[object], where: str, *, last: bool) -> Iterator[str]:
        """Yield the alternatives of one position; afterwards any of their texts may precede the next part."""
        before, ends = self._before, list[tuple[str, ...]]()
        for at, node in enumerate(nodes):
            self._before = before
            yield self._node(node, f"{where}[{at}]", last=last)
            ends.append(self._before)
        self._before = _either(ends)

    def _const(self, node: dict[str, object], where: str, _: bool) -> str:
        text = _text(node, "value", where)
        self._before = (text,)
        return lark_string(text)

    def _json(self, node: dict[str, object], where: str, _: bool) -> str:
        """A JSON Schema; with `strict` false, keywords that cannot be enforced are left out."""
        schema = {} if node.get("json_schema") is True else node.get("json_schema")
        if not isinstance(schema, dict):
            raise ConstraintError(f"{where}.json_schema is {schema!r:.60}; expected a JSON Schema: an object or true")
        lenient = node.get("strict") is False
        options = {"whitespace_flexible": False, "coerce_one_of": lenient, "lenient": lenient}
        held = in_2020_12(schema) if lenient else self._read(schema)
        written = exact_patterns(held) if isinstance(held, dict) else {} if held else {"not": {}}
        body = "%json " + json.dumps({**written, "x-guidance": options})
        self.parts.append(JsonPart(self._before, schema if self._captures else held, not lenient))
        self._before = ()
        return self._rule(body, f'[capture="{len(self.parts) - 1}"]') if self._captures else body

    def _token(self, node: dict[str, object], where: str, _: bool) -> str:
        """A special token, which is not part of the text."""
        number = node.get("token")
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ConstraintError(f"{where}.token is {number!r:.60}; expected the id of a token")
        self._before = ()
        return '""' if self._captures else f"<[{number}]>"

    def _regex(self, node: dict[str, object], where: str, _: bool) -> str:
        """A text that matches `pattern` and all of `also`, contains none of `excludes`, and is followed by `end`.

        Text and end form one terminal: the longest match wins, so a separate text terminal might swallow its end.
        """
        self._before = ()
        patterns = [_text(node, "pattern", where), *_texts(node, "also", where)]
        end = re.escape(_text(node, "end", where, empty=True)) if "end" in node else ""
        behind = "(?s:.+)" if end else "(?s:.*)"
        excluded = [f"(?s:.*)(?:{re.escape(text)}){behind}" for text in _texts(node, "excludes", where)]
        if len(patterns) == 1 and not excluded and not end:
            return self._rule(_slashed(patterns[0]))
        held = [_slashed(f"(?:{pattern}){end}") for pattern in patterns]
        terminal = f"TEXT_{len(self._rules)}"
        self._rules.append(f"{terminal}: {' & '.join([*held, *(f'~{_slashed(pattern)}' for pattern in excluded)])}")
        return terminal

    def _any_text(self, _: dict[str, object], where: str, last: bool) -> str:
        _check_last(where, last=last)
        return "TAG_TEXT"

    def _optional(self, node: dict[str, object], where: str, last: bool) -> str:
        """Its content, or nothing."""
        before = self._before
        written = self._node(node.get("content"), f"{where}.content", last=last)
        self._before = _either([before, self._before])
        return f"({written})?"

    def _sequence(self, node: dict[str, object], where: str, last: bool) -> str:
        parts = _several(node, "elements", where)
        written = []
        for at, part in enumerate(parts):
            marked = _is_marked(parts[at + 1 : at + 3])
            if marked and self._captures and _is_free(part) and not _is_free_tail(parts[at + 1 :]):
                raise UnmarkedTextError(where)
            last_here = (last and at == len(parts) - 1) or marked
            written.append(self._node(part, f"{where}.elements[{at}]", last=last_here))
        return self._rule(" ".join(written))

    def _or(self, node: dict[str, object], where: str, last: bool) -> str:
        parts = _several(node, "elements", where)
        return self._rule(" | ".join(self._alternatives(parts, f"{where}.elements", last=last)))

    def _tag(self, node: dict[str, object], where: str, _: bool) -> str:
        begin = _text(node, "begin", where, empty=True)
        return self._rule(f"{lark_string(begin)} {self._inside(node, where, begin)}")

    def _inside(self, node: dict[str, object], where: str, begin: str) -> str:
        """A tag's content and end."""
        self._before = (begin,) if begin else self._before
        end, content = _text(node, "end", where, empty=True), node.get("content")
        if end and isinstance(content, dict) and content.get("type") == "any_text" and not content.get("excludes"):
            inner = self._rule("/(?s:.*)/", f"[suffix={lark_string(end)}]")
        else:
            inner = f"{self._node(content, f'{where}.content', last=False)} {lark_string(end)}"
        self._before = (end,) if end else self._before
        return inner

    def _triggered(self, node: dict[str, object], where: str, last: bool) -> str:
        _check_last(where, last=last)
        triggers = [text for text in _several(node, "triggers", where) if isinstance(text, str) and text]
        tags = []
        for at, given in enumerate(_several(node, "tags", where)):
            place, tag = f"{where}.tags[{at}]", given if isinstance(given, dict) else {}
            begin = _text(tag, "begin", place)
            trigger = next((text for text in triggers if begin.startswith(text)), None)
            if trigger is None:
                raise ConstraintError(f"{place}.begin is {begin!r}; expected a text that begins with one of triggers")
            prefix = self._rule(f"TAG_TEXT {lark_string(trigger)}", "[lazy]")
            tags.append(f"{prefix} {lark_string(begin[len(trigger) :])} {self._inside(tag, place, begin)}")
        one = self._rule(" | ".join(tags))
        if node.get("stop_after_first"):
            return one if node.get("at_least_one") else f"({one} | TAG_TEXT)"
        return f"{one}{'+' if node.get('at_least_one') else '*'} {self._rule('TAG_TEXT')}"

    def _separated(self, node: dict[str, object], where: str, _: bool) -> str:
        before, separator = self._before, ""
        if not node.get("stop_after_first"):
            separator = _text(node, "separator", where, empty=True)
            self._before = (*before, separator) if separator and before else ()
        one = self._rule(" | ".join(self._alternatives(_several(node, "tags", where), f"{where}.tags", last=False)))
        more = "" if node.get("stop_after_first") else f" ({lark_string(separator)} {one})*"
        if node.get("at_least_one"):
            return f"({one}{more})"
        self._before = _either([before, self._before])
        return f"({one}{more})?"


def _either(ends: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Texts of all alternatives; empty if one alternative has none."""
    return tuple(dict.fromkeys(text for texts in ends for text in texts)) if all(ends) else ()


def _is_marked(behind: Sequence[object]) -> bool:
    """True if the next part begins with a special token. behind: the next parts, up to two."""
    node = behind[0] if behind else None
    if not isinstance(node, dict):
        return False
    match node:
        case {"type": "token"}:
            return True
        case {"type": "sequence", "elements": [*parts]}:
            return _is_marked(parts[:1])
        case {"type": "or", "elements": [*parts]} | {"type": "tags_with_separator", "tags": [*parts]}:
            return bool(parts) and all(_is_marked([part]) for part in parts) and bool(node.get("at_least_one", True))
        case {"type": "optional", "content": content}:
            return len(behind) == 1 and _is_marked([content])
    return False


def _is_free(node: object) -> bool:
    return isinstance(node, dict) and node.get("type") == "any_text"


def _is_free_tail(parts: Sequence[object]) -> bool:
    """True if free text before these parts may be the last text."""
    return len(parts) == 1 and isinstance(parts[0], dict) and parts[0].get("type") == "optional"


def _slashed(pattern: str) -> str:
    """A pattern as a Lark regular expression: between slashes, on one line."""
    pattern = ecma_pattern(pattern).replace("\\\n", "\\n").replace("\n", "\\n")
    return "/" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern) + "/"


def _texts(node: dict[str, object], name: str, where: str) -> list[str]:
    value = node.get(name) or []
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise ConstraintError(f"{where}.{name} is {value!r:.60}; expected a list of texts")
    return value


def _check_last(where: str, *, last: bool) -> None:
    if not last:
        hint = "put it at the end, or make it the only content of a tag"
        raise ConstraintError(f"{where} is free text followed by another part", hint)


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
