"""The buffer of the Python face, over what keeps it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lmtool.core.buffer import Buffer
from lmtool.core.errors import RequestError
from lmtool.core.types import BufferSlice


class Keeper:
    """Keeps lengths: a text counts as one id."""

    def __init__(self) -> None:
        self.lengths: dict[str, int] = {}
        self.appended: list[object] = []

    async def change_buffer(
        self,
        name: str,
        append: Sequence[str | tuple[int, ...]] | None = None,
        *,
        drop: bool = False,
        ttl: float | None = None,
        model: str | None = None,
    ) -> int:
        self.appended.append((append, model, ttl))
        if drop:
            return self.lengths.pop(name) * 0
        if append == ("bad",):
            raise RequestError("no")
        more = sum(1 if isinstance(part, str) else len(part) for part in append or ())
        self.lengths[name] = self.lengths.get(name, 0) + more
        return self.lengths[name]

    def buffer_length(self, name: str) -> int:
        return self.lengths.get(name, 0)


async def test_append() -> None:
    """A text, or ids and texts with ids beside each other in one; the length is the keeper's."""
    keeper = Keeper()
    buffer = Buffer(keeper, "a", "m")
    assert await buffer.append("one") == 1
    assert await buffer.append([1, 2, "two", 3]) == buffer.length == 5
    assert await buffer.append([]) == 5
    assert keeper.appended == [(("one",), "m", None), (((1, 2), "two", (3,)), "m", None), ((), "m", None)]
    with pytest.raises(RequestError):
        await buffer.append("bad")
    assert (buffer.whole(), buffer.first(2)) == (BufferSlice("a", 5), BufferSlice("a", 2))


async def test_it_is_dropped_at_the_end_of_the_block() -> None:
    """Where there is anything to drop."""
    keeper = Keeper()
    async with Buffer(keeper, "a") as buffer:
        await buffer.append([1])
    assert keeper.lengths == {}
    async with Buffer(keeper, "b"):
        pass
    assert len(keeper.appended) == 2
