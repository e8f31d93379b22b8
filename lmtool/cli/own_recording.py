"""What `serve --record` and `chat --record` share: a recording of this program's own connections."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lmtool.cli.output import Output
    from lmtool.trace.frame_tap import FrameTap
    from lmtool.trace.header import Header
    from lmtool.trace.recorder import Recorder
    from lmtool.trace.vocabulary import Spell


@contextlib.asynccontextmanager
async def recorded(
    out: Output,
    path: str,
    at: Literal["client", "server"],
    header: Header,
    spell: Spell | None = None,
    leaving: Callable[[Callable[[], None]], object] | None = None,
) -> AsyncIterator[FrameTap]:
    """Record into a file that is not there yet, or into a folder, one file a connection.

    leaving: called with what closes the recording, for a process that ends at once. A full disk ends the recording with
    a warning and nothing else. Raises `FileError` when the file cannot be made.
    """
    from dataclasses import replace

    from lmtool import __version__
    from lmtool.trace.frame_tap import FrameTap
    from lmtool.trace.recorder import Recorder
    from lmtool.trace.recording import Recording
    from lmtool.trace.redaction import Redaction
    from lmtool.trace.writer import TraceWriter

    now = datetime.now(UTC)
    whole = replace(
        header, created=now.strftime("%Y-%m-%dT%H:%M:%SZ"), by=f"lmtool {__version__}", at=at, json="msgspec"
    )
    split = _is_folder(path)

    def start(connection: int) -> Recorder:
        name = f"{now:%Y%m%d-%H%M%S}-{connection:04}.lmtp.jsonl"
        return Recorder(TraceWriter(Path(path) / name if split else path, whole), Redaction((), b""), spell)

    if split:
        _make_folder(Path(path))
    began = time.monotonic()

    def clock() -> float:
        return time.monotonic() - began

    recording = Recording(start, out.warn, clock, split=split)
    if leaving is not None:
        leaving(recording.close_at_once)
    try:
        yield FrameTap(recording.tell, clock)
    finally:
        await recording.close()
        _, events, tokens = recording.counts
        out.note(
            f"recorded into {path}: {events} events · {tokens} tokens"
            if events
            else f"nothing was recorded into {path}"
        )


def _is_folder(path: str) -> bool:
    return path.endswith("/") or Path(path).is_dir()


def _make_folder(path: Path) -> None:
    from lmtool.errors import FileError

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {path}: {error.strerror}") from None
