"""`lmtool docs`: pages in a terminal, in a pipe and in a pager."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lmtool.cli.docs import FOLDER, contents, render
from tests.cli.terminal import terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run


def test_every_page_is_in_the_contents() -> None:
    """The contents list each page of the folder once, with a sentence."""
    listed = [page.path for page in contents()]
    assert len(listed) == len(set(listed))
    assert {path.resolve() for path in FOLDER.glob("*.md")} - {FOLDER.resolve() / "README.md"} <= set(listed)
    assert all(page.path.is_file() and page.summary.endswith(".") for page in contents())


class TestInAPipe:
    """What a program gets."""

    def test_list(self, lmtool: Run) -> None:
        """Without a topic: a line for each page."""
        result = lmtool("docs")
        assert result.returncode == 0
        assert [line.split()[0] for line in result.stdout.splitlines()] == [page.topic for page in contents()]

    @pytest.mark.parametrize("topic", ["serving", "Serving", "serving.md"])
    def test_page(self, topic: str, lmtool: Run) -> None:
        """A page is its Markdown, as it is."""
        assert lmtool("docs", topic).stdout.strip() == (FOLDER / "serving.md").read_text(encoding="utf-8").strip()

    def test_unknown_topic(self, lmtool: Run) -> None:
        """An unknown topic is a usage error (2) that names the pages, and the nearest first."""
        result = lmtool("docs", "nonsense")
        assert result.returncode == 2
        assert "unknown page 'nonsense'" in result.stderr
        assert all(page.topic in result.stderr for page in contents())
        assert "lmtool docs serving" in lmtool("docs", "serve").stderr


class TestInATerminal:
    """What a person sees."""

    def test_contents(self) -> None:
        """The contents are laid out, without the signs of Markdown."""
        with terminal("docs", rows=200, NO_COLOR="") as screen:
            assert screen.end() == 0
        assert "structured-output" in screen.text
        assert "](" not in screen.text
        assert "\x1b[1" in screen.drawn.decode()

    @pytest.mark.parametrize("columns", [60, 100, 200])
    @pytest.mark.parametrize("topic", [page.topic for page in contents()])
    def test_width(self, topic: str, columns: int) -> None:
        """No line is wider than the terminal, but for code."""
        text = render(
            (next(p for p in contents() if p.topic == topic)).path.read_text("utf-8"), contents(), columns, color=False
        )
        assert max(map(len, text.splitlines())) <= columns

    def test_links_are_commands(self) -> None:
        """A link to another page tells how to show that; one to itself or outside stays a word."""
        text = render("See [the list](serving.md#memory) and [site](https://example.org).", contents(), 80, color=False)
        assert "the list (lmtool docs serving)" in text
        assert "site" in text

    def test_no_color(self) -> None:
        """`NO_COLOR` is respected."""
        with terminal("docs", "settings", rows=400, NO_COLOR="1") as screen:
            assert screen.end() == 0
        assert "\x1b[3" not in screen.drawn.decode()


class TestPager:
    """A page longer than the terminal goes through the user's pager."""

    @pytest.fixture
    def pager(self, tmp_path: Path) -> str:
        """A pager that says that it was there."""
        script = tmp_path / "pager"
        script.write_text("#!/bin/sh\necho LESS=$LESS\nwc -l\n", encoding="utf-8")
        script.chmod(0o755)
        return str(script)

    def test_long_page(self, pager: str) -> None:
        """`PAGER` alone gets the page, with the options that make `less` show colours and leave one screen alone."""
        with terminal("docs", "serving", rows=20, PAGER=pager) as screen:
            assert screen.end() == 0
        assert "LESS=FRX" in screen.text
        assert "Serving models" not in screen.text  # it is not printed as well

    @pytest.mark.parametrize(
        ("words", "rows", "shell"),
        [((), 2000, None), (("--no-pager",), 20, None), ((), 20, ""), ((), 20, "cat"), ((), 20, "nothing-like-it")],
        ids=["fits", "option", "empty", "cat", "missing"],
    )
    def test_no_pager(self, words: tuple[str, ...], rows: int, shell: str | None, pager: str) -> None:
        """No pager where the page fits, with --no-pager, an empty `PAGER`, `cat`, or one that is not there."""
        with terminal("docs", "serving", *words, rows=rows, PAGER=pager if shell is None else shell) as screen:
            assert screen.end() == 0
        assert "LESS" not in screen.text
        assert "Serving models" in screen.text
