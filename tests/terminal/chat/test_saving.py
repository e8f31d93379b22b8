"""Conversations as files of the user's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmtool.core.errors import FileError, UsageError
from lmtool.terminal.chat import saving
from lmtool.terminal.chat.saving import read_messages, write_conversation
from lmtool.terminal.chat.turns import Turn

TURNS = [
    Turn(1, 0, "p1 max_tokens=5", "p1\nmore", "a1", "stop", "Be brief."),
    Turn(2, 1, "p2", "p2", "a2", "stop", "Be brief."),
]


def test_messages(tmp_path: Path) -> None:
    """`.json` has the messages as they were sent, and can be read again."""
    path = tmp_path / "a.json"
    write_conversation(path, TURNS)
    assert [message["role"] for message in json.loads(path.read_text())] == ["system", *["user", "assistant"] * 2]
    tree = read_messages(path)
    assert [(turn.text, turn.answer, turn.system) for turn in tree.path()] == [
        ("p1\nmore", "a1", "Be brief."),
        ("p2", "a2", "Be brief."),
    ]
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}))
    assert len(read_messages(path).turns) == 1


def test_markdown(tmp_path: Path) -> None:
    """`.md` is to be read by people: prompts are quoted."""
    write_conversation(tmp_path / "a.md", TURNS)
    assert (tmp_path / "a.md").read_text() == "*System:* Be brief.\n\n> p1\n> more\n\na1\n\n> p2\n\na2\n"


def test_refused(tmp_path: Path) -> None:
    """Nothing is replaced, and a name that tells no form is refused."""
    (tmp_path / "a.md").write_text("mine")
    with pytest.raises(FileError, match="exists already"):
        write_conversation(tmp_path / "a.md", TURNS)
    with pytest.raises(UsageError, match="tells no form"):
        write_conversation(tmp_path / "a.doc", TURNS)
    with pytest.raises(FileError, match="cannot write"):
        write_conversation(tmp_path / "missing/a.md", TURNS)
    assert (tmp_path / "a.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("{}", "no prompt with an answer"),
        ('[{"role": "user"}]', "message 0 has no text"),
        ('[{"role": "assistant", "content": "a"}]', "message 0 is of 'assistant'"),
        ('[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]', "take turns|message 1"),
        ('"' + "x" * 1001, "more than"),
    ],
)
def test_files_that_hold_no_conversation(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no list of messages, or too long, is refused with a sentence."""
    monkeypatch.setattr(saving, "MAX_BYTES", 1000 if "x" in text else 1_000_000)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(FileError, match=message):
        read_messages(tmp_path / "a.json")
    with pytest.raises(FileError, match="cannot read"):
        read_messages(tmp_path / "b.json")
