"""Answers of OpenAI-compatible servers: their chunks, folded into the streams of their requests."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lmtool.trace.conversation import Began
from lmtool.trace.events import Done, Piece, Request, Response
from lmtool.tui import answers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.trace.conversation import Step
    from lmtool.tui.frames import FrameLog
    from lmtool.tui.streams import Stream
    from lmtool.tui.texts import Texts

UNFINISHED = "the answer ended before the stream did"


class Columns(Protocol):
    """Where streams and tokens go: a `State`."""

    frames: FrameLog
    texts: Texts

    def begin(self, began: Began, connection: int, frame: int, label: str) -> Stream:
        """A stream begins."""

    def put(self, stream: Stream, token: int, logprob: float, frame: int) -> None:
        """It gets a token."""


@dataclass(slots=True)
class _Asked:
    """A request whose answer is not complete."""

    began: Began
    frame: int
    choices: dict[int, Stream] = field(default_factory=dict)
    """Streams by number; empty for a request that generates nothing."""
    failed: str = ""
    """Status of a response that is an error."""


class HttpAnswers:
    """Requests of each connection in order; the first one is answered first."""

    def __init__(self, state: Columns) -> None:
        self._state = state
        self._asked: dict[int, deque[_Asked]] = {}

    def take(self, event: Request | Response | Piece | Done, frame: int, steps: Sequence[Step]) -> None:
        """Take the next event. steps: what a request means."""
        if isinstance(event, Request):
            self._request(event, frame, steps)
            return
        waiting = self._asked.get(event.connection)
        if not waiting:
            return
        asked = waiting[0]
        if isinstance(event, Response):
            asked.failed = f"HTTP {event.status} {event.reason}".strip() if event.status >= 400 else ""
        elif isinstance(event, Piece):
            self._piece(event, asked, frame)
        else:
            waiting.popleft()
            for stream in asked.choices.values():
                stream.end(self._state.frames.times[frame], None, asked.failed or UNFINISHED)

    def _request(self, event: Request, frame: int, steps: Sequence[Step]) -> None:
        began = next(step for step in steps if isinstance(step, Began))
        asked = _Asked(began, frame)
        self._asked.setdefault(event.connection, deque()).append(asked)
        if event.method == "POST" and "completions" in event.path:
            asked.choices[0] = self._state.begin(began, event.connection, frame, began.stream)

    def _piece(self, event: Piece, asked: _Asked, frame: int) -> None:
        if not asked.choices:
            return
        time = self._state.frames.times[frame]
        for one in answers.chunk(event):
            if one.error is not None:
                for stream in asked.choices.values():
                    stream.end(time, None, one.error)
                continue
            stream = self._choice(asked, one.choice, event.connection)
            if one.token:
                self._state.put(stream, self._state.texts.intern(one.text), one.logprob, frame)
            if one.finish_reason is not None:
                stream.end(time, one.finish_reason, None)

    def _choice(self, asked: _Asked, number: int, connection: int) -> Stream:
        if number not in asked.choices:
            label = f"{asked.began.stream}.{number}"
            asked.choices[number] = self._state.begin(asked.began, connection, asked.frame, label)
        return asked.choices[number]

    def cut(self, connection: int, time: float, error: str) -> None:
        """The connection is gone."""
        for asked in self._asked.pop(connection, ()):
            for stream in asked.choices.values():
                stream.end(time, None, asked.failed or error)
