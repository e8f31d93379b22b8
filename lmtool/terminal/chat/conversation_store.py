"""Conversations kept in the data folder: each a trace, for its user alone, the oldest removed."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from lmtool.core.errors import FileError
from lmtool.settings.data_folder import data_folder
from lmtool.terminal.chat.prompt_history import FILE_NAME as PROMPTS
from lmtool.terminal.chat.turns import TurnTree
from lmtool.trace.codec import HeaderError, read_header
from lmtool.trace.events import Turn as TurnEvent
from lmtool.trace.reader import TraceReader

if TYPE_CHECKING:
    from pathlib import Path

    from lmtool.trace.codec import Header

SUFFIX = ".lmtp.jsonl"
MAX_CONVERSATIONS = 200
"""Conversations that are kept, the newest."""
MAX_BYTES = 512 << 20
"""Of all that are kept."""
_HEADER_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class KeptConversation:
    """One of them, by the first line of its trace."""

    path: Path
    modified: datetime
    """In the local time zone."""
    size: int
    """In bytes."""
    title: str
    """The beginning of its first prompt."""
    model: str


def conversations_folder() -> Path:
    """The folder of the traces; it need not exist."""
    return data_folder() / "conversations"


def prompts_file() -> Path:
    """The file of all prompts that were typed; it need not exist."""
    return data_folder() / PROMPTS


def kept_conversations(most: int | None = None) -> list[KeptConversation]:
    """The conversations, the newest first. most: no more than these; None: all."""
    described = (_described(path) for path in _newest_first())
    return list(islice((one for one in described if one is not None), most))


def conversation_files() -> list[Path]:
    """Everything that conversations leave behind: traces, and the prompts' file."""
    prompts = prompts_file()
    return [*_newest_first(), *([prompts] if prompts.is_file() else [])]


def read_turns(path: Path) -> TurnTree:
    """The conversation of a trace. Raises `FileError`, also for a trace of something else."""
    tree = TurnTree()
    for event in TraceReader(path):
        if not isinstance(event, TurnEvent):
            continue
        try:
            tree.replay(event.facts)
        except ValueError as error:
            raise FileError(f"{path} holds a conversation that cannot be read: {error}") from None
    if not tree.turns:
        raise FileError(f"{path} is the trace of something else than a conversation of lmtool chat", "/load lists them")
    return tree


def prune() -> None:
    """Remove the oldest conversations above the limits."""
    total = 0
    for count, path in enumerate(_newest_first(), 1):
        with contextlib.suppress(OSError):  # another session has removed it
            total += path.stat().st_size
            if count > MAX_CONVERSATIONS or total > MAX_BYTES:
                path.unlink()


def _newest_first() -> list[Path]:
    found: list[tuple[float, Path]] = []
    try:
        with os.scandir(conversations_folder()) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(OSError):  # removed meanwhile
                        found.append((entry.stat().st_mtime, conversations_folder() / entry.name))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileError(f"cannot read {conversations_folder()}: {error.strerror}", "check whose folder it is") from None
    return [path for _, path in sorted(found, reverse=True)]


def _described(path: Path) -> KeptConversation | None:
    """None for a file that is gone, or no trace."""
    try:
        with path.open("rb") as file:
            header: Header = read_header(file.readline(_HEADER_BYTES))
        facts = path.stat()
    except (OSError, HeaderError):
        return None
    modified = datetime.fromtimestamp(facts.st_mtime).astimezone()
    return KeptConversation(path, modified, facts.st_size, header.title or "", str(header.model.get("name", "")))
