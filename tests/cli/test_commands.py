"""The tree of commands as data."""

from __future__ import annotations

import pytest

from lmtool.cli.commands import TREE, Command, find

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
