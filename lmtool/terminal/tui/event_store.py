"""Storage of the events of a `State`: a trace file, or a temporary file for live events."""

from __future__ import annotations

import tempfile
import time
import weakref
from collections import OrderedDict
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from lmtool.core.errors import FileError
from lmtool.terminal.tui.state import State
from lmtool.trace.codec import LineError, put_back, read_event, write_event
from lmtool.trace.events import Blob
from lmtool.trace.reader import Run, Scan, TraceReader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import BinaryIO

    from lmtool.trace.events import Event, Style
    from lmtool.trace.reader import Ending

_CACHED = 256
"""Events that stay in memory after they were read."""
_LARGE = 2**16
"""Bytes of a line from which on its event is not cached."""
_ADDED = 2**62
"""First offset of events that are in no file."""


class Lines(Protocol):
    """Reads events again."""

    def event(self, frame: int) -> Event:
        """The event of a frame of the state; a large value in it may be a reference. Raises `FileError`."""

    def whole(self, frame: int) -> Event:
        """The event of a frame with large values in place of references."""


class _Reading:
    """Events by the offsets of their lines in an open file."""

    def __init__(self, file: BinaryIO, style: Style, name: str) -> None:
        self._file = file
        self._style: Style = style
        self._name = name
        self._cache: OrderedDict[int, Event] = OrderedDict()

    def at(self, offset: int) -> Event:
        """The event at an offset. Raises `FileError` if the file has changed."""
        if offset in self._cache:
            self._cache.move_to_end(offset)
            return self._cache[offset]
        try:
            self._file.seek(offset)
            line = self._file.readline()
            event = read_event(line, self._style)
        except (OSError, LineError) as error:
            raise FileError(f"{self._name}, byte {offset}: {error}", "the file was changed meanwhile") from None
        if len(line) < _LARGE:
            self._cache[offset] = event
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return event


class EventStore:
    """Folds live events into `state`, and writes them to a temporary file: memory has columns only."""

    def __init__(self, state: State | None = None) -> None:
        """Begin with nothing."""
        self.state = state or State()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the store
        self._closing = weakref.finalize(self, self._file.close)
        self._end = 0
        self._reading = _Reading(self._file, "msgspec", "the inspector's own file")
        self.live_from = 0
        """Frames from here on are live."""

    def feed(self, events: Sequence[Event]) -> None:
        """Add events, in order of time."""
        lines = [f"{write_event(event, 'msgspec')}\n".encode() for event in events]
        ends = list(accumulate(map(len, lines), initial=self._end))
        self.state.feed(events, ends[:-1])
        self._end = ends[-1]
        self._file.seek(0, 2)
        self._file.write(b"".join(lines))

    def event(self, frame: int) -> Event:
        """The event of a frame."""
        return self._reading.at(self.state.frames.offsets[frame])

    def whole(self, frame: int) -> Event:
        """The event of a frame; live events contain no references."""
        return self.event(frame)

    def close(self) -> None:
        """Give the disk's space back; also runs on garbage collection."""
        self._closing()


class TraceFile:
    """Folds a trace file into `state` in slices, so that the screen stays responsive."""

    def __init__(self, path: str | Path) -> None:
        """Read the header. Raises `FileError`."""
        self._reader = TraceReader(path)
        self.header = self._reader.header
        self.path = self._reader.path
        self.state = State(self.header)
        unpacked = self._reader.packed
        self._file: BinaryIO = tempfile.TemporaryFile() if unpacked else self._reader.open()  # noqa: SIM115 - see below
        self._closing = weakref.finalize(self, self._file.close)
        self._scan = Scan(self._reader, copy=self._file if unpacked else None)
        self._blocks = self._scan.blocks()
        self._verifying = self._scan.verify()
        self._reading = _Reading(self._file, self.header.json, str(self.path))
        self._blobs: dict[str, int] = {}
        self._added: list[Event] = []
        self.is_loaded = False
        """True once the whole file is in the state."""
        self.live_from = 0
        """Frames from here on arrived after the file's last one."""

    @property
    def ending(self) -> Ending | None:
        """Ending of the file; None until it is loaded, without the hash of its end record until it is verified."""
        return self._reader.ending

    def load(self, seconds: float) -> bool:
        """Read for about `seconds`; True at the end of the file. Raises `FileError`."""
        limit = time.monotonic() + seconds
        if self._reader.packed:
            self._file.seek(0, 2)  # an event may have been read meanwhile
        for items in self._blocks:
            for item in items:
                if isinstance(item, Run):
                    self.state.add_tokens(item.offsets, item.lines)
                    continue
                offset, event = item
                if isinstance(event, Blob):
                    self._blobs[event.sha256] = offset
                self.state.add(event, offset)
            if time.monotonic() > limit:
                return False
        self.is_loaded = True
        self.live_from = len(self.state.frames)
        return True

    def verify(self, seconds: float) -> bool:
        """Compare a loaded file with the hash of its end record, for about `seconds`; True when done.

        Raises `FileError`.
        """
        limit = time.monotonic() + seconds
        return not any(time.monotonic() > limit for _ in self._verifying)

    def feed(self, events: Sequence[Event]) -> None:
        """Add events after the file's last one, such as a server's answers to branches; they stay in memory."""
        first = _ADDED + len(self._added)
        self._added += events
        self.state.feed(events, range(first, first + len(events)))

    def event(self, frame: int) -> Event:
        """The event of a frame. Raises `FileError`."""
        offset = self.state.frames.offsets[frame]
        return self._added[offset - _ADDED] if offset >= _ADDED else self._reading.at(offset)

    def whole(self, frame: int) -> Event:
        """The event of a frame with the values of blobs in place of references. Raises `FileError`."""
        return put_back(self.event(frame), self._blob)

    def _blob(self, sha256: str) -> object:
        if sha256 not in self._blobs:
            raise FileError(f"{self.path} refers to the blob {sha256[:12]}, which no line above gives")
        blob = self._reading.at(self._blobs[sha256])
        assert isinstance(blob, Blob)
        return blob.value

    def close(self) -> None:
        """Close the file; also runs on garbage collection."""
        self._closing()


class NoLines:
    """Reader for states without stored events."""

    def event(self, frame: int) -> Event:
        """Raise `FileError`."""
        raise FileError(f"frame {frame} is not stored")

    def whole(self, frame: int) -> Event:
        """Raise `FileError`."""
        return self.event(frame)
