"""What the prompts of the streams have in common, and why the rest was computed again: a list of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.core.logprobs.heat import STREAM_COLORS
from lmtool.protocol.providers.answer_events import TokenUsage
from lmtool.terminal.tui.runs import Run, pad, visible
from lmtool.trace.answers import Answers
from lmtool.trace.events import Frame
from lmtool.trace.prefix_sharing import PrefixSharing, SharedPrefix, sentences
from lmtool.trace.stream_events import RequestStarted, stream_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.terminal.tui.runs import Line
    from lmtool.terminal.tui.streams import Stream
    from lmtool.terminal.tui.view import View

MOST_REQUESTS = 1000
"""Requests that are read for one list: those up to the stream under the cursor, the latest ones."""


def prefix_lines(view: View) -> list[Line]:
    """Lines for each request up to the moment, each the target of its stream. Raises `FileError`."""
    listed = [stream for stream in view.streams() if stream.has_request and not stream.choice and stream.nodes is None]
    here = next((i for i, stream in enumerate(listed) if stream.index == view.stream), len(listed) - 1)
    first = max(0, here + 1 - MOST_REQUESTS)
    shown = listed[first : first + MOST_REQUESTS]
    lines: list[Line] = [
        [Run("what prompts have in common, and why the rest was computed: oldest first", "dim"), Run("")]
    ]
    if first:
        lines.append([Run(f"the {first} requests before these were not read", "dim")])
    for shared, stream in _shared(view, shown):
        words, *more = sentences(shared, view.state.texts.meaning)
        label = Run(pad(visible(stream.label), 7), f"stream{stream.index % len(STREAM_COLORS)}", stream.index)
        lines.append([label, Run(visible(words), "cursor" if stream.index == view.stream else "", stream.index)])
        lines += [[Run(f"       {visible(line)}", "dim")] for line in more]
    return lines


def _shared(view: View, streams: Sequence[Stream]) -> list[tuple[SharedPrefix, Stream]]:
    """What each request shares with those before it, read again from its frame."""
    sharing = PrefixSharing()
    found: list[tuple[SharedPrefix, Stream]] = []
    for stream in streams:
        steps = Answers(stream_of).follow(view.lines.whole(stream.frame))
        started = next((step for step in steps if isinstance(step, RequestStarted)), None)
        if started is None:
            continue
        started.label = stream.label
        shared = sharing.add(started)
        shared.usage = stream.usage or _counted(view, stream)
        found.append((shared, stream))
    return found


def _counted(view: View, stream: Stream) -> TokenUsage | None:
    """What an LMTP server counted, by the frame of the stream's last token."""
    if not stream.rows:
        return None
    event = view.lines.event(view.state.tokens.frames[stream.rows[-1]])
    entries = event.answer()[1] if isinstance(event, Frame) else []
    names = (f"{stream.connection}/{entry.get('stream_id')}" for entry in entries)
    counted = (entry.get("usage") for entry, name in zip(entries, names, strict=True) if name == stream.label)
    return next((TokenUsage.flat(one) for one in counted if isinstance(one, dict)), None)
