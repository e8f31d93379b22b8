"""Traces in other programs' formats."""

from __future__ import annotations

import contextlib
import csv
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.errors import FileError
from lmtool.trace.codec import Header
from lmtool.trace.events import Done, Event, Frame, JsonText, Message, Open, Piece, Request, Response, Vocab
from lmtool.trace.formats import COLUMNS, FORMATS, as_asciicast, as_csv, as_har, as_lines, as_markdown, from_wire_log
from lmtool.trace.page import Page, draw
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
    assert rows[1] == ["0.010000", "1/1", "11", "Hi", "-0.5", "", "", "", "", "⟨#5⟩⟨#6⟩⟨#7⟩"]
    assert rows[2][-1] == ""
    assert rows[-1] == ["2.000000", "1/3", *[""] * 7, "⟨#5⟩⟨#6⟩⟨#7⟩"]
    assert rows[-2] == ["3.000000", "1/2", "11", "Hi", "", "stop", "", "", "", ""]


def test_asciicast_plays_the_text() -> None:
    """Version 2; a change of stream begins a line; control characters of a model never reach the terminal."""
    lines = [json.loads(line) for line in as_asciicast(Header(title="t"), TRACE)]
    assert lines[0]["version"] == 2
    shown = "".join(line[2] for line in lines[1:])
    assert shown == "\r\n1/1 | Hi ```there⟨1b⟩[2J!\r\n1/2 | Hi ```there"
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
    """Direction, space, the text that was sent; a comment for what is not a line of text, which is read over."""
    frames = [e for e in TRACE if isinstance(e, Frame)]
    lines = [f"{f.direction} {f.wire()}\n" for f in frames]
    odd = [Frame(3, "<", 1, b"x"), Frame(3, ">", 1, "a\nb")]
    note = "# 3.000000 {} of connection 1 is not a line of text\n"
    assert list(as_lines(Header(), [*TRACE, *odd])) == [*lines, note.format("<"), note.format(">")]
    left_out: list[int] = []
    assert [e for e in from_wire_log([note, *lines, "Connected"], "py", left_out) if isinstance(e, Frame)]
    assert left_out == [len(lines) + 2]


@pytest.mark.parametrize(
    "event", [Request(1, 1, "POST", "/v1/completions", {}), Message(1, "<", 1, {}), Frame(1, "<", 1, b"x")]
)
def test_a_wire_log_without_frames_is_refused(event: Event) -> None:
    """Nothing is given for a trace of another protocol, and the reason names the first event."""
    with pytest.raises(FileError, match=r"only: 1\.000000 (request|message|<) of connection 1"):
        list(as_lines(Header(), [Open(0, 1), event]))


@pytest.mark.parametrize("lines", [[], ["{"], ["interactions:", "- request:"], ['{"resourceSpans": []}']])
def test_a_file_of_another_kind_is_no_wire_log(lines: list[str]) -> None:
    """Where no line is a frame, the reason quotes the first."""
    with pytest.raises(FileError, match=f"no line is a frame: {'line 1 is' if lines else 'it is empty'}"):
        list(from_wire_log(lines, "py"))


def test_har_has_an_entry_a_connection() -> None:
    """`_webSocketMessages` as browsers write them; of Evergreen as JSON."""
    archive = json.loads("".join(as_har(Header(), [*TRACE, Frame(3, "<", 2, b"\xff")])))
    first, second = archive["log"]["entries"]
    assert [m["type"] for m in first["_webSocketMessages"][:2]] == ["send", "receive"]
    assert second["_webSocketMessages"] == [{"type": "receive", "time": 3, "opcode": 2, "data": "ff"}]


def exchange(*parts: bytes, kind: str = "application/json", path: str = "/v1/completions") -> list[Event]:
    """A completion over HTTP."""
    asked = Request(1, 7, "POST", path, {"content-type": "application/json"}, JsonText("", {"prompt": "Ask"}, "py"))
    pieces = [Piece(2, "body", 7, part) for part in parts]
    return [Open(1, 7, {"path": path}), asked, Response(2, 7, 200, "OK", {"content-type": kind}), *pieces, Done(3, 7)]


def test_har_has_an_entry_an_exchange() -> None:
    """Both bodies, headers, status; bytes in base64; no WebSocket where there was none. An HTTP archive reads so."""
    session = [Open(4, 9, {"path": "/evergreen"}), Message(5, ">", 9, {"actions": []})]
    events = [*exchange(b'{"a"', b": 1}"), *exchange(b"\xff", kind="audio/wav"), *session]
    archive = json.loads("".join(as_har(Header(created="2026-11-27T10:00:00Z"), events)))
    whole, audio, socket = archive["log"]["entries"]
    assert (whole["request"]["method"], whole["request"]["url"]) == ("POST", "http://recorded/v1/completions")
    assert whole["request"]["postData"]["text"] == '{"prompt": "Ask"}'
    assert (whole["response"]["status"], whole["response"]["content"]["text"]) == (200, '{"a": 1}')
    assert whole["response"]["headers"] == [{"name": "content-type", "value": "application/json"}]
    assert whole["startedDateTime"] == "2026-11-27T10:00:01+00:00"
    assert (audio["response"]["content"]["text"], audio["response"]["content"]["encoding"]) == ("/w==", "base64")
    assert json.loads(socket["_webSocketMessages"][0]["data"]) == {"actions": []}


