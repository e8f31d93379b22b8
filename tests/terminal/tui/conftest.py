"""The view that tests of documents look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.terminal.tui.states import view_of

if TYPE_CHECKING:
    from lmtool.terminal.tui.view import View


@pytest.fixture
def view() -> View:
    """The scripted conversation, all of it seen."""
    return view_of()
