"""The plug itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtool.tui.sources.connect import ConnectSource
from lmtool.tui.sources.demo import DemoSource
from lmtool.tui.sources.file import FileSource
from lmtool.tui.sources.proxy import ProxySource
from lmtool.tui.sources.source import Recorded, Source


@pytest.mark.parametrize("kind", [ConnectSource, DemoSource, FileSource, ProxySource])
def test_every_source_has_all_of_it(kind: type) -> None:
    """Each source has every member of the plug."""
    members = {name for name in vars(Source) if not name.startswith("_")}
    missing = {name for name in members - {"title"} if not hasattr(kind, name)}
    assert not missing


def test_facts_of_a_recording() -> None:
    """A recording that goes on has not failed."""
    assert Recorded(Path("a"), 1, 2, 3).failed == ""
