"""Long requests, read by helpers."""

from __future__ import annotations

import os

import pytest

from lmtool.errors import ConstraintError, RequestError, ServerError
from lmtool.helpers import reading
from lmtool.helpers.pool import LONG
from lmtool.helpers.reading import beside
from tests.helpers import calls


@pytest.mark.parametrize(("length", "elsewhere"), [(LONG - 1, False), (LONG, True)])
async def test_where_a_text_is_read(length: int, *, elsewhere: bool) -> None:
    """A short one at once, a long one in another process."""
    assert (await beside(calls.pid, "x" * length) != os.getpid()) == elsewhere
    assert await beside(len, "x" * length) == length


async def test_what_cannot_be_read() -> None:
    """The reader's error is the caller's, from another process as well."""
    for length in (4, LONG):
        with pytest.raises(ConstraintError, match="no"):
            await beside(calls.refuse, "x" * length)


async def test_a_reader_that_hangs_or_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends its own request, in words."""
    monkeypatch.setattr(reading, "SECONDS", 0.3)
    with pytest.raises(RequestError, match=r"more than 0\.3 s"):
        await beside(calls.hang, "x" * LONG)
    monkeypatch.setattr(reading, "SECONDS", 20.0)
    with pytest.raises(ServerError, match="SIGABRT"):
        await beside(calls.abort, "x" * LONG)
    assert await beside(len, "x" * LONG) == LONG
