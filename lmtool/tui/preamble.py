"""What a recording that begins late needs first: all that happened so far to the streams that still run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.lmtp.frames import stream_key, stream_name
from lmtool.trace.events import Frame, Parsed, token_entries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from lmtool.trace.events import Event
    from lmtool.tui.lines import Spool, TraceFile
    from lmtool.tui.state import State
    from lmtool.tui.streams import Stream


def preamble(lines: Spool | TraceFile) -> list[Event]:
    """Requests and answers of live streams that have not ended, in order, without those of others.

    A stream whose request nobody saw is left out, as it would be in a recording from the beginning.
    """
    state = lines.state
    running = [
        stream
        for stream in state.streams
        if stream.ended is None and stream.frame >= lines.live_from and stream.has_request
    ]
    frames = {frame for stream in running for frame in _frames(state, stream)}
    labels = {stream.label for stream in running}
    return [without_other_streams(lines.whole(frame), labels) for frame in sorted(frames)]


def _frames(state: State, stream: Stream) -> Iterable[int]:
    """Its request and what brought its tokens; of an HTTP answer all that came since."""
    if stream.api is None:
        return (stream.frame, *(state.tokens.frames[row] for row in stream.rows))
    later = range(stream.frame + 1, len(state.frames))
    return (stream.frame, *(frame for frame in later if state.frames.connections[frame] == stream.connection))


def without_other_streams(event: Event, labels: Collection[str]) -> Event:
    """A TOKEN frame without the entries of other streams; any other event as it is."""
    if not isinstance(event, Frame) or not isinstance(event.content, Parsed):
        return event
    entries = token_entries(event)
    kept = [one for one in entries if f"{event.connection}/{stream_name(stream_key(one.get('stream_id')))}" in labels]
    if len(kept) == len(entries):
        return event
    return Frame(event.time, event.direction, event.connection, Parsed(event.content.lead, kept, event.content.style))
