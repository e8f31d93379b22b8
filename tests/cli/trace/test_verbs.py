"""The verbs of `lmtool trace`."""

from __future__ import annotations

from lmtool.cli.commands import Group, find
from tests.cli.trace_runner import trace

ASKING = {"drive", "record"}
"""Verbs that ask a server."""


def test_every_verb_tells_what_it_does() -> None:
    """Each verb has a help text, and takes the options that every command has; those that ask a server, its address."""
    group = find("trace")
    assert isinstance(group, Group)
    for command in group.commands:
        result = trace(command.name, "--help")
        assert result.exit_code == 0
        assert "--quiet" in result.output
        assert ("--endpoint" in result.output) == (command.name in ASKING)


def test_bad_files_exit_7() -> None:
    """A file that is no trace: one sentence, status 7."""
    for name in ("show", "stats"):
        result = trace(name, "/dev/null")
        assert result.exit_code == 7
        assert "/dev/null is empty" in result.output
