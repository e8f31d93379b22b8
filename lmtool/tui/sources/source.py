"""The plug between what is watched and the inspector."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from lmtool.trace.events import Event

if TYPE_CHECKING:
    from pathlib import Path

    from lmtool.types import GenerateRequest, Prompt

Feed: TypeAlias = Callable[[Sequence[Event]], None]
"""Takes events in order of time; called in the event loop, in batches; must not block or raise."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a recording holds so far."""

    path: Path
    events: int
    tokens: int
    size_bytes: int
    """On the disk, the last tenth of a second left out."""
    failed: str = ""
    """Why it was given up, such as a full disk; empty while it goes on."""


@dataclass(frozen=True, slots=True)
class TextToScore:
    """Given text: ids that are known, and text between them that is still to be tokenized."""

    prompt: Prompt
    before: tuple[int, ...]
    text: str
    """Continues what is before it; empty where all ids are known."""
    after: tuple[int, ...] = ()
    whole: str = ""
    """All of it as text: what is sent instead where the tokenizer is not here."""
    model: str | None = None


class Source(Protocol):
    """Whatever feeds the inspector: live connections or a file.

    `run` is awaited once, and again when a request found the server back after it raised; everything else may be called
    while it runs and afterwards. `close` comes last.
    """

    @property
    def title(self) -> str:
        """What is watched, in a few words, such as `proxy :8081→:8080`."""

    @property
    def live(self) -> bool:
        """Whether time goes on by itself; a file is played."""

    @property
    def generate(self) -> Callable[[GenerateRequest], Awaitable[str]] | None:
        """Send a request of the inspector's own; returns the label of its stream, such as `2/1`. None: it cannot.

        A text prompt is what a person typed: it becomes the ids that the model's chat template makes of it, where
        tokenizer or server know one. The request's `stream_id` does not matter. Raises `LmtoolError`.
        """

    @property
    def score(self) -> Callable[[TextToScore], Awaitable[str]] | None:
        """Have given text scored, and the likeliest tokens beside it told; otherwise as `generate`."""

    @property
    def cannot_ask(self) -> str:
        """Why `generate` is None and what to do about it; empty where it is not."""

    def cancel(self, label: str) -> None:
        """End a stream of the inspector's own; others are left alone."""

    async def run(self, feed: Feed) -> None:
        """Feed what happens, until it is over. Raises `LmtoolError` when the remote cannot be reached or has gone."""

    def start_recording(self, path: Path, history: Sequence[Event] = ()) -> None:
        """Write what comes from now on as a trace. Raises `FileError`, `UsageError`.

        history: what was fed of streams that still run, which comes first; the trace begins with the first of it.
        """

    async def stop_recording(self) -> Recorded | None:
        """End the recording in good order; what it holds, None where there was none."""

    @property
    def recorded(self) -> Recorded | None:
        """What the recording holds so far; None where nothing is recorded."""

    async def close(self) -> None:
        """End everything, the recording as well. Harmless when repeated."""


@runtime_checkable
class Waiting(Protocol):
    """A `Source` whose streams are asked for by others."""

    @property
    def advice(self) -> str:
        """What makes a stream come, such as where to point a client; empty where that is not known."""
