"""Conversations in the data folder, and the recorder that puts them there."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from lmtool.core.errors import FileError
from lmtool.terminal.chat import conversation_recorder, conversation_store
from lmtool.terminal.chat.conversation_recorder import ConversationRecorder
from lmtool.terminal.chat.conversation_store import (
    conversation_files,
    conversations_folder,
    kept_conversations,
    prune,
    read_turns,
)
from lmtool.terminal.chat.turns import Turn, TurnTree
from lmtool.trace.events import Frame
from lmtool.trace.events import Turn as TurnEvent
from lmtool.trace.reader import TraceReader

SECRET = "sk-abcdefghijklmnopqrstuvwxyz"
GENERATE = 'GENERATE {"prompt": "%s", "stream_id": 1}'


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def turn(number: int, prompt: str = "p", answer: str = "a") -> Turn:
    """A turn of the model m."""
    return Turn(number, 0, prompt, prompt, answer, "stop", None, "m")


async def recorded(*turns: Turn, frames: tuple[str, ...] = ()) -> Path:
    """Record a conversation; returns its trace."""
    recorder, tree = ConversationRecorder(pytest.fail, {"kind": "websocket"}), TurnTree()
    recorder.frame(">", 'MODEL_INFO {"stream_id": 1}')
    for each in turns:
        recorder.begin(tree, each.prompt, "m")
        for frame in frames:
            recorder.frame(">", frame)
        recorder.turn(tree.add(each))
    await recorder.close()
    assert recorder.path is not None
    return recorder.path


async def test_kept_and_read_again() -> None:
    """A conversation is a whole trace with its frames and turns, for its user alone, and can be gone on with."""
    path = await recorded(turn(1), turn(2), frames=(GENERATE % "p",))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    reader = TraceReader(path)
    frames = [event.wire() for event in reader if isinstance(event, Frame)]
    assert frames == ['MODEL_INFO {"stream_id": 1}', *[GENERATE % "p"] * 2]
    assert reader.ending is not None
    assert reader.ending.state == "complete"
    tree = read_turns(path)
    assert [each.number for each in tree.path()] == [1, 2]
    assert (kept_conversations()[0].title, kept_conversations()[0].model) == ("p", "m")


async def test_branches_are_kept() -> None:
    """Where a conversation went on is kept, and what was gone on with is in the next trace."""
    recorder, tree = ConversationRecorder(pytest.fail, {}), TurnTree()
    recorder.begin(tree, "p", "m")
    recorder.turn(tree.add(turn(1)))
    recorder.turn(tree.add(turn(2)))
    tree.go_to(1)
    recorder.moved(1)
    await recorder.restart()
    assert recorder.path is None
    recorder.begin(tree, "another", "m")
    recorder.turn(tree.add(turn(3)))
    await recorder.close()
    first, second = sorted(conversations_folder().iterdir())
    assert read_turns(first).head == 1
    assert [each.number for each in read_turns(second).path()] == [1, 3]
    assert sorted(read_turns(second).turns) == [1, 2, 3]
    assert [one.title for one in kept_conversations()] == ["p", "p"], "the title is that of its first prompt"


async def test_nothing_without_a_prompt() -> None:
    """A session without a prompt leaves no file."""
    recorder = ConversationRecorder(pytest.fail, {})
    recorder.frame(">", 'MODEL_INFO {"stream_id": 1}')
    await recorder.close()
    assert conversation_files() == []
    with pytest.raises(FileError, match="no trace of this conversation yet"):
        await recorder.copy_to(Path("x.lmtp.jsonl"))


async def test_keys_are_not_kept() -> None:
    """From a prompt with what looks like a key on, texts are kept without it, and no frames; that is said."""
    said: list[str] = []
    recorder, tree = ConversationRecorder(said.append, {}), TurnTree()
    recorder.begin(tree, f"my key: {SECRET}", "m")
    recorder.frame(">", GENERATE % SECRET)
    recorder.frame("<", 'TOKEN [{"text": "abcdefghijkl"}]')
    recorder.turn(tree.add(turn(1, f"my key: {SECRET}", f"it is {SECRET}")))
    await recorder.close()
    assert recorder.path is not None
    text = recorder.path.read_text()
    assert "abcdefghijkl" not in text
    assert read_turns(recorder.path).turns[1].answer == "it is ***"
    assert kept_conversations()[0].title == "my key: ***"
    assert len(said) == 1
    assert "looks like a key" in said[0]


async def test_long_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the most characters of frames only turns are kept; that is said once."""
    monkeypatch.setattr(conversation_recorder, "MAX_FRAME_CHARACTERS", 100)
    said: list[str] = []
    recorder, tree = ConversationRecorder(said.append, {}), TurnTree()
    recorder.begin(tree, "p", "m")
    for _ in range(9):
        recorder.frame("<", "TOKEN " + "x" * 40)
    recorder.turn(tree.add(turn(1)))
    await recorder.close()
    assert recorder.path is not None
    assert sum(isinstance(event, Frame) for event in TraceReader(recorder.path)) == 2
    assert read_turns(recorder.path).head == 1
    assert len(said) == 1


