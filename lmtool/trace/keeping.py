"""What came when a recording was sent again, kept as a trace of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.errors import FileError
from lmtool.trace.events import Vocab
from lmtool.trace.recorder import Recorder
from lmtool.trace.redaction import Redaction
from lmtool.trace.writer import TraceWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from lmtool.trace.events import Event
    from lmtool.trace.header import Header


def keep(path: Path, header: Header, recorded: Iterable[Event], came: Sequence[Event]) -> None:
    """Write what came, under the recording's header and with what it knew of token ids; replaces the file.

    Raises `FileError`.
    """
    words: dict[int, bytes] = {}
    for event in recorded:
        if isinstance(event, Vocab):
            words |= {i: text if isinstance(text, bytes) else text.encode() for i, text in event.tokens.items()}
    writer = TraceWriter(path, replace(header, redacted=()), overwrite=True)
    recorder = Recorder(writer, Redaction((), b""), (lambda i: words.get(i, b"")) if words else None)
    try:
        recorder.take(came)
        writer.close(came[-1].time if came else 0.0)  # a recorder keeps no trace in which nothing happened
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None
    finally:
        recorder.abandon()
