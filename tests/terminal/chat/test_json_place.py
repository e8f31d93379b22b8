"""The line of a file that a refusal is about."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmtool.core.errors import ServerError
from lmtool.terminal.chat.json_place import line_of, pointer_in
from lmtool.terminal.chat.options import constraint_origin, explained_constraint

SCHEMA = """{
  "type": "object",
  "properties": {
    "a/b": {"enum": [1, "}", [
      2]]},
    "age": {"type":
      "intger"}
  }
}
"""


@pytest.mark.parametrize(
    ("pointer", "line"),
    [
        ("", 1),
        ("/type", 2),
        ("/properties", 3),
        ("/properties/a~1b/enum/2/0", 5),
        ("/properties/a~1b/enum/1", 4),
        ("/properties/age/type", 7),
        ("/properties/other", None),
        ("/type/deeper", None),
        ("/properties/a~1b/enum/9", None),
    ],
)
def test_lines(pointer: str, line: int | None) -> None:
    """Of the value that a pointer names."""
    assert line_of(SCHEMA, pointer) == line


def test_every_member_is_found() -> None:
    """Written in any way, each member is where its line says."""
    value = {"k0": {"x": [1, {"y": '\\"}'}]}, "k1": [[], {}, "é"], "k2": None}
    text = json.dumps(value, indent=1)
    assert [line_of(text, p) for p in ("/k0", "/k0/x/1/y", "/k1/2", "/k2")] == [2, 6, 13, 15]


def test_pointers() -> None:
    """The pointer of a sentence is what stands behind #, without its punctuation."""
    assert pointer_in('malformed at #/a~1b/type: "x" stands there') == "/a~1b/type"
    assert pointer_in("at #/a: wrong") == "/a"
    assert pointer_in("nothing") is None


def test_in_the_terms_of_the_command_line(tmp_path: Path) -> None:
    """The file and the line, or the option; the advice to send a member of a request is left out."""
    file = tmp_path / "schema.json"
    file.write_text(SCHEMA)
    origin = constraint_origin(json_schema=str(file))
    hint = 'leave it out, or send "strict": false to have it ignored with a warning'
    placed = explained_constraint(ServerError("the type at #/properties/age/type is none", hint), origin)
    assert placed.message == f"{file}:7: the type at #/properties/age/type is none"
    assert placed.hints == (f"correct it in {file}",)
    assert explained_constraint(ServerError("odd", hint), origin).message == f"--json-schema {file}: odd"
    other = explained_constraint(ServerError("odd", "do that"), constraint_origin(regex="a("))
    assert (other.message, other.hints) == ("--regex: odd", ("do that",))
    assert [constraint_origin(), constraint_origin(choice=["a"]), constraint_origin(grammar="g")] == [
        "",
        "--choice",
        "--grammar g",
    ]
