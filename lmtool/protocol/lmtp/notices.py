"""Callbacks for what a server sends beside its answers: progress, hold-ups, ignored fields, watched traffic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from lmtool.protocol.lmtp.messages import FieldsIgnored, Progress, System, Watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.core.types import LoadProgress
    from lmtool.protocol.lmtp.messages import SystemMessage

Notice: TypeAlias = Progress | System | FieldsIgnored | Watched

_OFFER = ("resumable",)
"""A field that only offers something: nothing is lost where it is ignored."""


@dataclass(slots=True)
class Notices:
    """The callbacks of one connection."""

    on_progress: Callable[[LoadProgress], None] | None = None
    on_ignored: Callable[[tuple[str, ...]], None] | None = None
    on_system: Callable[[SystemMessage], None] | None = None
    on_watched: dict[str, Callable[[Watched], None]] = field(default_factory=dict)
    """By the key of the WATCH."""

    @property
    def want_progress(self) -> bool:
        """True if requests ask for `progress` (LOAD-1, SYS-1)."""
        return self.on_progress is not None or self.on_system is not None

    def show(self, event: Notice) -> None:
        """Hand one of them over."""
        match event:
            case Progress() if self.on_progress is not None:
                self.on_progress(event.progress)
            case System() if self.on_system is not None:
                self.on_system(event.system)
            case FieldsIgnored() if self.on_ignored is not None and event.fields != _OFFER:
                self.on_ignored(event.fields)
            case Watched() if (on_watched := self.on_watched.get(event.stream_id)) is not None:
                on_watched(event)
