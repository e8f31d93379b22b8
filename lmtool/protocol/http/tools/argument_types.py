"""JSON of tool arguments that a model writes as plain text, with types from the tool's schema."""

from __future__ import annotations

import ast
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from lmtool.inference.guide.schema.document import Document, UnsupportedError
from lmtool.protocol.http.tools.feed import AnswerEndedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lmtool.protocol.http.tools.definitions import Tool
    from lmtool.protocol.http.tools.feed import Feed

ALL_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_MAX_DEPTH = 8
"""Most nested references and combinations that are followed to find an argument's types."""
_MAX_LITERAL = 65_536
"""Most characters of a Python literal that is accepted in place of JSON."""
_PYTHON_WORDS = {"True": True, "False": False, "None": None}


class ArgumentTypes:
    """JSON types of tool arguments, by the names of tool and argument."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._schemas = {tool.name: tool.schema for tool in tools}

    def of(self, tool: str, argument: str) -> frozenset[str]:
        """JSON types that an argument may have; all types if the schema does not restrict them."""
        schema = self._schemas.get(tool, {})
        properties = schema.get("properties")
        if not isinstance(properties, dict) or argument not in properties:
            return ALL_TYPES
        return types_of(properties[argument], schema)


def types_of(schema: object, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """JSON types that a schema may allow. root: the document that resolves its references."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return ALL_TYPES
    types = ALL_TYPES
    kinds = schema.get("type")
    if isinstance(kinds, str | list):
        named = {kinds} if isinstance(kinds, str) else {kind for kind in kinds if isinstance(kind, str)}
        types &= named | {"integer"} if "number" in named else named
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list):
        types &= {kind for value in listed for kind in _kinds(value)}
    for keyword in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(keyword), list):
            types &= frozenset[str]().union(*(types_of(branch, root, depth + 1) for branch in branches))
    for part in all_of(schema, root):
        types &= types_of(part, root, depth + 1)
    return types


def all_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[object]:
    """Schemas that apply in addition to the keywords of this one: its `allOf`, and its `$ref`."""
    every = schema.get("allOf")
    parts = list(every) if isinstance(every, list) else []
    if isinstance(reference := schema.get("$ref"), str):
        parts.append(resolved(reference, root))
    return parts


def resolved(reference: str, root: Mapping[str, Any]) -> object:
    """The schema that a reference points to; true, which allows everything, if it cannot be resolved."""
    try:
        return Document(dict(root)).resolve(reference)
    except UnsupportedError:
        return True


def _kinds(value: object) -> Iterable[str]:
    """JSON types of a value; a whole number has two."""
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return ("integer", "number")
    names = {str: "string", float: "number", list: "array", dict: "object", type(None): "null"}
    return (names[type(value)],)


def argument_json(text: str, types: frozenset[str]) -> str:
    """JSON of an argument written as text: a value of an allowed type, otherwise the text as a string."""
    if types != {"string"}:
        written = text.strip()
        is_value, value = _value(written)
        has_type = not isinstance(value, str) and not types.isdisjoint(_kinds(value))
        if is_value and (has_type or "string" not in types):
            return written if _is_json(written) else json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)


def literal_json(text: str) -> str:
    """JSON of a value written as JSON or as a Python literal; other texts become a string."""
    written = text.strip()
    if _is_json(written):
        return written
    is_value, value = _value(written)
    return json.dumps(value if is_value else written, ensure_ascii=False)


def _value(text: str) -> tuple[bool, Any]:
    """True if a text is a JSON value or a Python literal, and the value."""
    if text in _PYTHON_WORDS:
        return True, _PYTHON_WORDS[text]
    try:
        return True, json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        pass
    if text[:1] not in {"[", "{", "(", '"', "'"} or len(text) > _MAX_LITERAL:
        return False, None
    try:
        value = json.loads(json.dumps(ast.literal_eval(text), allow_nan=False))  # a tuple is a list in JSON
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False, None
    return True, value


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


class ArgumentsWriter:
    """Writes the arguments of one call to a feed as a JSON object: strings in pieces, other values when complete."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._separator = "{"
        self._string = False
        self._open = False
        self._types = ALL_TYPES
        self._pieces: list[str] = []

    def begin(self, name: str, types: frozenset[str]) -> None:
        """Begin an argument of these JSON types."""
        self._open, self._types, self._string = True, types, types == {"string"}
        quote = '"' if self._string else ""
        self._feed.arguments(f"{self._separator}{json.dumps(name, ensure_ascii=False)}: {quote}")
        self._separator = ", "

    def push(self, text: str) -> None:
        """Add to the text of the argument."""
        if self._string:
            self._feed.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._pieces.append(text)

    def end(self) -> None:
        """Complete the argument."""
        text, self._pieces, self._open = "".join(self._pieces), [], False
        self._feed.arguments('"' if self._string else argument_json(text, self._types))

    def value(self, written: str) -> None:
        """Complete the argument with its JSON."""
        self._pieces, self._open = [], False
        self._feed.arguments(written)

    def close(self) -> None:
        """Complete the object, and the argument that is still open, if any."""
        if self._open:
            self.end()
        self._feed.arguments("{}" if self._separator == "{" else "}")


@contextmanager
def call_arguments(feed: Feed) -> Iterator[ArgumentsWriter]:
    """A writer for the arguments of a call, closed at the end, and also where the answer ends unless it was cut off."""
    writer = ArgumentsWriter(feed)
    try:
        yield writer
    except AnswerEndedError as ending:
        if not ending.cut:
            writer.close()
        raise
    writer.close()
