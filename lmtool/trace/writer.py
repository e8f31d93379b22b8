"""Write trace files: events are buffered in memory and reach the disk on `flush`."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import secrets
import shutil
import threading
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from lmtool.core.errors import FileError
from lmtool.trace.codec import write_event, write_header
from lmtool.trace.events import End, count_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lmtool.trace.codec import Header
    from lmtool.trace.events import Event

_DEVICES = ("/dev", "/dev/fd", "/proc/self/fd")
"""Folders whose links, such as `/dev/stdout`, are never replaced."""


class TraceWriter:
    """Writes one trace. `write` never touches the disk; `flush` and `close` do, and may run in another thread.

    Flushed data survives the death of the process: the file is then cut, but readable.
    """

    def __init__(
        self, path: str | Path, header: Header, *, overwrite: bool | None = None, private: bool = False
    ) -> None:
        """Create the file and write its header. A name that ends in `.gz` is packed.

        overwrite: replace an existing file; False if the user could have passed --force, None if there is no such
        option. private: only its owner may read the file. Raises `FileError` if the file cannot be created, or exists
        and may not be replaced.
        """
        self.path = Path(path)
        self._header = header
        self._numbered = header.times == "numbered"
        self._hash = hashlib.sha256()
        self._pending: list[str] = []
        self._lock = threading.Lock()
        self._raw = _create(self.path, overwrite=overwrite, private=private)
        # No time and no name in the gzip header: the same events give the same bytes.
        packed = self.path.suffix == ".gz"
        self._packed = gzip.GzipFile("", "wb", fileobj=self._raw, mtime=0) if packed else None
        self._time = 0.0
        """Time of the last event; a numbered trace that lost events has higher times than their count."""
        self.events = 0
        """Number of events written."""
        self.tokens = 0
        """Number of tokens in these events, as the end record counts them."""
        self.waiting_bytes = 0
        """Characters that wait for a flush, so that callers can limit them."""
        self._put(write_header(header))
        try:
            self.flush()
        except OSError as error:
            self.abandon()
            raise FileError(f"cannot write {self.path}: {error.strerror}") from None

    def time(self, measured: float) -> float:
        """Time for the next event: as measured, or its number / 1000 if the header says `numbered`."""
        return self.events / 1000 if self._numbered else measured

    def write(self, event: Event) -> None:
        """Write an event; events must be in order of time, without `End`."""
        self._put(write_event(event, self._header.json))
        self.events += 1
        self.tokens += count_tokens(event)
        self._time = event.time

    def _put(self, text: str) -> None:
        line = f"{text}\n"
        with self._lock:
            self._pending.append(line)
            self.waiting_bytes += len(line)

    def flush(self) -> None:
        """Hand everything written to the operating system. Raises `OSError`, for example on a full disk."""
        with self._lock:
            lines, self._pending = self._pending, []
            self.waiting_bytes = 0
        if not lines:
            return
        data = "".join(lines).encode()
        self._hash.update(data)
        self._store(data)

    def _store(self, data: bytes) -> None:
        if self._packed is None:
            self._raw.write(data)
        else:
            self._packed.write(data)
            self._packed.flush(zlib.Z_SYNC_FLUSH)
        self._raw.flush()

    def close(self, measured: float) -> None:
        """Flush, write the end record, close the file. measured: the current time. Raises `OSError`."""
        try:
            self.flush()
            end = End(max(self.time(measured), self._time), self.events, self.tokens, self._hash.hexdigest())
            self._store(f"{write_event(end, self._header.json)}\n".encode())
        finally:
            self.abandon()

    def remove(self) -> None:
        """Close and delete the file: it is empty. Raises `OSError`."""
        self.abandon()
        self.path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Close the file without an end record."""
        with contextlib.suppress(OSError):  # a full disk, which `flush` has reported
            if self._packed is not None:
                self._packed.close()
        with contextlib.suppress(OSError):
            self._raw.close()


@contextlib.contextmanager
def in_place_of(path: Path, *, overwrite: bool | None) -> Iterator[Path]:
    """A temporary file to write; renamed to `path` when the block ends, deleted if it fails.

    A link is replaced, not its target, and an existing file stays until the new one is complete. A pipe or device is
    yielded itself. overwrite: as for `TraceWriter`. Raises `FileError`.
    """
    if path.exists() and not path.is_dir() and (not path.is_file() or str(path.parent) in _DEVICES):
        yield path
        return
    if not overwrite and os.path.lexists(path):
        raise exists(path, force=overwrite is not None)
    new = path.with_name(f".{secrets.token_hex(8)}{path.suffix}")
    try:
        if path.is_dir():
            raise FileError(f"cannot write {path}: it is a folder", "choose another place")
        new.touch(exist_ok=False)
        yield new
        if path.is_file():
            shutil.copymode(path, new)
        new.replace(path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}", "choose another place") from None
    finally:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, overwrite: bool | None = True) -> None:
    """Write a text file, renamed into place when complete. overwrite: as for `TraceWriter`. Raises `FileError`."""
    with in_place_of(path, overwrite=overwrite) as new:
        new.write_text(text, encoding="utf-8", newline="\n")


def write_trace(path: Path, header: Header, events: Iterable[Event], *, overwrite: bool | None = None) -> int:
    """Write a trace of these events, renamed into place when complete; returns their number.

    overwrite: as for `TraceWriter`. Raises `FileError`.
    """
    time = 0.0
    with in_place_of(path, overwrite=overwrite) as new:
        writer = TraceWriter(new, header, overwrite=True)
        try:
            for event in events:
                writer.write(event)
                time = event.time
                if writer.waiting_bytes > 2**20:
                    writer.flush()
            writer.close(time)
        finally:
            writer.abandon()
    return writer.events


def _create(path: Path, *, overwrite: bool | None, private: bool) -> BinaryIO:
    opener = partial(os.open, mode=0o600) if private else None
    try:
        return open(path, "wb" if overwrite else "xb", opener=opener)
    except FileExistsError:
        raise exists(path, force=overwrite is not None) from None
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}", "choose another place") from None


def exists(path: Path, *, force: bool) -> FileError:
    """Error for a file that exists. force: True if the command has an option to replace it."""
    return FileError(f"{path} exists already", f"choose another name{', or --force to replace it' if force else ''}")
