"""Entries of TOKEN frames: the fast way and the patient way tell the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.trace.entries import Entry, entries_of, key_of, name_of, objects_of, read_line
from lmtool.trace.events import Event, Frame, Parsed
from lmtool.trace.format import LineError, read_event, write_event
from tests.trace.conftest import token, tokens
from tests.trace.strategies import scalars, values

stream_ids = st.integers(0, 3) | st.sampled_from(["a", "1", ""])
usual = st.fixed_dictionaries(
    {"stream_id": stream_ids, "finish_reason": st.none() | st.sampled_from(["stop", "length"])},
    optional={
        "token": st.integers(0, 9),
        "logprob": st.floats(-9, 0) | st.integers(-3, 0) | st.none(),
        "text": st.text(max_size=3),
        "error": st.none() | st.just("no"),
        "top_logprobs": st.dictionaries(st.sampled_from(["1", "2"]), st.floats(-9, 0)),
    },
)
odd = st.dictionaries(
    st.sampled_from(["token", "stream_id", "logprob", "finish_reason", "error", "text", "new"]), values | scalars
)


@given(st.lists(usual | odd, max_size=4))
def test_a_line_and_its_event_tell_the_same(objects: list[dict[str, object]]) -> None:
    """A line that is read the fast way has the entries of the event that stands in it."""
    line = write_event(Frame(1.5, "<", 2, Parsed("TOKEN", objects, "msgspec")), "msgspec").encode()
    fast = read_line(line)
    event = read_event(line, "msgspec")
    if fast is not None:
        assert (fast.time, fast.connection, fast.entries) == (1.5, 2, entries_of(event))
    assert len(objects_of(event)) == len(entries_of(event))


@given(st.lists(usual, max_size=4))
def test_usual_lines_are_read_the_fast_way(objects: list[dict[str, object]]) -> None:
    """What a server that follows the protocol sends needs no second reading."""
    line = write_event(Frame(1.5, "<", 2, Parsed("TOKEN", objects, "py")), "msgspec").encode()
    assert read_line(line) is not None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b'# "TOKEN"',
        b'[0.1, ">", 1, "TOKEN", []]',
        b'[0.1, "<", 1, "MSG", [{"a": "TOKEN"}]]',
        b'[-1, "<", 1, "TOKEN", []]',
        b'[0.1, "<", -1, "TOKEN", []]',
        b'[0.1, "<", 1, "TOKEN", {"token": 1, "stream_id": 1}]',
        b'[0.1, "<", 1, "TOKEN", [{"token": 1.5, "stream_id": 1}]]',
        b'[0.1, "<", 1, "TOKEN", [{"token": 1',
        b'[0.1, "<", 1, "TOKEN", ' + b"[" * 5000,
    ],
)
def test_what_is_left_to_the_patient_way(line: bytes) -> None:
    """Other kinds, odd values and broken lines are not read the fast way."""
    assert read_line(line) is None


def test_what_makes_no_sense_is_left_out() -> None:
    """A field of the wrong type counts as absent; the rest of its entry is kept."""
    event = tokens(0.0, {"token": "7", "stream_id": None, "logprob": "x", "text": 5, "finish_reason": 3, "error": {}})
    (entry,) = entries_of(event)
    assert entry == Entry(key_of(None), logprob=None, finish_reason="3", error={})
    assert not entry.brings_token
    assert not entry.token_or_text


def test_infinite_logprobs() -> None:
    """LMQL's server writes `-Infinity`, which is no JSON: the frame is kept as text, and read all the same."""
    event = Frame(0.0, "<", 1, 'TOKEN [{"token": 3, "stream_id": 1, "logprob": -Infinity, "finish_reason": null}]')
    assert entries_of(event) == [Entry(1, 3, None)]


@pytest.mark.parametrize(
    "event",
    [
        Frame(0.0, "<", 1, "TOKEN [{"),
        Frame(0.0, "<", 1, "hello"),
        Frame(0.0, "<", 1, b"\x00"),
        Frame(0.0, ">", 1, Parsed("TOKEN", [token(1)], "py")),
        Frame(0.0, "<", 1, Parsed("MSG", [token(1)], "py")),
        Frame(0.0, "<", 1, Parsed("TOKEN", 5, "py")),
    ],
)
def test_frames_without_entries(event: Event) -> None:
    """Every other frame brings nothing."""
    assert entries_of(event) == []


@pytest.mark.parametrize("token_id", [-1, 2**31 - 1, 2**70])
def test_ids_no_vocabulary_has(token_id: int) -> None:
    """Ids that do not fit are no tokens."""
    (entry,) = entries_of(tokens(0.0, token(token_id)))
    assert not entry.brings_token


@given(stream_ids | values, stream_ids | values)
def test_stream_ids_stay_apart(one: object, other: object) -> None:
    """Two ids have the same key only where JSON cannot tell them apart."""
    if key_of(one) == key_of(other):
        assert name_of(key_of(one)) == name_of(key_of(other))


def test_names_of_stream_ids() -> None:
    """A whole number is shown as it is, everything else as JSON."""
    assert [name_of(key_of(one)) for one in (3, "3", "日", 1.5, None, [1, "a"])] == [
        "3", '"3"', '"日"', "1.5", "null", '[1,"a"]',
    ]  # fmt: skip


def test_a_broken_line_is_an_error_for_the_patient_way() -> None:
    """What the fast way passes over, the patient way refuses with a reason."""
    with pytest.raises(LineError):
        read_event(b'[0.1, "<", 1, "TOKEN", [{"token": 1', "py")
