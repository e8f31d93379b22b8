"""The menu is open: actions of installed packages, and of a program."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

import lmtool
from lmtool.core.errors import UsageError
from lmtool.protocol.evergreen.actions import Port, Registry
from lmtool.protocol.evergreen.menu import installed, menu
from tests.scripted_model import ScriptedModel

MODULE = '''
import lmtool

@lmtool.action("SHOUT", ["text"], ["text"])
async def shout(call):
    """Say it loud.

    And more.
    """
    await call.outputs["text"].put((await call.inputs["text"].text()).upper())

plain = 5
'''


@pytest.fixture
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that brings one action, something that is none, and one that is not there."""
    (tmp_path / "brought_actions.py").write_text(MODULE)
    metadata = tmp_path / "brought_actions-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: brought-actions\nVersion: 1.0\n")
    names = ("shout", "plain", "missing")
    lines = [f"{name} = brought_actions:{name}\n" for name in names]
    (metadata / "entry_points.txt").write_text("[lmtool.actions]\n" + "".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("brought_actions", None)


@pytest.mark.usefixtures("_package")
def test_a_package_brings_actions(caplog):
    """By entry points of the group `lmtool.actions`; what cannot be had is named in the log, and harms nothing."""
    with caplog.at_level(logging.WARNING):
        registry = menu(ScriptedModel(), ScriptedModel())
    assert registry.find("SHOUT").description == "Say it loud."
    assert [record.args[0] for record in caplog.records] == ["plain", "missing"]
    assert len(installed()) == 1


def test_ports():
    """An input that is only named must be given; a `Port` says more."""

    @lmtool.action("X", ["a", Port("b", aliases=("c",))], ["d"], description="What.", seconds=None)
    async def handler(call):
        """Do nothing."""

    assert [port.required for port in handler.inputs] == [True, False]
    assert (handler.description, handler.seconds, handler.outputs) == ("What.", None, (Port("d"),))


def test_a_name_is_taken_once():
    """Two actions of one name are a mistake of the operator."""

    @lmtool.action("GENERATE")
    async def mine(call):
        """Do something else."""

    with pytest.raises(UsageError, match="'GENERATE'"):
        menu(ScriptedModel(), ScriptedModel(), [mine])
    assert list(Registry([mine])) == [mine]
