"""What came of a client command: what it sent, what it printed, how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lmtool.conformance.seen import Seen

if TYPE_CHECKING:
    from lmtool.conformance.seen import Message


@dataclass(slots=True)
class Ran:
    """One run of a client command against the scripted server."""

    seen: Seen = field(default_factory=Seen)
    paths: list[str] = field(default_factory=list)
    """Paths of its handshakes."""
    status: int | None = None
    """Exit status; None when it did not end in time and was killed."""
    patience: float = 0.0
    """Seconds it had."""
    stdout: str = ""
    stderr: str = ""
    usual: str | None = None
    """What it printed for a plain answer; None where that is another each time."""
    notes: list[str] = field(default_factory=list)
    """What the server could not do, such as get a pong."""

    def requests(self, *commands: str) -> list[Message]:
        """Frames it sent with one of these commands."""
        return [message for message in self.seen.sent() if message.command in commands]
