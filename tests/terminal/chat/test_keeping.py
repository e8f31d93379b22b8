"""What of a conversation is kept on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.core.errors import UsageError
from lmtool.protocol.lmtp.endpoint import parse
from lmtool.settings.terminal import Output
from lmtool.terminal.chat.conversation_recorder import ConversationRecorder
from lmtool.terminal.chat.conversation_store import conversations_folder
from lmtool.terminal.chat.keeping import ConversationOptions, keep_conversation
from lmtool.terminal.chat.turns import Turn, TurnTree

ENDPOINT = parse("ws://name:secret@127.0.0.1:1/")
OUT = Output(color=False, note_color=False, terminal=False)


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


async def test_continue() -> None:
    """`--continue` goes on with the last conversation that has a turn; without one it says so."""
    with pytest.raises(UsageError, match="no conversation is kept yet"):
        async with keep_conversation(ConversationOptions(resume_last=True), OUT, ENDPOINT):
            pass
    async with keep_conversation(ConversationOptions(), OUT, ENDPOINT) as keeping:
        tree = TurnTree()
        keeping.begin(tree, "p", "m")
        keeping.turn(tree.add(Turn(1, 0, "p", "p", "a", "stop")))
    empty = ConversationRecorder(pytest.fail, {})
    empty.begin(TurnTree(), "later, without an answer", "m")
    await empty.close()
    async with keep_conversation(ConversationOptions(resume_last=True), OUT, ENDPOINT) as keeping:
        assert keeping.earlier is not None
        assert keeping.earlier.path()[0].answer == "a"
    assert all("secret" not in path.read_text() for path in conversations_folder().iterdir())


async def test_nothing_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--no-history` leaves nothing, and says so where a trace is asked for; a data folder in the way is a warning."""
    async with keep_conversation(ConversationOptions(keep=False), OUT, ENDPOINT) as keeping:
        keeping.begin(TurnTree(), "p", "m")
        keeping.moved(0)
        assert (keeping.history, keeping.on_frame) == (None, None)
        with pytest.raises(UsageError, match="no trace of this conversation is kept"):
            await keeping.copy_trace(tmp_path / "a.lmtp.jsonl")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "data").write_text("in the way")
    async with keep_conversation(ConversationOptions(), OUT, ENDPOINT) as keeping:
        assert keeping.recorder is None
    assert "nothing is kept of this conversation" in capsys.readouterr().err
