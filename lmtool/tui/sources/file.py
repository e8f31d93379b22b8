"""A trace file, read into a state while the screen stays alive; branches of it run on a server named beside it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lmtool.errors import UsageError
from lmtool.trace.events import Remark
from lmtool.tui.lines import TraceFile
from lmtool.tui.sources.asking import Asking
from lmtool.tui.sources.intake import Intake

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from lmtool.lmtp.endpoint import Endpoint
    from lmtool.text.tokenizer import TextTokenizer
    from lmtool.trace.events import Event
    from lmtool.tui.sources.source import Feed, Recorded, TextToScore
    from lmtool.types import GenerateRequest, ModelInfo

SLICE = 0.008
"""Seconds of reading between two looks at the keyboard."""


class FileSource:
    """A trace; a `Source` whose events go into `file.state` directly. Make it inside a running event loop."""

    live = False

    def __init__(
        self,
        path: Path,
        warn: Callable[[str], None],
        *,
        find_tokenizer: Callable[[ModelInfo], TextTokenizer | None],
        ask: Endpoint | None = None,
    ) -> None:
        """Read the header. ask: the server where branches run. Raises `FileError`."""
        self.file = TraceFile(path)
        """What is read, with its state; whole once `run` has fed."""
        self.title = f"file {path.name}"
        self._warn = warn
        self._intake = Intake(warn, at="client")
        self._loaded = asyncio.Event()
        self._asking = (
            None
            if ask is None
            else Asking(ask, self._intake, self._next_number, find_tokenizer=find_tokenizer, check=self._check)
        )

    def _check(self, info: ModelInfo, tokenizer: TextTokenizer | None) -> None:
        """Raise `UsageError` where the trace's ids mean something else on the server; note where nothing tells that."""
        same, name = self._has_same_tokenizer(info, tokenizer), self.file.path.name
        if same is False:
            raise UsageError(
                f"{name} was made with another tokenizer than that of {info.model}: its ids mean other tokens there",
                "connect to a server of the same model",
            )
        if same is None:
            told = f"nothing says that the ids of {name} mean the same tokens to {info.model}"
            self._intake.tell(0, [Remark(self._intake.clock(), "note", 0, told)])

    def _has_same_tokenizer(self, info: ModelInfo, tokenizer: TextTokenizer | None) -> bool | None:
        """Whether the trace's ids do, by the tokenizer's hash, else by what ids are spelled; None: not known."""
        model = self.file.header.model
        named, size = model.get("tokenizer"), model.get("vocab_size")
        sha256 = named.get("sha256") if isinstance(named, dict) else None
        if sha256 and info.tokenizer is not None:
            return bool(sha256 == info.tokenizer.sha256)
        if tokenizer is not None and (spelled := self.file.state.texts.differences(tokenizer.piece)):
            return not any(spelled.values())
        return False if None not in (size, info.vocab_size) and size != info.vocab_size else None

    def _next_number(self) -> int:
        state = self.file.state
        return 1 + max((stream.connection for stream in state.streams), default=state.connections)

    @property
    def cannot_ask(self) -> str:
        """Why there are no requests."""
        return "" if self._asking is not None else "a file answers nothing: open it with  --connect ws://HOST:PORT"

    @property
    def generate(self) -> Callable[[GenerateRequest], Awaitable[str]] | None:
        """Send a request to the server beside the file, once the file is read."""
        return None if self._asking is None else self._generate

    @property
    def score(self) -> Callable[[TextToScore], Awaitable[str]] | None:
        """Have a text scored there."""
        return None if self._asking is None else self._score

    async def _generate(self, request: GenerateRequest) -> str:
        await self._loaded.wait()
        assert self._asking is not None
        return await self._asking.generate(request)

    async def _score(self, request: TextToScore) -> str:
        await self._loaded.wait()
        assert self._asking is not None
        return await self._asking.score(request)

    def cancel(self, label: str) -> None:
        """End a stream of the inspector's own."""
        if self._asking is not None:
            self._asking.cancel(label)

    async def run(self, feed: Feed) -> None:
        """Read the file, then be over; what a server answers to branches is fed later as well. Raises `FileError`."""
        while not self.file.load(SLICE):  # noqa: ASYNC110 - the keyboard gets its turn; nothing is waited for
            await asyncio.sleep(0)
        self._intake.set_clock(self.file.state.now)
        self._intake.feed_to(feed)
        self._loaded.set()
        while not self.file.verify(SLICE):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        ending = self.file.ending
        if ending is not None and ending.state != "complete":
            self._warn(f"{self.file.path.name} is {ending.state}: {ending.reason}")

    def start_recording(self, path: Path, history: Sequence[Event] = ()) -> None:
        """Record branches from now on. Raises `UsageError` where there are none, `FileError`."""
        if self._asking is None:
            raise UsageError(f"{self.file.path.name} is a recording already", f"{path} would be the same file again")
        self._intake.start_recording(path, history)

    async def stop_recording(self) -> Recorded | None:
        """End the recording."""
        return await self._intake.stop_recording()

    @property
    def recorded(self) -> Recorded | None:
        """What is recorded so far."""
        return self._intake.recorded

    async def close(self) -> None:
        """Let go of the file and the server."""
        if self._asking is not None:
            await self._asking.close()
        await self._intake.stop_recording()
        self.file.close()
