"""Files by `@path`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lmtool.core.errors import LmtoolError
from lmtool.terminal.chat import attachments
from lmtool.terminal.chat.attachments import attach_files, path_suggestions


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("alpha\n")
    Path("fenced.md").write_text("```\ncode\n```")
    Path("a b.txt").write_text("spaced")
    Path("sub").mkdir()
    Path("sub/inner.py").write_text("x = 1\n")


@pytest.mark.parametrize(
    ("prompt", "text", "notes"),
    [
        ("no file", "no file", []),
        ("What is @notes.txt?", "What is @notes.txt?\n\nnotes.txt:\n```\nalpha\n```", ["with notes.txt: 6 bytes"]),
        ("(@notes.txt) @notes.txt", "(@notes.txt) @notes.txt\n\nnotes.txt:\n```\nalpha\n```", ["with notes.txt: 6 bytes"]),  # noqa: E501
        ('@"a b.txt"', '@"a b.txt"\n\na b.txt:\n```\nspaced\n```', ["with a b.txt: 6 bytes"]),
        ("@fenced.md", "@fenced.md\n\nfenced.md:\n````\n```\ncode\n```\n````", ["with fenced.md: 12 bytes"]),
        ("@@notes.txt", "@notes.txt", []),
        ("ask @nobody", "ask @nobody", ["there is no file nobody: sent as text"]),
        ("a@notes.txt is a mail address", "a@notes.txt is a mail address", []),
    ],
)  # fmt: skip
def test_mentions(prompt: str, text: str, notes: list[str]) -> None:
    """A word `@path` puts its file behind the prompt, once; `@@` and words without a file are text."""
    assert attach_files(prompt) == (text, notes)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("@sub", "is a folder"),
        ("@/dev/zero", "is a device"),
        ("@binary", "which is not UTF-8"),
        ("@zero", "zero byte"),
        ("@large", "too large"),
        ("@pipe", "is a device or a pipe"),
    ],
)
def test_refused(word: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders, devices, binary and large files are refused with a sentence; nothing waits for a pipe."""
    monkeypatch.setattr(attachments, "MAX_BYTES", 1000)
    Path("binary").write_bytes(b"\x89PNG")
    Path("zero").write_bytes(b"a\0b")
    Path("large").write_text("a" * 1001)
    os.mkfifo("pipe")
    with pytest.raises(LmtoolError, match=message) as refused:
        attach_files(f"what is {word}")
    assert refused.value.hints


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits hold for all files of a prompt together."""
    monkeypatch.setattr(attachments, "MAX_BYTES", 10)
    with pytest.raises(LmtoolError, match=r"inner.py \(6 bytes\) is too large"):
        attach_files("@notes.txt @sub/inner.py")
    monkeypatch.setattr(attachments, "MAX_FILES", 1)
    monkeypatch.setattr(attachments, "MAX_BYTES", 100)
    with pytest.raises(LmtoolError, match="more than 1 files"):
        attach_files("@notes.txt @sub/inner.py")


def test_suggestions() -> None:
    """Names that begin so, folders with a slash; names with spaces cannot be completed."""
    Path(".hidden").write_text("")
    assert list(path_suggestions("")) == ["fenced.md", "notes.txt", "sub/"]
    assert list(path_suggestions("no")) == ["notes.txt"]
    assert list(path_suggestions("sub/")) == ["sub/inner.py"]
    assert list(path_suggestions(".h")) == [".hidden"]
    assert list(path_suggestions("nowhere/")) == []
