"""`chat --record`: the client's own frames kept as a trace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from lmtool.cli.output import Output

OnFrame: TypeAlias = Callable[[Literal[">", "<"], str], None]


@asynccontextmanager
async def recording_frames(
    out: Output, path: str | None, endpoint: str, also: OnFrame | None = None
) -> AsyncIterator[OnFrame | None]:
    """What to show a client's frames to, so that they are kept in a file; as given where there is no file.

    endpoint: where they go. also: is shown them as well. Raises `FileError` when the file cannot be made.
    """
    if path is None:
        yield also
        return
    from lmtool.cli.own_recording import recorded
    from lmtool.trace.header import Header

    transport = {"kind": "stdio"} if endpoint.startswith("stdio:") else {"kind": "websocket", "path": "/"}
    async with recorded(out, path, "client", Header(transport=transport)) as tap:
        opened = False

        def on_frame(direction: Literal[">", "<"], frame: str) -> None:
            nonlocal opened
            if not opened:  # not before there is a connection
                tap.opened(1, "lmtool")
                opened = True
            tap.frame(1, direction, frame)
            if also is not None:
                also(direction, frame)

        try:
            yield on_frame
        finally:
            if opened:
                tap.ended(1, "client", 1000)
