"""Wire logs of other programs, read as traces."""

from __future__ import annotations

from lmtool.trace.events import Frame, Open, Parsed
from lmtool.trace.wire_logs import events_of


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
    found = list(events_of(log, "py"))
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
    assert found[2] == Frame(0.002, ">", 1, Parsed("GENERATE", {"stream_id": 1}, "py"))
