"""The tree of commands as a person meets it first."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from lmtool import __version__
from lmtool.cli.app import build

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
