"""Records a conversation as it goes: its frames and turns, into a trace of the data folder."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from lmtool import __version__
from lmtool.core.errors import FileError
from lmtool.settings.data_folder import make_private
from lmtool.terminal.chat.conversation_store import SUFFIX, conversations_folder, prune
from lmtool.trace.codec import Header
from lmtool.trace.connection_tap import FrameTap
from lmtool.trace.events import Turn as TurnEvent
from lmtool.trace.reader import TraceReader
from lmtool.trace.recorder import Recording, new_clock, recorders
from lmtool.trace.redaction import without_keys
from lmtool.trace.writer import write_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from lmtool.terminal.chat.turns import Turn, TurnTree

MAX_FRAME_CHARACTERS = 64 << 20
"""Of one conversation's frames; behind them only its turns are kept."""
_TITLE = 80
_MOST_EARLY_FRAMES = 16


class ConversationRecorder:
    """Keeps a conversation from its first prompt on. Never stands in its way: what goes wrong is said once."""

    def __init__(self, warn: Callable[[str], None], transport: Mapping[str, object]) -> None:
        """warn: called with what the user should know. transport: for the trace's header."""
        self.warn = warn
        self._transport = transport
        self._recording: Recording | None = None
        self._clock = new_clock()
        self._early: list[tuple[Literal[">", "<"], str]] = []
        """Frames before the first prompt, which describe the model."""
        self._tap: FrameTap | None = None
        self._connected = False
        self._characters = 0
        self._with_frames = True
        self._failed = False
        self.path: Path | None = None
        """The trace; None before the first prompt."""

    def frame(self, direction: Literal[">", "<"], frame: str) -> None:
        """Take a frame of the client's connection."""
        if not self._with_frames:
            return
        if self._tap is None:
            if len(self._early) < _MOST_EARLY_FRAMES:
                self._early.append((direction, frame))
            return
        self._characters += len(frame)
        if direction == ">" and without_keys(frame) is not frame:
            self._stop_frames("a prompt holds what looks like a key: it is kept as ***, and no tokens are from here on")
        elif self._characters > MAX_FRAME_CHARACTERS:
            size = f"{MAX_FRAME_CHARACTERS >> 20} MiB"
            self._stop_frames(f"the tokens of this conversation have filled {size}: from here on only its text is kept")
        else:
            self._tap.frame(1, direction, frame)

    def begin(self, tree: TurnTree, first_prompt: str, model: str) -> None:
        """Begin the trace before a prompt is sent, where that was not done; a conversation gone on with is in it."""
        if self._recording is not None or self._failed:
            return
        first = next(iter(tree.turns.values()), None)
        title = " ".join(without_keys(first_prompt if first is None else first.text).split())[:_TITLE]
        try:
            self._open(title, model)
        except FileError as error:
            self._failed, self._with_frames = True, False
            self.warn(f"this conversation is not kept: {error.message}")
            return
        for turn in tree.turns.values():
            self.turn(turn)
        if tree.turns:
            self.moved(tree.head)

    def turn(self, turn: Turn) -> None:
        """Record a turn whose answer has ended."""
        facts = {name: without_keys(v) if isinstance(v, str) else v for name, v in turn.to_json().items()}
        self._record(facts)

    def moved(self, number: int) -> None:
        """Record that the conversation goes on behind this turn."""
        self._record({"number": number})

    async def restart(self) -> None:
        """End the trace: the next prompt begins another one."""
        await self.close()
        self._recording = self._tap = self.path = None
        self._characters, self._with_frames, self._failed = 0, True, False

    async def close(self) -> None:
        """Write what is left."""
        if self._tap is not None and self._connected:
            self._tap.ended(1, "client", 1000)
        if self._recording is not None:
            await self._recording.close()

    async def copy_to(self, path: Path) -> None:
        """Copy the trace as far as it is, as a complete one. Raises `FileError`."""
        if self._recording is None or self.path is None:
            raise FileError("there is no trace of this conversation yet", "send a prompt first")
        await self._recording.flush()
        reader = TraceReader(self.path)
        write_trace(path, reader.header, reader)

    def _open(self, title: str, model: str) -> None:
        folder, now = make_private(conversations_folder()), datetime.now(UTC)
        prune()
        path = folder / f"{now:%Y%m%d-%H%M%S-%f}{SUFFIX}"
        header = Header(
            created=f"{now:%Y-%m-%dT%H:%M:%SZ}",
            by=f"lmtool {__version__}",
            at="client",
            title=title,
            transport=self._transport,
            model={"name": model},
            json="msgspec",
        )
        start = recorders(path, header, ("headers",), split=False, private=True)
        self._clock = new_clock()
        self._recording = Recording(start, self.warn, self._clock, split=False)
        self.path = path
        self._tap = FrameTap(self._recording.record, self._clock)
        self._tap.opened(1, "lmtool")
        self._connected = True
        early, self._early = self._early, []
        for direction, frame in early:
            self._tap.frame(1, direction, frame)

    def _record(self, facts: Mapping[str, object]) -> None:
        if self._recording is not None:
            self._recording.record(1, [TurnEvent(self._clock(), 0, facts)])

    def _stop_frames(self, why: str) -> None:
        self._with_frames = False
        self.warn(why)
