"""What the tests of traces share: strategies that make any event, and small files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lmtool.trace.codec import Header
from lmtool.trace.events import Frame, JsonText, Open
from lmtool.trace.writer import TraceWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.trace.events import Event

    WriteTrace = Callable[..., Path]


def token(token: int, stream_id: int = 1, logprob: float = -0.5, **more: object) -> dict[str, object]:
    """One entry of a TOKEN list."""
    return {"token": token, "stream_id": stream_id, "logprob": logprob, "finish_reason": None, **more}


def tokens(time: float, *entries: dict[str, object], connection: int = 1) -> Frame:
    """One TOKEN frame."""
    return Frame(time, "<", connection, JsonText("TOKEN", list(entries), "py"))


def generate(time: float, stream_id: int = 1, connection: int = 1, **more: object) -> Frame:
    """One GENERATE frame."""
    payload = {"model": "m", "prompt": [5, 6, 7], "stream_id": stream_id, **more}
    return Frame(time, ">", connection, JsonText("GENERATE", payload, "py"))


CONVERSATION: tuple[Event, ...] = (
    Open(0.0, 1, {"peer": "client", "agent": "lmql/0.7.3"}),
    generate(0.001),
    tokens(0.010, token(11)),
    tokens(0.020, token(12)),
    tokens(0.030, token(13) | {"finish_reason": "length"}),
)
"""One stream of three tokens."""


@pytest.fixture
def write_trace(tmp_path: Path) -> WriteTrace:
    """Write a trace file of these events; `end=False` leaves it cut."""

    def write(
        events: Sequence[Event] = CONVERSATION,
        name: str = "a.lmtp.jsonl",
        header: Header | None = None,
        *,
        end: bool = True,
    ) -> Path:
        writer = TraceWriter(tmp_path / name, header or Header())
        for event in events:
            writer.write(event)
        writer.flush()
        if end:
            writer.close(events[-1].time if events else 0.0)
        else:
            writer.abandon()
        return writer.path

    return write
