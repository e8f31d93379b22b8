"""The view that these tests look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.tui.documents.watched import close, view_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.tui.view import View


@pytest.fixture
def view() -> Iterator[View]:
    """The scripted conversation, all of it seen."""
    made = view_of()
    yield made
    close(made)
