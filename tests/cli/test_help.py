"""The tree of commands, and the help of each."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lmtool.cli.app import build, build_whole, option_names
from lmtool.cli.commands import TREE, Command, Group, find

runner = CliRunner()
WHOLE = build_whole()
PATHS = sorted(path for path in option_names(WHOLE) if not getattr(find(path[0]), "hidden", False))
INTERNALS = re.compile(
    r"<(?:int|float|bool|str|path|list)\b|<\w+(?:\|\w+)+>|\brange\b|x[<>]=|=x|\[required\]|\{[A-Z\[]|: \("
)
"""What typer writes of types, ranges, and of arguments."""
LOCAL = {"trace show", "trace cut", "docs", "tokenize", "config show", "bench engine", "evergreen proto", "trace diff"}
"""Some commands that talk to no server."""


def help_of(*path: str) -> str:
    """What `--help` prints."""
    result = runner.invoke(build(), [*path, "--help"])
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_help_of_a_command(path: tuple[str, ...]) -> None:
    """It has an example, nothing that only programmers know, no line that is too long, and no option without effect."""
    text = help_of(*path)
    assert "\nExample" in text
    assert not INTERNALS.findall(text)
    assert max(map(len, text.splitlines())) <= 80
    asks = "--endpoint" in text
    assert not (asks and " ".join(path) in LOCAL)


@pytest.mark.parametrize("group", [entry for entry in TREE if isinstance(entry, Group)], ids=lambda group: group.name)
def test_help_of_a_group(group: Group) -> None:
    """It lists its commands with their summaries, and has examples; without a command it is shown as well."""
    text = help_of(group.name)
    assert "\nExample" in text
    assert all(re.search(rf"^  {one.name} +{re.escape(one.summary)}$", text, re.MULTILINE) for one in group.commands)
    alone = runner.invoke(build(), [group.name])
    assert (alone.exit_code, alone.output) == (0, text)


def command_at(path: tuple[str, ...]) -> Any:
    """The click command."""
    node = WHOLE
    for name in path:
        node = node.commands[name]
    return node


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_examples_can_be_typed(path: tuple[str, ...]) -> None:
    """The command understands its examples."""
    for line in command_at(path).examples:
        words = shlex.split(re.split(r" \| (?=lmtool)| > ", line)[-1 if " | lmtool" in line else 0])
        assert words[: len(path) + 1] == ["lmtool", *path]
        rest = [word if word != "--heat" else "--heat=prob" for word in words[len(path) + 1 :]]
        command_at(path).make_context(path[-1], rest, resilient_parsing=False)


@pytest.mark.parametrize("entry", TREE, ids=lambda entry: entry.name)
def test_only_commands_that_talk_to_a_server_know_an_endpoint(entry: Command | Group) -> None:
    """Where `--endpoint` or `--api-key` is an option, the command uses it."""
    import inspect

    for command in entry.commands if isinstance(entry, Group) else (entry,):
        function = command.load()
        source = inspect.getsource(function)
        path = (command.name,) if entry is command else (entry.name, command.name)
        names = {form for param in command_at(path).params for form in param.opts}
        uses_server = re.search(
            r"common\.(address|url|server\(|endpoint)|(?:address|_talk|_endpoint|_served|_manage|_request_info)\(common",
            source,
        )
        uses_key = "common.api_key" in source or uses_server
        assert ("--endpoint" in names) == bool(uses_server), path
        assert ("--api-key" in names) == bool(uses_key), path


def test_errors_of_the_command_line() -> None:
    """They begin with `error:` as all others, and name the help; status 2."""
    for words, part in ((["chat", "--heatt"], "--heatt"), (["serve", "-p", "x"], "--port"), (["chta"], "chat")):
        result = runner.invoke(build(), words)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")
        assert part in result.stderr
        assert "--help" in result.stderr
        assert "Error" not in result.stderr


def test_a_colour_that_is_wrong_is_an_error_too() -> None:
    """An option before the command's name is checked alike."""
    assert runner.invoke(build(), ["--color", "pink", "docs"]).stderr.startswith("error: ")
    assert isinstance(typer.main.get_command(build()), typer.core.TyperGroup)


COMMANDS = [command for entry in TREE for command in ((entry,) if isinstance(entry, Command) else entry.commands)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: f"{c.module}.{c.name}")
def test_summary_fits_a_line(command: Command) -> None:
    """The list of commands is readable at 80 columns: no sentence is cut."""
    assert len(command.summary) <= 64
    assert command.summary.endswith(".")


def test_names_are_unique() -> None:
    """A word means one thing."""
    names = [entry.name for entry in TREE]
    assert len(names) == len(set(names))
    assert all(find(name) for name in names)
    assert find("nothing") is None
