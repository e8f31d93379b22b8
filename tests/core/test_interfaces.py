"""Interfaces that are asked for at run time."""

from __future__ import annotations

from lmtool.core.interfaces import LoadedModel


class Remote:
    """A model that need not be closed."""

    def submit(self, request: object, sink: object) -> object: ...

    async def info(self, model: str | None = None) -> object: ...


class Local(Remote):
    """A model that must be."""

    async def drain(self, seconds: float) -> int:
        return 0

    def close(self) -> None: ...


def test_a_model_that_must_be_closed_is_told_from_one_that_need_not() -> None:
    """By its methods alone."""
    assert isinstance(Local(), LoadedModel)
    assert not isinstance(Remote(), LoadedModel)
