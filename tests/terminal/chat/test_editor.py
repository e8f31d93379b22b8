"""A text changed in the user's editor."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.core.errors import UsageError
from lmtool.terminal.chat.editor import edited_text, editor_command


def test_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """$VISUAL goes before $EDITOR, both may have arguments; without any an installed one is taken, or that is said."""
    monkeypatch.setenv("EDITOR", "code --wait")
    monkeypatch.delenv("VISUAL", raising=False)
    assert editor_command() == ["code", "--wait"]
    monkeypatch.setenv("VISUAL", "vi")
    assert editor_command() == ["vi"]
    monkeypatch.setenv("VISUAL", "vi '")
    with pytest.raises(UsageError, match="cannot be read"):
        editor_command()
    monkeypatch.delenv("VISUAL")
    monkeypatch.delenv("EDITOR")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no editor is known"):
        editor_command()
    (tmp_path / "vi").write_text("#!/bin/sh\n")
    (tmp_path / "vi").chmod(0o755)
    assert editor_command() == ["vi"]


def test_editing() -> None:
    """The editor gets the text in a file, and what it leaves there counts; an editor that fails leaves nothing."""
    shell = ["sh", "-c"]
    assert edited_text([*shell, 'printf "two\\n\\n" >> "$0"'], "one") == "one\ntwo"
    assert edited_text([*shell, ": > $0"], "one") == ""
    assert edited_text([*shell, "rm $0"], "one") is None
    assert edited_text(["false"], "one") is None
    with pytest.raises(UsageError, match="cannot run the editor no-such-program"):
        edited_text(["no-such-program"], "one")
