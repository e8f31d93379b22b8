"""Long lists of small records."""

from __future__ import annotations

import tracemalloc

import pytest

from lmtool.protocol.lmtp.frames import Entry
from lmtool.trace.events import Event, Frame, JsonText, Piece, Request, Response
from lmtool.trace.exchanges import PackedList, Recording
from tests.trace.conftest import generate, token, tokens

COUNT = 4000


def test_records_come_back_as_they_were() -> None:
    """In their order, whatever their size, each with all its fields; numbers, bytes and lone surrogates unchanged."""
    records = PackedList(lambda *fields: fields)
    added = [(i, -i / 3, {"a": [None, True, 10**30, "\ud800é"]}, b"\xff" * (i % 50)) for i in range(2000)]
    for one in added:
        records.append(*one)
    assert list(records) == added
    assert list(records) == added
    assert len(records) == 2000
    assert [records[0], records[1999]] == [added[0], added[1999]]
    with pytest.raises(IndexError):
        _ = records[2000]


def entry(i: int) -> Entry:
    """A token with five alternatives, none like those before."""
    top = {str(7919 * (i + j) % 50000): -j - i / 7 for j in range(5)}
    return {**token(7919 * i % 50000, i % 10), "logprob": -i / 7, "top_logprobs": top}


def lmtp() -> list[Event]:
    """Ten interleaved streams, a token a frame."""
    return [*(generate(0, n) for n in range(10)), *(tokens(i, entry(i)) for i in range(COUNT))]


def http() -> list[Event]:
    """One streamed chat, a token an event."""
    chunks = [
        {"id": "chatcmpl-3f845bcb6b0c4a2aa471eb382a2e9068", "object": "chat.completion.chunk", "created": 1795788624}
        | {"model": "lmtool-tiny", "choices": [{"index": 0, "delta": {"content": str(i)}, "finish_reason": None}]}
        for i in range(COUNT)
    ]
    head = [Request(0, 1, "POST", "/v1/chat/completions", {}), Response(0, 1, 200, "OK", {})]
    return [*head, *(Piece(i, "sse", 1, JsonText("data: ", chunk, "compact")) for i, chunk in enumerate(chunks))]


@pytest.mark.parametrize("events", [lmtp(), http()], ids=["lmtp", "http"])
def test_a_token_of_a_recording_takes_little_memory(events: list[Event]) -> None:
    """Less than 0.2 kB a token, over LMTP and HTTP, so that two recordings are compared in less than 0.5 kB."""
    tracemalloc.start()
    recording = Recording.of(event for event in events)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(recording.exchanges) in (1, 10)
    assert size < 200 * COUNT


def test_frames_are_played_as_they_were_recorded() -> None:
    """Byte for byte, though their text is not kept, in each style of JSON."""
    frames = [Frame(1, "<", 1, JsonText("TOKEN", [token(7)], style)) for style in ("py", "compact", "msgspec")]
    (exchange,) = Recording.of([generate(0), *frames]).exchanges
    assert [reply.wire(1, 1) for reply in exchange.replies] == [frame.wire() for frame in frames]  # type: ignore[union-attr]
