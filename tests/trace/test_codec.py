"""Lines to events and back, kind by kind (FORMAT.md)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.trace import codec as lines
from lmtool.trace.codec import (
    Header,
    HeaderError,
    LargeValues,
    LineError,
    from_json,
    may_be_large,
    put_back,
    reference,
    references,
    to_json,
)
from lmtool.trace.events import Blob, Close, Drop, Event, Frame, JsonText, Open, Other, Piece, Request, Style, Vocab
from tests.trace.strategies import events, style, values


@given(events, style)
def test_every_event_comes_back(event: Event, name: Style) -> None:
    """What was written is read as the same event."""
    line = lines.write_event(event, name)
    assert "\n" not in line
    assert lines.read_event(line.encode(), name) == event


@given(st.binary(max_size=60) | events.map(lambda e: lines.write_event(e, "py").encode()[:-3]))
def test_no_line_does_harm(line: bytes) -> None:
    """Any bytes are an event or a `LineError`, nothing else."""
    try:
        lines.read_event(line, "py")
    except LineError as error:
        assert str(error)  # noqa: PT017 - either outcome is right


@given(
    st.recursive(st.none() | st.integers() | st.text(max_size=3) | st.floats(allow_nan=False), st.lists, max_leaves=8)
)
def test_wrong_types_are_told(rest: object) -> None:
    """Known kinds with elements of any type are read, or refused with a reason."""
    for kind in ("<", "open", "close", "vocab", "blob", "mark", "request", "response", "sse", "end", "stat"):
        for tail in ([rest], [{}, "", rest], ["", rest, rest], [None, rest]):
            line = json.dumps([1.0, kind, 1, *tail]).encode()
            try:
                lines.read_event(line, "py")
            except LineError as error:
                assert str(error)  # noqa: PT017 - either outcome is right


EXAMPLES = [
    (
        Open(0.0, 1, {"peer": "client", "agent": "lmql/0.7.3"}),
        '[0.000000, "open", 1, {"peer":"client","agent":"lmql/0.7.3"}]',
    ),
    (
        Frame(0.000412, ">", 1, JsonText("GENERATE", {"a": [1, 2]}, "py")),
        '[0.000412, ">", 1, "GENERATE", {"a": [1, 2]}]',
    ),
    (
        Frame(0.5, "<", 1, JsonText("TOKEN", [{"p": 1e-05}], "compact")),
        '[0.500000, "<", 1, "TOKEN", [{"p":1e-05}], "compact"]',
    ),
    (Frame(1, "<", 1, "TOKEN [-Infinity]"), '[1.000000, "<", 1, null, "TOKEN [-Infinity]"]'),
    (Frame(1, "<", 1, b"\x00\xff"), '[1.000000, "<", 1, null, {"hex":"00ff"}]'),
    (Vocab(1, 0, {220: " ", 47249: b"\xf0\x9f"}), '[1.000000, "vocab", 0, {"220":" ","47249":{"hex":"f09f"}}]'),
    (Vocab(1, 0, {2: "", 5: "a"}, {2: "<|im_end|>"}), '[1.000000, "vocab", 0, {"2":"","5":"a"}, {"2":"<|im_end|>"}]'),
    (Close(2, 1, "client", 1000, ""), '[2.000000, "close", 1, {"by":"client","code":1000,"reason":""}]'),
    (Drop(2, 1), '[2.000000, "drop", 1]'),
    (Piece(2, "sse", 2, JsonText("data: ", {"a": 1}, "py")), '[2.000000, "sse", 2, "data: ", {"a": 1}]'),
    (Other(3, "weather", 0, ("fine", 20)), '[3.000000, "weather", 0, "fine", 20]'),
]


@pytest.mark.parametrize(("event", "line"), EXAMPLES, ids=[e[1][12:30] for e in EXAMPLES])
def test_lines_look_as_documented(event: Event, line: str) -> None:
    """Both ways, by example."""
    assert lines.write_event(event, "py") == line
    assert lines.read_event(line.encode(), "py") == event


def test_elements_after_the_known_ones_are_passed_over() -> None:
    """A later version may add elements at the end of an event."""
    assert lines.read_event(b'[1, "mark", 1, "here", "more", 7]', "py") == lines.read_event(
        b'[1, "mark", 1, "here"]', "py"
    )


def test_close_may_be_brief() -> None:
    """A missing code and reason mean that there was none."""
    assert lines.read_event(b'[1, "close", 1, {"by": "server"}]', "py") == Close(1, 1, "server", None, "")


def test_a_request_without_a_body_has_no_content() -> None:
    """FORMAT.md, Events: content only where there is a body."""
    line = b'[1, "request", 2, {"method": "GET", "path": "/v1/models", "headers": {}}]'
    assert lines.read_event(line, "py") == Request(1, 2, "GET", "/v1/models", {})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[1, ", "not JSON"),
        (b'[NaN, "mark", 0, "x"]', "not JSON"),
        (b'[1, "mark", 0, "\xff"]', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{}", "expected an array"),
        (b"[1]", "expected an array"),
        (b'["1", "mark", 0, "x"]', "the time is '1'"),
        (b'[-1, "mark", 0, "x"]', "the time is -1"),
        (b'[true, "mark", 0, "x"]', "the time is True"),
        (b'[1, 2, 0, "x"]', "the kind is 2"),
        (b'[1, "mark", "0", "x"]', "the connection is '0'"),
        (b'[1, "mark", 0]', "mark has nothing where text is expected"),
        (b'[1, "<", 1, "TOKEN"]', "< ends too early"),
        (b'[1, "<", 1, 7, []]', "< has 7 where a command or null is expected"),
        (b'[1, "<", 1, null, 7]', "< has 7 where text or"),
        (b'[1, "<", 1, null, {"hex": "0"}]', "even number of hex digits"),
        (b'[1, "<", 1, "TOKEN", [], "js"]', "< has 'js' where one of py, compact, msgspec is expected"),
        (b'[1, "vocab", 0, {"x": "y"}]', "vocab has 'x' where a token id is expected"),
        (b'[1, "vocab", 0, {"1": 2}]', "vocab has 2 where text"),
        (b'[1, "blob", 0, {"sha256": "a"}]', "blob has no value"),
        (b'[1, "close", 1, {"by": "client", "code": "x"}]', "code of close is 'x'; expected an integer"),
        (b'[1, "close", 1, {}]', "by of close is nothing"),
        (b'[1, "response", 1, {"status": true}]', "status of response is True; expected an integer"),
        (b'[1, "request", 1, {"method": "GET", "path": "/", "headers": {"a": 1}}]', "a value that is not a string"),
        (b'[1, "end", 0, {"events": "many"}]', "events of end is 'many'"),
    ],
)
def test_a_bad_line_is_refused_with_its_reason(line: bytes, reason: str) -> None:
    """What is wrong, with the value, and what was expected."""
    with pytest.raises(LineError) as error:
        lines.read_event(line, "py")
    assert reason in str(error.value)
    assert len(str(error.value)) < 200


def test_the_header_is_one_line() -> None:
    """A header is written and read as one line; anything else is refused."""
    header = Header(title="two\nlines", covers=("GEN-1",))
    line = lines.write_header(header)
    assert "\n" not in line
    assert lines.read_header(line.encode()) == header
    with pytest.raises(HeaderError, match="not a trace header"):
        lines.read_header(b"GENERATE {}")


FULL = {
    "lmtp_trace": 1,
    "created": "2026-11-20T22:00:00Z",
    "by": "lmtool 0.1",
    "at": "proxy",
    "title": "two greedy streams",
    "transport": {"kind": "websocket", "path": "/", "max_frame": 4194304},
    "model": {"name": "gpt2", "vocab_size": 50257, "eos": 50256, "tokenizer": {"name": "gpt2", "sha256": "…"}},
    "run": {"device": "cuda", "dtype": "bfloat16", "seed": None},
    "json": "compact",
    "times": "numbered",
    "redacted": ["headers"],
    "verify": {"level": "numbers", "tol_logprob": 0.05},
    "covers": ["GEN-1", "INT-2"],
}


def test_every_member_is_kept() -> None:
    """FORMAT.md, Header: reading and writing loses nothing."""
    assert to_json(from_json(FULL)) == {**FULL, "redacted": ("headers",), "covers": ("GEN-1", "INT-2")}


def test_only_the_version_is_required() -> None:
    """A missing member and null mean the same."""
    assert from_json({"lmtp_trace": 1, "title": None, "covers": None}) == Header()
    assert to_json(Header()) == {"lmtp_trace": 1, "json": "py"}


def test_unknown_members_are_kept() -> None:
    """A member that this version does not know is kept and passed over."""
    assert to_json(from_json({"lmtp_trace": 1, "weather": ["fine"]})) == {
        "lmtp_trace": 1,
        "json": "py",
        "weather": ["fine"],
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1, 2], "not a trace header"),
        ({"log": {}}, "not a trace header"),
        ({"lmtp_trace": 2}, "version 2; this lmtool reads version 1"),
        ({"lmtp_trace": "1"}, "as an integer"),
        ({"lmtp_trace": True}, "as an integer"),
        ({"lmtp_trace": 1, "json": "js"}, "one of py, compact, msgspec"),
        ({"lmtp_trace": 1, "model": "gpt2"}, "model is 'gpt2'; expected an object"),
        ({"lmtp_trace": 1, "covers": [1]}, "covers is [1]; expected a list of strings"),
        ({"lmtp_trace": 1, "title": 3}, "title is 3; expected a string"),
        ({"lmtp_trace": 1, "times": "fast"}, "measured or numbered"),
    ],
)
def test_what_is_no_header_is_refused_with_a_reason(value: object, reason: str) -> None:
    """A wrong version or type is named with its value."""
    with pytest.raises(HeaderError) as error:
        from_json(value)
    assert reason in str(error.value)


MASK = {str(i): -100 for i in range(2000)}


def test_a_large_member_becomes_a_reference() -> None:
    """A member above 8,192 characters is replaced by {"$blob": hash}; small ones stay. Each value is written once."""
    values_once = LargeValues()
    frame = Frame(2, ">", 1, JsonText("GENERATE", {"prompt": [1], "logit_bias": MASK}, "py"))
    blob, light = values_once.take_out(frame)
    assert isinstance(blob, Blob)
    assert (blob.time, blob.value) == (2, MASK)
    assert light == replace(
        frame, content=JsonText("GENERATE", {"prompt": [1], "logit_bias": {"$blob": blob.sha256}}, "py")
    )
    assert references(light) == [blob.sha256]
    assert list(values_once.take_out(frame)) == [light]


@given(values, style)
def test_what_was_taken_out_is_put_back(value: object, name: Style) -> None:
    """The whole payload is the same again, whatever it is; also as an entry of a list, or in a request's body."""
    for payload in ({"a": value, "b": MASK}, [{"a": value, "b": MASK}, value], value):
        content = JsonText("X", payload, name)
        for event in (Frame(0, ">", 1, content), Request(0, 1, "POST", "/", {}, content)):
            *blobs, light = LargeValues().take_out(event)
            large = {blob.sha256: blob.value for blob in blobs if isinstance(blob, Blob)}
            assert may_be_large(event) >= bool(large)
            assert put_back(light, large.__getitem__) == event


def test_what_is_no_reference_names_none() -> None:
    """Only an object with the one member `$blob`, a string, is a reference."""
    assert reference({"$blob": "ab"}) == "ab"
    assert [reference(v) for v in ({"$blob": 1}, {"$blob": "a", "b": 1}, "$blob", None)] == [None] * 4
    assert references(Blob(0, 0, "ab", {"$blob": "cd"})) == []
    assert references(Frame(0, ">", 1, "text")) == []
