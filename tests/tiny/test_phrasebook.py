"""The pages of phrases and how they are read."""

from __future__ import annotations

import pytest

from lmtool.tiny.phrasebook import FOLDER, Talk, items, lines, page, rows, table, talks, words

PAGES = sorted(file.stem for file in FOLDER.glob("*.txt"))


EXAMPLE = """# About it.

== one
x y
foo_bar

== two
a b, c: d,
e

== three
? hi
? hey
! hello

? bye
! see you
"""


@pytest.fixture
def example(tmp_path, monkeypatch) -> str:
    (tmp_path / "example.txt").write_text(EXAMPLE)
    monkeypatch.setattr("lmtool.tiny.phrasebook.FOLDER", tmp_path)
    return "example"


def test_sections_are_read_as_what_they_are(example: str) -> None:
    """A section is lines, words, items, a table, rows or talks, as its theme asks."""
    assert lines(example, "one") == ("x y", "foo_bar")
    assert words(example, "one") == ("x", "y", "foo bar")
    assert items(example, "two") == ("a b", "c: d", "e")
    assert table(example, "two")[1] == ("c", "d")
    assert rows(example, "two")[0] == ("a b, c", "d,")
    assert talks(example, "three") == (Talk(("hi", "hey"), ("hello",)), Talk(("bye",), ("see you",)))


@pytest.mark.parametrize("name", PAGES)
def test_pages_have_full_sections(name: str) -> None:
    """Every page opens with a comment, and none of its sections is empty."""
    assert (FOLDER / f"{name}.txt").read_text(encoding="utf-8").startswith("# ")
    assert page(name)
    assert all(page(name).values())
