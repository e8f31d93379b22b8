"""Options of `lmtool chat`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.core.errors import FileError, UsageError
from lmtool.core.types import Constraint, NamedProcessor
from lmtool.terminal.chat.options import constraint_from_options, output_form, processors_from_options


def test_no_constraint() -> None:
    """Without an option there is no constraint."""
    assert constraint_from_options() is None


def test_each_constraint(tmp_path: Path) -> None:
    """A schema and a grammar come from files, a regular expression and choices from the words themselves."""
    schema, grammar = tmp_path / "s.json", tmp_path / "g.lark"
    schema.write_text('{"type": "object"}')
    grammar.write_text('start: "a"')
    assert constraint_from_options(json_schema=str(schema)) == Constraint("json_schema", '{"type":"object"}')
    assert constraint_from_options(regex="a+") == Constraint("regex", "a+")
    assert constraint_from_options(choice=["yes", "no"]) == Constraint("choice", '["yes","no"]')
    assert constraint_from_options(grammar=str(grammar)) == Constraint("grammar", 'start: "a"')


def test_two_constraints() -> None:
    """Two constraints at once are refused by the names of their options."""
    with pytest.raises(UsageError, match="--regex and --choice"):
        constraint_from_options(regex="a", choice=["b"])


def test_bad_constraints(tmp_path: Path) -> None:
    """A file that is no JSON, no UTF-8 or not there, and a count too high, are refused before anything is sent."""
    broken, binary = tmp_path / "broken.json", tmp_path / "binary.lark"
    broken.write_text("{")
    binary.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="no JSON"):
        constraint_from_options(json_schema=str(broken))
    with pytest.raises(FileError, match="not UTF-8"):
        constraint_from_options(grammar=str(binary))
    with pytest.raises(FileError, match="cannot read"):
        constraint_from_options(grammar=str(tmp_path / "none"))
    with pytest.raises(UsageError, match="repeats something"):
        constraint_from_options(regex="a{1000000}")


def test_logits_processors() -> None:
    """A name, or a name with the JSON of its arguments."""
    assert processors_from_options(()) == ()
    assert processors_from_options(["a", 'b={"x": [1]}']) == (NamedProcessor("a"), NamedProcessor("b", {"x": [1]}))
    for wrong in ("a={", "a=5"):
        with pytest.raises(UsageError, match="--logits-processor"):
            processors_from_options([wrong])


def test_one_output_form() -> None:
    """There is one form, text unless another was chosen; two are refused by name."""
    assert output_form() == "text"
    assert output_form(jsonl=True) == "jsonl"
    with pytest.raises(UsageError, match="--table and --raw"):
        output_form(table=True, raw=True)
