"""A buffer of the Python face: token ids that a server keeps for a client, so that prompts send only what is new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lmtool.core.types import BufferSlice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self


class BufferKeeper(Protocol):
    """Whatever keeps buffers by their names, such as `lmtp.client.LmtpClient`."""

    async def change_buffer(
        self,
        name: str,
        append: Sequence[str | tuple[int, ...]] | None = None,
        *,
        drop: bool = False,
        ttl: float | None = None,
        model: str | None = None,
    ) -> int:
        """Append texts and ids, or drop the buffer; its length in ids then. Raises `RequestError`, `ConnectError`."""

    def buffer_length(self, name: str) -> int:
        """Ids that the buffer has, 0 of one that is not there."""


class Buffer:
    """A row of token ids with a name. Get one from `Model.buffer`; `async with` drops it at the end.

    It may stand in a prompt, alone or among ids and texts, and take a stream's ids: `generate([buffer, " and"],
    into=buffer)`. After a reconnection its ids are sent again by themselves when a request needs them.
    """

    def __init__(self, keeper: BufferKeeper, name: str, model: str | None = None) -> None:
        """model: whose tokenizer reads the texts; None: the only one."""
        self._keeper = keeper
        self._model = model
        self.name = name

    @property
    def length(self) -> int:
        """Ids that it has."""
        return self._keeper.buffer_length(self.name)

    async def append(self, more: str | Sequence[int | str]) -> int:
        """Append a text, or ids and texts; return the length then, in ids.

        Each text is tokenized by itself, as a text's start only where the buffer is empty. Raises `RequestError` where
        the server refuses it (`UnknownTokenError` for an id outside the vocabulary) and then nothing is appended,
        `ConnectError`, `ServerError`.
        """
        parts = (more,) if isinstance(more, str) else _parts(more)
        return await self._keeper.change_buffer(self.name, parts, model=self._model)

    def first(self, length: int) -> BufferSlice:
        """Its first ids, for a prompt that branches off there."""
        return BufferSlice(self.name, length)

    def whole(self) -> BufferSlice:
        """All ids that it has now, for a prompt."""
        return BufferSlice(self.name, self.length)

    async def drop(self) -> None:
        """Give its memory back. Raises as `append`."""
        await self._keeper.change_buffer(self.name, drop=True, model=self._model)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._keeper.buffer_length(self.name):
            await self.drop()


def _parts(entries: Sequence[int | str]) -> tuple[str | tuple[int, ...], ...]:
    """Texts and ids, ids beside each other as one part."""
    parts: list[str | tuple[int, ...]] = []
    ids: list[int] = []
    for entry in entries:
        if isinstance(entry, int):
            ids.append(entry)
            continue
        parts += [tuple(ids)] if ids else []
        parts.append(entry)
        ids = []
    return (*parts, tuple(ids)) if ids else tuple(parts)
