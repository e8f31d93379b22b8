"""`lmtool history`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from tests.conftest import Run

from lmtool.cli.chat import history
from lmtool.cli.common_options import Common
from lmtool.terminal.chat.conversation_store import conversations_folder, prompts_file

HEADER = '{"lmtp_trace": 1, "title": "Tell me a story", "model": {"name": "m"}}\n'


def test_listing_and_clearing(lmtool: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Conversations are listed, as JSON too; `--clear` removes them and the prompts, and nothing else."""
    history(Common(), clear=False, json=False)
    assert "no conversation is kept yet" in capsys.readouterr().err
    conversations_folder().mkdir(parents=True)
    (conversations_folder() / "a.lmtp.jsonl").write_text(HEADER)
    other = conversations_folder() / "mine.txt"
    other.write_text("")
    prompts_file().write_text('"one"\n')
    done = lmtool("history")
    assert done.stdout.startswith("  1  ")
    assert done.stdout.endswith(" 1 KiB  m  Tell me a story\n")
    history(Common(), clear=False, json=True)
    listed = json.loads(capsys.readouterr().out)
    assert (listed["title"], listed["model"], Path(listed["path"]).name) == ("Tell me a story", "m", "a.lmtp.jsonl")
    history(Common(), clear=True, json=False)
    assert capsys.readouterr().out == "removed 1 conversation and all typed prompts\n"
    assert list(conversations_folder().iterdir()) == [other]
    assert not prompts_file().exists()