def test_documents_and_tables_have_the_prompt() -> None:
    """Of ids as text, of messages each with its role, of a score what is scored as well; also without an answer."""
    spelled = Vocab(0, 0, {5: "Say", 6: " it", 7: "!"})
    score = Frame(1, ">", 1, JsonText("SCORE", {"prompt": [5], "scored": [6, 7], "stream_id": 9}, "py"))
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    messages = Request(2, 7, "POST", "/v1/chat/completions", {}, JsonText("", {"messages": chat}, "py"))
    events = [
        generate(0),
        spelled,
        score,
        messages,
        *exchange(b'{"choices": [{"text": "42", "finish_reason": "stop"}]}'),
    ]
    events = sorted(events, key=lambda event: event.time)
    text = "".join(as_markdown(Header(), events))
    rows = [row["prompt"] for row in csv.DictReader("".join(as_csv(Header(), events)).splitlines(keepends=True))]
    for prompt in ("Say it!", "Say it!", "Be brief.\nuser: Who?"):
        assert f"```prompt\n{prompt}\n```" in text
        assert prompt in rows


HOSTILE = "\x1b]0;x\x07\x9b2J\u202e\u200b\u2028\U000e0041<script>alert(1)</script>`[a](javascript:b)\r"


def hostile_trace() -> list[Event]:
    """It has everything that a stranger may write, in every place."""
    vocab = Vocab(0, 0, {5: HOSTILE, 11: f"=cmd|{HOSTILE}", 12: HOSTILE}, {12: HOSTILE})
    asked = generate(1, stream_id=HOSTILE, model=HOSTILE, stop=[HOSTILE])  # type: ignore[arg-type]
    answers = (token(11, HOSTILE, top_logprobs={"12": -1.0}), token(12, HOSTILE, finish_reason=HOSTILE))  # type: ignore[arg-type]
    failed = [generate(3, stream_id=8), tokens(4, {"stream_id": 8, "error": f"@{HOSTILE}"})]
    body = json.dumps({"choices": [{"text": HOSTILE, "finish_reason": HOSTILE}], "model": HOSTILE}).encode()
    return [vocab, asked, *(tokens(2, one) for one in answers), *failed, *exchange(body)]


@pytest.mark.parametrize("name", [*sorted(set(FORMATS) - {"lines"}), "html", "svg"])
def test_nothing_in_an_export_acts_or_hides(name: str) -> None:
    """Labels, texts, names, errors, titles: no escape, no direction, nothing invisible, no element, no formula."""
    header, events = Header(title=HOSTILE, by=HOSTILE), hostile_trace()
    if name in FORMATS:
        text = "".join(FORMATS[name](header, events))
    else:
        page = Page()
        page.read(events, HOSTILE)
        text = page.html(header.title) if name == "html" else draw(page, header.title)
    shown = "".join(map(str, _strings(list(map(json.loads, text.splitlines()))))) if name == "asciicast" else text
    assert not [c for c in shown.replace("\r\n", "") if c not in "\n\t" and (c < " " or (c in HOSTILE and c > "~"))]
    if name in {"html", "svg", "markdown"}:
        outside = re.sub(r"^(`{3,})\w+\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
        assert "<script>alert" not in re.sub(r"(`+)[^`].*?\1", "", outside)
        assert name != "markdown" or "[a](javascript" not in re.sub(r"(`+)[^`].*?\1", "", outside)
    if name == "csv":
        rows = list(csv.reader(text.splitlines(keepends=True)))
        assert not [cell for row in rows for cell in row if cell[:1] in "=+@" and len(cell) > 1]
        assert any(cell.startswith("'=cmd") for row in rows for cell in row)


def _strings(value: object) -> list[str]:
    """The strings in a JSON value."""
    if isinstance(value, dict | list):
        return [one for each in (value.values() if isinstance(value, dict) else value) for one in _strings(each)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("name", sorted(FORMATS))
@given(st.lists(events, max_size=4))
def test_any_trace_can_be_written(name: str, some: list[Event]) -> None:
    """No event keeps a trace from being written, but that a wire log needs a frame."""
    with contextlib.suppress(*[FileError] * (name == "lines")):
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
