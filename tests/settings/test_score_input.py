"""Texts to score: files, and windows of the model's context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import FileError, UsageError
from lmtool.settings import score_input
from lmtool.settings.score_input import Window, read_text, windows

if TYPE_CHECKING:
    from pathlib import Path


class TestFiles:
    """Files with a text."""

    def test_a_text_is_read_as_it_is(self, tmp_path: Path) -> None:
        """Line feeds at its end belong to it."""
        (tmp_path / "a.txt").write_bytes("Größe\r\n\n".encode())
        assert read_text(str(tmp_path / "a.txt")) == "Größe\r\n\n"

    @pytest.mark.parametrize(
        ("data", "says"),
        [(b"", "is empty"), (b"abc\xff", "byte 3 is 0xff"), (b"ab\0c", "byte 2 is a zero")],
    )
    def test_what_is_no_text(self, data: bytes, says: str, tmp_path: Path) -> None:
        """Empty and binary files are named for what they are."""
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(FileError, match=says):
            read_text(str(tmp_path / "a"))

    def test_what_cannot_be_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A folder, a file that is not there, and one that is too large."""
        with pytest.raises(FileError, match="is a folder"):
            read_text(str(tmp_path))
        with pytest.raises(FileError, match="No such file"):
            read_text(str(tmp_path / "none"))
        monkeypatch.setattr(score_input, "MAX_BYTES", 3)
        (tmp_path / "a").write_text("abcd")
        with pytest.raises(UsageError, match="at most 3"):
            read_text(str(tmp_path / "a"))


class TestWindows:
    """Windows of a context."""

    def test_one_where_all_fits(self) -> None:
        """Prompt and text together."""
        assert windows(2, 6, 8) == [Window(0, 2, 8)]
        assert windows(0, 0, 8) == []

    def test_half_a_context_before_each(self) -> None:
        """The first is a whole context, further ones are half new."""
        assert windows(0, 18, 8) == [Window(0, 0, 8), Window(4, 8, 12), Window(8, 12, 16), Window(12, 16, 18)]
        assert windows(10, 4, 8) == [Window(6, 10, 14)]

    @given(st.integers(0, 50), st.integers(0, 200), st.integers(2, 40))
    def test_every_token_once(self, prompt: int, tokens: int, context: int) -> None:
        """They follow each other, fit into the context, and behind the first have half a context before them."""
        found = windows(prompt, tokens, context)
        assert [i for one in found for i in range(one.first, one.end)] == list(range(prompt, prompt + tokens))
        assert all(0 <= one.start <= one.first < one.end <= one.start + context for one in found)
        assert all(one.first - one.start == context // 2 for one in found[1:])
