"""The beginning of a recording that starts late: the history of the streams that still run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.protocol.lmtp.frames import stream_key, stream_name
from lmtool.trace.events import Frame, JsonText

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from lmtool.protocol.lmtp.frames import Entry
    from lmtool.terminal.tui.event_store import EventStore, TraceFile
    from lmtool.terminal.tui.state import State
    from lmtool.terminal.tui.streams import Stream
    from lmtool.trace.events import Event


def preamble(lines: EventStore | TraceFile) -> list[Event]:
    """Requests and answers of live streams that have not ended, in order, without those of others.

    A stream whose request is not known is left out, as it would be in a recording from the beginning.
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
    """Its request and what brought its tokens; of an HTTP answer all since then."""
    if stream.api is None:
        return (stream.frame, *(state.tokens.frames[row] for row in stream.rows))
    later = range(stream.frame + 1, len(state.frames))
    return (stream.frame, *(frame for frame in later if state.frames.connections[frame] == stream.connection))


def own_entries(event: Event, labels: Collection[str]) -> list[Entry]:
    """What a server's frame says of these streams, entry by entry."""
    if not isinstance(event, Frame):
        return []
    named = ((stream_name(stream_key(one.get("stream_id"))), one) for one in event.answer()[1])
    return [one for name, one in named if f"{event.connection}/{name}" in labels]


def without_other_streams(event: Event, labels: Collection[str]) -> Event:
    """A server's frame without the entries of other streams; any other event as it is."""
    if not isinstance(event, Frame):
        return event
    (command, entries), own = event.answer(), own_entries(event, labels)
    if len(own) == len(entries):
        return event
    if isinstance(event.content, JsonText):
        return replace(event, content=replace(event.content, value=own))
    return replace(event, content=f"{command} {json.dumps(own)}")  # with what JSON cannot say, such as -Infinity
