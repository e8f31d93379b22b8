"""What `serve --record` and `chat --record` share: a recording of this program's own connections."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lmtool.cli.output import Output
    from lmtool.trace.header import Header
    from lmtool.trace.recorder import Recorder
    from lmtool.trace.server_tap import ServerTap
    from lmtool.trace.vocabulary import Spell


@contextlib.asynccontextmanager
async def recorded(
    out: Output, path: str, at: Literal["client", "server"], header: Header, spell: Spell | None = None
) -> AsyncIterator[ServerTap]:
    """Record into a file that is not there yet, or into a folder, one file a connection.

    Headers that may hold keys are left out. A full disk ends the recording with a warning and nothing else. Raises
    `FileError` when the file cannot be made.
    """
    import secrets
    from dataclasses import replace

    from lmtool import __version__
    from lmtool.trace.recorder import Recorder
    from lmtool.trace.recording import Recording
    from lmtool.trace.redaction import Redaction, What
    from lmtool.trace.server_tap import ServerTap
    from lmtool.trace.writer import TraceWriter

    now, salt, left_out = datetime.now(UTC), secrets.token_bytes(16), tuple[What, ...](("headers",))
    whole = replace(
        header,
        created=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        by=f"lmtool {__version__}",
        at=at,
        json="msgspec",
        redacted=left_out,
    )
    split = _is_folder(path)

    def start(connection: int) -> Recorder:
        name = f"{now:%Y%m%d-%H%M%S}-{connection:04}.lmtp.jsonl"
        return Recorder(TraceWriter(Path(path) / name if split else path, whole), Redaction(left_out, salt), spell)

    if split:
        _make_folder(Path(path))
    began = time.monotonic()

    def clock() -> float:
        return time.monotonic() - began

    recording = Recording(start, out.warn, clock, split=split)
    try:
        yield ServerTap(recording.tell, clock)
    finally:
        await recording.close()
        for key, times in recording.suspects.items():
            out.warn(f"the trace holds what looks like a key: {key} ({times} times); see: lmtool trace redact")
        _, events, tokens = recording.counts
        out.note(f"recorded into {path}: {events} events" + (f" · {tokens} tokens over LMTP" if tokens else ""))


def _is_folder(path: str) -> bool:
    return path.endswith("/") or Path(path).is_dir()


def _make_folder(path: Path) -> None:
    from lmtool.errors import FileError

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {path}: {error.strerror}") from None
