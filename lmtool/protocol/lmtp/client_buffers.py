"""What a client has put into its buffers, and which of them the server of one connection has."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from lmtool.core.errors import RequestError
from lmtool.core.types import GenerateRequest
from lmtool.protocol.lmtp.buffers import names_of
from lmtool.protocol.lmtp.messages import BufferRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lmtool.core.types import ScoreRequest, TokenOutput

    Request = GenerateRequest | ScoreRequest
    Part = str | tuple[int, ...]

MOST_IDS = 100_000
"""Ids in one BUFFER: a frame is far below what every server reads (TRA-4)."""


class _Content:
    """All that a buffer has been given, in order."""

    def __init__(self) -> None:
        self.parts: list[tuple[str | None, Part]] = []
        """Each with the model whose tokenizer reads it."""
        self.length = 0
        self.ttl: float | None = None


class ClientBuffers:
    """The contents of all buffers of a client, by their names, so that another connection can be given them."""

    def __init__(self) -> None:
        self._contents: dict[str, _Content] = {}

    def __contains__(self, name: str) -> bool:
        """True if there is a buffer of this name."""
        return name in self._contents

    def length(self, name: str) -> int:
        """Ids that a buffer has, 0 of one that is not there."""
        return self._contents[name].length if name in self._contents else 0

    def apply(self, request: BufferRequest, length: int) -> None:
        """Repeat here what a server has done. length: ids that the buffer has there now."""
        if request.drop:
            self._contents.pop(request.name, None)
            return
        content = self._contents.setdefault(request.name, _Content())
        content.parts += [(request.model, part) for part in request.append or ()]
        content.length = length
        content.ttl = request.ttl or content.ttl

    def extend(self, name: str, ids: Sequence[int]) -> None:
        """Append the ids of a stream that has ended."""
        content = self._contents.setdefault(name, _Content())
        content.parts.append((None, tuple(ids)))
        content.length += len(ids)

    def requests(self, name: str) -> Iterator[BufferRequest]:
        """What makes the buffer on a server that does not have it."""
        content = self._contents[name]
        if not content.parts:
            yield BufferRequest("", name, (), ttl=content.ttl)
        ttl = content.ttl
        for model, entries in groupby(content.parts, key=lambda entry: entry[0]):
            for part in _merged([part for _, part in entries]):
                yield BufferRequest("", name, (part,), ttl=ttl, model=model)
                ttl = None


class SentBuffers:
    """Which buffers of a client the server of one connection has."""

    def __init__(self, contents: ClientBuffers) -> None:
        self.contents = contents
        self._names: set[str] = set()
        self._changes: dict[str, BufferRequest] = {}
        """Requests without an answer yet, by their keys."""
        self._restoring: dict[str, str] = {}
        """The same of those that make a buffer again: its name."""
        self._streams: dict[str, tuple[str, list[int]]] = {}
        """Of each stream that appends to a buffer its name and the ids so far, by the stream's key."""
        self._cancelled: dict[str, str] = {}
        """The buffers of those that were cancelled and whose end has not come yet."""

    def missing(self, request: Request) -> Iterator[BufferRequest]:
        """What must be sent before a request that names buffers; they count as sent from now on."""
        for name in names_of(request):
            yield from self.restore(name)

    def restore(self, name: str) -> Iterator[BufferRequest]:
        """What makes a buffer that this server does not have, and the client has; it counts as sent from now on."""
        if name not in self._names and name in self.contents:
            self._names.add(name)
            yield from self.contents.requests(name)

    def drop_unsent(self, name: str) -> bool:
        """Drop a buffer that the client has and this server does not; whether it was one."""
        unsent = name in self.contents and name not in self._names
        if unsent:
            self.contents.apply(BufferRequest("", name, drop=True), 0)
        return unsent

    def begin_change(self, key: str, request: BufferRequest, *, restoring: bool = False) -> None:
        """A BUFFER was sent."""
        self._names.add(request.name)
        if restoring:
            self._restoring[key] = request.name
        else:
            self._changes[key] = request

    def end_change(self, key: str, length: int) -> None:
        """A BUFFER was answered."""
        self._restoring.pop(key, None)
        request = self._changes.pop(key, None)
        if request is not None:
            self.contents.apply(request, length)
            if request.drop:
                self._names.discard(request.name)

    def refuse_change(self, key: str | None) -> str | None:
        """A request was refused; if it is a BUFFER that should have made a buffer again, that one's name."""
        if key is None:
            return None
        self._changes.pop(key, None)
        name = self._restoring.pop(key, None)
        if name is not None:
            self._names.discard(name)
        return name

    def begin_stream(self, key: str, request: Request) -> None:
        """A request was sent."""
        if isinstance(request, GenerateRequest) and request.into is not None:
            self._names.add(request.into)
            self._streams[key] = (request.into, list(request.generated))

    def add_output(self, key: str, output: TokenOutput) -> bool:
        """A stream goes on; whether it is the end of one that was cancelled and might have appended to a buffer."""
        if key not in self._streams:
            return False
        name, ids = self._streams[key]
        if output.token is not None:
            ids.append(output.token)
        if not output.last:
            return False
        del self._streams[key]
        if output.finish_reason in {"stop", "length"}:  # as the server does (BUF-4)
            self.contents.extend(name, ids)
        return self._cancelled.pop(key, None) is not None

    def cancel_stream(self, key: str) -> bool:
        """A stream was cancelled; whether it may yet append to a buffer, because it has ended on the server before."""
        if key in self._streams:
            self._cancelled[key] = self._streams[key][0]
        return key in self._streams

    def may_change(self, name: str | None) -> bool:
        """True if a cancelled stream may yet append to a buffer."""
        return name in self._cancelled.values()


def unsupported() -> RequestError:
    """The error for a server that does not know BUFFER."""
    return RequestError("the server does not know buffers", "send the ids themselves", "lmtool serve knows them")


def _merged(parts: Sequence[Part]) -> Iterator[Part]:
    """The parts with ids beside each other in one, of `MOST_IDS` at most."""
    for is_text, group in groupby(parts, key=lambda part: isinstance(part, str)):
        if is_text:
            yield from group
            continue
        ids = tuple(token for part in group if isinstance(part, tuple) for token in part)
        for start in range(0, len(ids), MOST_IDS):
            yield ids[start : start + MOST_IDS]
