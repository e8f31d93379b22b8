"""Start-up of the program, its help, and options whose value may be left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lmtool import __version__
from lmtool.cli.app import build
from lmtool.cli.main import OPTIONAL_VALUES, complete_values
from lmtool.core.errors import UsageError
from lmtool.terminal.chat.heat import MODES


def run(code: str) -> str:
    """Run Python code in a process of its own and return the last line it prints."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[-1]


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_needs_no_typer(words: list[str]) -> None:
    """The program's help is printed without the command line library, whose import takes longer than all the rest."""
    code = f"""import atexit, sys
atexit.register(lambda: print('typer' in sys.modules))
sys.argv = ['lmtool', *{words!r}]
from lmtool.cli.main import main
main()"""
    assert run(code) == "False"


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_help_is_complete(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the text that typer's own command prints, and lists each option that typer knows."""
    monkeypatch.setenv("COLUMNS", "80")
    command = [sys.executable, "-m", "lmtool", *words]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert CliRunner().invoke(build(), words).output.rstrip() == printed.rstrip()
    assert max(map(len, printed.splitlines())) <= 80
    if words:
        group: Any = typer.main.get_command(build())
        listed = printed.replace(",", "").split()
        assert {form for param in group.params for form in param.opts} <= set(listed)


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_version_needs_no_typer(word: str) -> None:
    """--version is answered before the command line library is imported."""
    code = f"""import sys; sys.argv = ['lmtool', {word!r}]
from lmtool.cli.main import main
main(); print('typer' in sys.modules)"""
    assert run(code) == "False"


def test_garbage_is_collected_while_a_command_runs() -> None:
    """Only imports put it off; what they have brought is left out of it."""
    code = """import gc, io, sys
seen = set()
class Out(io.StringIO):
    def write(self, text):
        seen.add((gc.isenabled(), gc.get_freeze_count() > 10_000))
        return len(text)
sys.argv, screen, sys.stdout = ['lmtool', 'docs', 'serving'], sys.stdout, Out()
from lmtool.cli.main import main
try:
    main()
except SystemExit:
    print(seen, file=screen)"""
    assert run(code) == "{(True, True)}"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_output_in_the_locale_s_encoding(encoding: str) -> None:
    r"""Characters that a terminal's encoding lacks are written as `\uXXXX`: in JSON they stay what they are."""
    command = [sys.executable, "-m", "lmtool", "tokenize", "--tokenizer", "lmtool-tiny", "é", "--json"]
    result = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}, check=True)
    assert json.loads(result.stdout.decode(encoding))["tokens"][0]["text"] == "é"


def test_a_word_in_another_script_is_no_value() -> None:
    """`--heat 日本` is a prompt with probabilities, as none of the values of `--heat` looks like it."""
    assert complete_values(["score", "--heat", "日本"]) == ["score", "--heat=prob", "日本"]
    with pytest.raises(UsageError):
        complete_values(["score", "--heat", "entropie"])


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["chat", "Hi", "--heat"], ["chat", "Hi", "--heat=prob"]),
        (["chat", "Hi", "--heat", "--stats"], ["chat", "Hi", "--heat=prob", "--stats"]),
        (["chat", "--heat", "Hello there"], ["chat", "--heat=prob", "Hello there"]),
        (["chat", "Hi", "--heat", "max_tokens=5"], ["chat", "Hi", "--heat=prob", "max_tokens=5"]),
        (["chat", "--heat", "rank", "Hi"], ["chat", "--heat", "rank", "Hi"]),
        (["chat", "--heat=rank", "Hi"], ["chat", "--heat=rank", "Hi"]),
        (["chat", "--heat", "--", "rank"], ["chat", "--heat=prob", "--", "rank"]),
        (["chat", "--", "--heat"], ["chat", "--", "--heat"]),
        ([], []),
    ],
)
def test_value_left_out(words: list[str], completed: list[str]) -> None:
    """An option alone gets its first value; a prompt behind it stays the prompt."""
    assert complete_values(words) == completed


@pytest.mark.parametrize("words", [["chat", "Hi", "--heat", "rainbow"], ["score", "--heat", "rainbow", "a b", "c"]])
def test_a_word_that_is_no_value(words: list[str]) -> None:
    """It is refused, and not taken for a part of the prompt."""
    with pytest.raises(UsageError, match="--heat rainbow: expected one of prob"):
        complete_values(words)


def test_values_are_the_modes() -> None:
    """The possible values of `--heat` are the modes of heat."""
    assert OPTIONAL_VALUES["--heat"] == MODES


runner = CliRunner()


def test_no_arguments_is_help() -> None:
    """`lmtool` alone shows three examples and the commands in groups, and exits 0."""
    result = runner.invoke(build(), [])
    assert result.exit_code == 0
    examples = result.output.partition("Examples:")[2].partition("\n\n")[0].strip().splitlines()
    assert len(examples) == 3
    assert all(f"\n{panel}:\n" in result.output for panel in ("Run", "Ask", "Traces", "Look", "Setup"))
    assert "--version" not in result.output


def test_unknown_command_names_a_near_one() -> None:
    """A typo is a usage error (2) with a suggestion."""
    result = runner.invoke(build(), ["serv"])
    assert result.exit_code == 2
    assert "serve" in result.output


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_version(word: str) -> None:
    """The version is one line."""
    result = subprocess.run([sys.executable, "-m", "lmtool", word], capture_output=True, text=True, check=True)
    assert result.stdout == f"lmtool {__version__}\n"
