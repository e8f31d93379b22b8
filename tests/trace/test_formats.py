"""Traces in other programs' formats."""

from __future__ import annotations

import csv
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.trace.content import JsonText
from lmtool.trace.events import Event, Frame, Open, Vocab
from lmtool.trace.formats import COLUMNS, FORMATS, as_asciicast, as_csv, as_har, as_lines, as_markdown, from_wire_log
from lmtool.trace.header import Header
from tests.trace.conftest import CONVERSATION, generate, token, tokens
from tests.trace.strategies import events

VOCAB = Vocab(0, 0, {11: "Hi", 12: " ```there", 13: "\x1b[2J!"})
TRACE: list[Event] = [
    VOCAB,
    *CONVERSATION,
    generate(1, 2),
    tokens(2, token(11, 2)),
    generate(2, 3),
    tokens(2, token(12, 2)),
]


def test_csv_has_a_row_a_token() -> None:
    """Time, stream, id, text, logprob; a logprob that is no number stays empty."""
    infinite = Frame(3, "<", 1, 'TOKEN [{"token": 11, "stream_id": 2, "logprob": -Infinity, "finish_reason": "stop"}]')
    rows = list(csv.reader("".join(as_csv(Header(), [*TRACE, infinite])).splitlines()))
    assert tuple(rows[0]) == COLUMNS
    assert rows[1] == ["0.010000", "1/1", "11", "Hi", "-0.5", "", "", "", ""]
    assert rows[-1] == ["3.000000", "1/2", "11", "Hi", "", "stop", "", "", ""]


def test_asciicast_plays_the_text() -> None:
    """Version 2; a change of stream begins a line; control characters of a model never reach the terminal."""
    lines = [json.loads(line) for line in as_asciicast(Header(title="t"), TRACE)]
    assert lines[0]["version"] == 2
    shown = "".join(line[2] for line in lines[1:])
    assert shown == "\r\n1/1 | Hi ```there[2J!\r\n1/2 | Hi ```there"
    assert [line[0] for line in lines[1:]] == [0.01, 0.02, 0.03, 2, 2]


def test_asciicast_shows_a_thought_apart() -> None:
    """It has a look of its own, and the answer behind it begins a line."""
    thought = tokens(2, token(11, text="", reasoning="Hm\n"))
    lines = [
        json.loads(line)[2] for line in list(as_asciicast(Header(), [generate(1), thought, tokens(3, token(12))]))[1:]
    ]
    assert lines == ["\r\n1/1 | \x1b[3;38;5;139mHm\r\n\x1b[0m", "\r\n1/1 | ⟨#12⟩"]


def test_markdown_has_a_section_a_stream() -> None:
    """Request, text in a fence longer than any in it, ending; streams that never ended say so."""
    text = "".join(as_markdown(Header(title="Two"), TRACE))
    assert text.startswith("# Two\n")
    assert text.count("\n## ") == 3
    assert "\n````text\nHi ```there" in text
    assert text.count("not finished") == 2
    assert "\n\nlength\n" in text


def test_a_wire_log_has_the_exact_frames() -> None:
    """Direction, space, the text that was sent."""
    frames = [e for e in TRACE if isinstance(e, Frame)]
    assert list(as_lines(Header(), [*TRACE, Frame(3, "<", 1, b"x")])) == [f"{f.direction} {f.wire()}\n" for f in frames]


def test_har_has_an_entry_a_connection() -> None:
    """`_webSocketMessages` as browsers write them."""
    archive = json.loads("".join(as_har(Header(), [*TRACE, Frame(3, "<", 2, b"\xff")])))
    first, second = archive["log"]["entries"]
    assert [m["type"] for m in first["_webSocketMessages"][:2]] == ["send", "receive"]
    assert second["_webSocketMessages"] == [{"type": "receive", "time": 3, "opcode": 2, "data": "ff"}]


@pytest.mark.parametrize("name", sorted(FORMATS))
@given(st.lists(events, max_size=4))
def test_any_trace_can_be_written(name: str, some: list[Event]) -> None:
    """No event keeps a trace from being written."""
    assert isinstance("".join(FORMATS[name](Header(), some)), str)


def test_marked_and_known_lines_are_frames() -> None:
    """`> ` is the client, `< ` the server; known commands need no mark; everything else is passed over."""
    log = [
        "> lmql serve-model",
        "Connected (press CTRL+C to quit)",
        '> GENERATE {"stream_id": 1}\r\n',
        '< TOKEN [{"token": 1, "logprob": -Infinity}]\n',
        'GENERATE {"model": "gpt2-medium", "prompt": [15496, 612, 220], "stream_id": 1}',
        'MSG [{"stream_id": 2}]',
        "GENERATE is a command",
        "",
    ]
    found = list(from_wire_log(log, "py"))
    assert found[0] == Open(0.0, 1)
    frames = [(e.direction, e.command) for e in found if isinstance(e, Frame)]
    assert frames == [
        (">", None),
        (">", "GENERATE"),
        ("<", None),
        (">", "GENERATE"),
        ("<", "MSG"),
        (">", None),
    ]
    assert found[2] == Frame(0.002, ">", 1, JsonText("GENERATE", {"stream_id": 1}, "py"))
