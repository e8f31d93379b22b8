"""The list of commands, what Tab completes, when commands have to wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.core.errors import UsageError
from lmtool.core.types import ModelInfo
from lmtool.terminal.chat.commands import COMMANDS, HELP, completions, run_command
from lmtool.terminal.chat.conversation import Conversation
from lmtool.terminal.chat.options import OutputOptions
from lmtool.terminal.chat.prompt import RequestOptions


def conversation() -> Conversation:
    """Begin one."""
    return Conversation(RequestOptions(), OutputOptions(), ModelInfo("m", "m", "x", chat_template=True))


def test_help() -> None:
    """`/help` has one line for each command, narrow enough for 60 columns, and names the keys."""
    assert run_command(conversation(), "/help") == HELP
    lines = HELP.split("\n")
    assert max(map(len, lines)) <= 59
    for command in COMMANDS:
        assert sum(line.startswith(f"{command.name} ") for line in lines) == 1
    for key in ("Ctrl-R", "Alt-Enter", "Ctrl-X Ctrl-E", "Tab", "Ctrl-C", "@FILE", "//TEXT"):
        assert key in HELP


def test_commands_that_wait() -> None:
    """What needs the last answer is refused while one runs, and everything else is not."""
    with pytest.raises(UsageError, match="/retry has to wait: answer 3 is running"):
        run_command(conversation(), "/retry", [3])
    with pytest.raises(UsageError, match="2 answers are running"):
        run_command(conversation(), "/load", [3, 4])
    assert run_command(conversation(), "/stats on", [3]) == "stats on"


def test_near_misses() -> None:
    """A misspelt command names the one that was meant."""
    with pytest.raises(UsageError, match="no command is called /rety") as error:
        run_command(conversation(), "/rety")
    assert "/retry" in error.value.hints[0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/re", ["/retry", "/reset"]),
        ("/sy", ["/system "]),
        ("/model l", ["llama", "lmtool-tiny"]),
        ("/set temp", ["temperature"]),
        ("/heat ent", ["entropy"]),
        ("/stats o", ["on", "off"]),
        ("/retry temp", ["temperature="]),
        ("/continue max_t", ["max_tokens="]),
        ("/retry seed=1 ignore_eos=t", ["ignore_eos=true"]),
        ("Hello ignore_eos=f", ["ignore_eos=false"]),
        ("Hello logprobs_mode=b", ["logprobs_mode=biased"]),
        ("Hello max_tokens=5 temp", ["temperature="]),
        ("see @no", ["@notes.txt"]),
        ("@no", ["@notes.txt"]),
        ("/save no", ["notes.txt"]),
        ("Hello ", []),
        ("Hel", []),
        ("Hello /he", []),
        ("/system temp", []),
        ("@@no", []),
    ],
)
def test_completions(line: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands, models, names and values of parameters, and files are completed, each in its place."""
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("")
    assert list(completions(line, ["llama", "lmtool-tiny", "other"])) == words
