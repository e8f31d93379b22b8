"""What was typed, across sessions."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lmtool.terminal.chat import prompt_history
from lmtool.terminal.chat.prompt_history import PromptHistory


def history(path: Path) -> PromptHistory:
    """Of a session that must not warn."""
    return PromptHistory(path, pytest.fail)


def test_across_sessions(tmp_path: Path) -> None:
    """A later session has the prompts of earlier ones, the newest first, several lines as one; nobody else may read."""
    path = tmp_path / "prompts.jsonl"
    history(path).store_string("one")
    history(path).store_string("two\nlines, 日本")
    assert list(history(path).load_history_strings()) == ["two\nlines, 日本", "one"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_sessions_at_the_same_time(tmp_path: Path) -> None:
    """No line of one session breaks into a line of another."""
    path = tmp_path / "prompts.jsonl"
    sessions = [history(path) for _ in range(4)]

    def write(session: PromptHistory) -> None:
        for number in range(50):
            session.store_string(f"{number} " + "x" * 9000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, sessions))
    kept = list(history(path).load_history_strings())
    assert len(kept) == 200
    assert sorted({int(text.split()[0]) for text in kept}) == list(range(50))


def test_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older half of a file that is too large goes at the next start; no more than the most prompts are read."""
    monkeypatch.setattr(prompt_history, "MAX_BYTES", 1000)
    monkeypatch.setattr(prompt_history, "MAX_ENTRIES", 5)
    path = tmp_path / "prompts.jsonl"
    for number in range(200):
        history(path).store_string(f"prompt {number}")
    assert path.stat().st_size > 1000
    assert list(history(path).load_history_strings()) == [f"prompt {n}" for n in (199, 198, 197, 196, 195)]
    assert path.stat().st_size <= 500


def test_keys_are_not_kept(tmp_path: Path) -> None:
    """What looks like a key is left out, the rest of a private key too."""
    path = tmp_path / "prompts.jsonl"
    session = history(path)
    session.store_string("is sk-abcdefghijklmnopqrstuvwxyz my key?")
    session.store_string("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----")
    assert list(history(path).load_history_strings()) == ["is *** my key?"]
    assert "MIIE" not in path.read_text()


def test_damage(tmp_path: Path) -> None:
    """Lines that are no prompt are passed over."""
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'"one"\n{"a": 1}\n\xff\xfe\n"two"\n"tor')
    assert list(history(path).load_history_strings()) == ["two", "one"]


def test_place_that_cannot_be_written(tmp_path: Path) -> None:
    """A file that cannot be used is said once, and the session goes on."""
    said: list[str] = []
    session = PromptHistory(tmp_path / "missing/prompts.jsonl", said.append)
    assert list(session.load_history_strings()) == []
    session.store_string("one")
    assert len(said) == 1
    assert "prompts are not kept" in said[0]
