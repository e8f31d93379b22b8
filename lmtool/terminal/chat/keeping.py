"""What of a conversation is kept on disk: its prompts for later sessions, and its trace; or nothing."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import FileError, UsageError
from lmtool.settings.data_folder import make_private
from lmtool.terminal.chat.conversation_recorder import ConversationRecorder
from lmtool.terminal.chat.conversation_store import kept_conversations, prompts_file, read_turns
from lmtool.terminal.chat.prompt_history import PromptHistory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from prompt_toolkit.history import History

    from lmtool.protocol.lmtp.client_connection import OnFrame
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.settings.terminal import Output
    from lmtool.terminal.chat.turns import Turn, TurnTree


@dataclass(frozen=True, slots=True)
class ConversationOptions:
    """How a conversation begins, and what stays of it."""

    resume_last: bool = False
    """True if it goes on where the last one ended (`--continue`)."""
    keep: bool = True
    """True if prompts and a trace are kept (not with `--no-history`)."""


@dataclass(slots=True)
class Keeping:
    """The recorder and the history of prompts; neither where nothing is kept."""

    recorder: ConversationRecorder | None = None
    history: History | None = None
    earlier: TurnTree | None = None
    """The conversation to go on with."""

    @property
    def on_frame(self) -> OnFrame | None:
        """Takes the frames of the connection."""
        return None if self.recorder is None else self.recorder.frame

    def begin(self, tree: TurnTree, first_prompt: str, model: str) -> None:
        """See `ConversationRecorder.begin`."""
        if self.recorder is not None:
            self.recorder.begin(tree, first_prompt, model)

    def turn(self, turn: Turn) -> None:
        """Keep a turn whose answer has ended."""
        if self.recorder is not None:
            self.recorder.turn(turn)

    def moved(self, number: int) -> None:
        """Keep that the conversation goes on behind this turn."""
        if self.recorder is not None:
            self.recorder.moved(number)

    async def restart(self) -> None:
        """The next prompt begins another trace."""
        if self.recorder is not None:
            await self.recorder.restart()

    async def copy_trace(self, path: Path) -> None:
        """Write the trace so far into a file. Raises `FileError`, `UsageError` where nothing is kept."""
        if self.recorder is None:
            raise UsageError("no trace of this conversation is kept: --no-history", "save it as .md or .json")
        await self.recorder.copy_to(path)


@asynccontextmanager
async def keep_conversation(options: ConversationOptions, out: Output, endpoint: Endpoint) -> AsyncIterator[Keeping]:
    """Keep a conversation while the block runs. A data folder that cannot be written is a warning: nothing is kept.

    Raises `UsageError` where there is no earlier conversation to go on with.
    """
    keeping = Keeping(earlier=_earlier() if options.resume_last else None)
    if options.keep:
        transport = {"kind": "stdio"} if endpoint.url.startswith("stdio:") else {"kind": "websocket", "path": "/"}
        try:
            make_private(prompts_file().parent)
        except FileError as error:
            out.warn(f"nothing is kept of this conversation: {error.message}")
        else:
            recorder = keeping.recorder = ConversationRecorder(out.warn, transport)
            keeping.history = PromptHistory(prompts_file(), lambda text: recorder.warn(text))  # noqa: PLW0108 - it is set anew
    try:
        yield keeping
    finally:
        if keeping.recorder is not None:
            keeping.recorder.warn = out.warn
            await keeping.recorder.close()


def _earlier() -> TurnTree:
    """The conversation that was kept last; those without a turn are passed over."""
    for conversation in kept_conversations():
        try:
            return read_turns(conversation.path)
        except FileError:
            continue  # one that ended before its first answer
    raise UsageError("no conversation is kept yet", "begin one:  lmtool chat")