async def test_a_full_disk_or_a_closed_folder(tmp_path: Path) -> None:
    """Where no file can be made the conversation goes on, and that it is not kept is said once."""
    (tmp_path / "lmtool").write_text("in the way")
    said: list[str] = []
    recorder = ConversationRecorder(said.append, {})
    for _ in range(2):
        recorder.begin(TurnTree(), "p", "m")
        recorder.frame(">", GENERATE % "p")
        recorder.turn(turn(1))
    await recorder.close()
    assert len(said) == 1
    assert "not kept" in said[0]


async def test_sessions_at_the_same_time() -> None:
    """Each session has a trace of its own."""
    paths = await asyncio.gather(*(recorded(turn(1, f"session {n}")) for n in range(5)))
    assert len(set(paths)) == 5
    assert {one.title for one in kept_conversations()} == {f"session {n}" for n in range(5)}


async def test_copy(tmp_path: Path) -> None:
    """A conversation that goes on can be copied as far as it is; a file that is there is not replaced."""
    recorder, tree = ConversationRecorder(pytest.fail, {}), TurnTree()
    recorder.begin(tree, "p", "m")
    recorder.turn(tree.add(turn(1)))
    await recorder.copy_to(tmp_path / "copy.lmtp.jsonl")
    copy = TraceReader(tmp_path / "copy.lmtp.jsonl")
    assert [turn.facts["number"] for turn in copy if isinstance(turn, TurnEvent)] == [1]
    assert copy.ending is not None
    assert copy.ending.state == "complete"
    with pytest.raises(FileError, match="exists already"):
        await recorder.copy_to(tmp_path / "copy.lmtp.jsonl")
    await recorder.close()


async def test_the_oldest_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more are kept than the most, by number and by size."""
    paths = [await recorded(turn(1, f"p{n}")) for n in range(4)]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (1e9 - age, 1e9 - age))
    monkeypatch.setattr(conversation_store, "MAX_CONVERSATIONS", 3)
    prune()
    assert [one.title for one in kept_conversations()] == ["p3", "p2", "p1"]
    monkeypatch.setattr(conversation_store, "MAX_BYTES", paths[3].stat().st_size + 1)
    prune()
    assert [one.title for one in kept_conversations()] == ["p3"]


def test_what_is_no_conversation(tmp_path: Path) -> None:
    """Traces of something else, and damaged ones, are refused with a sentence, and not listed."""
    conversations_folder().mkdir(parents=True)
    header = '{"lmtp_trace": 1}\n'
    for text, message in (
        (header, "something else"),
        ("nonsense\n", "not a trace header"),
        (f'{header}[0.0, "turn", 0, {{"number": 3}}]\n', "is missing"),
        (f'{header}[0.0, "turn", 0, {{"number": 1, "prompt": 5}}]\n', "cannot be read"),
    ):
        path = conversations_folder() / "a.lmtp.jsonl"
        path.write_text(text)
        with pytest.raises(FileError, match=message):
            read_turns(path)
    path.write_text("nonsense\n")
    (conversations_folder() / "b.lmtp.jsonl").symlink_to(tmp_path / "elsewhere")
    assert kept_conversations() == []
