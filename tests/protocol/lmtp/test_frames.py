"""Frames as a bystander reads them: nothing is refused, and what makes no sense is told."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.protocol.lmtp import frames
from lmtool.protocol.lmtp.answer_payloads import read_tokens
from lmtool.protocol.lmtp.frames import (
    NO_TOKEN,
    TokenEntry,
    alternatives,
    ends,
    entries_of,
    parse,
    stream_key,
    stream_name,
)
from tests.trace.strategies import scalars, values

stream_ids = st.integers(0, 3) | st.sampled_from(["a", "1", ""])


@pytest.mark.parametrize(
    ("frame", "command", "value", "readable"),
    [
        ("TOKEN [1]", "TOKEN", [1], True),
        ("TOKEN [-Infinity]", "TOKEN", [-math.inf], True),
        ("X null", "X", None, True),
        ("TOKEN [", "TOKEN", None, False),
        ("TOKEN", None, None, False),
        (b"TOKEN []", None, None, False),
    ],
)
def test_frames_are_taken_apart(frame: str | bytes, command: str | None, value: object, readable: bool) -> None:
    """As far as that goes: Python's `-Infinity` is read."""
    assert parse(frame) == (command, value, readable)


def test_entries() -> None:
    """A payload is a list of objects or a single one; what is no object is none."""
    assert (entries_of([{"a": 1}, 5]), entries_of({"a": 1}), entries_of(None)) == ([{"a": 1}], [{"a": 1}], [])


usual = st.fixed_dictionaries(
    {"stream_id": stream_ids, "finish_reason": st.none() | st.sampled_from(["stop", "length"])},
    optional={
        "token": st.integers(0, 9),
        "logprob": st.floats(-9, 0) | st.integers(-3, 0),
        "text": st.text(max_size=3),
        "top_logprobs": st.dictionaries(st.sampled_from(["1", "2"]), st.floats(-9, 0)),
    },
)


@given(st.lists(usual, max_size=4))
def test_the_same_as_a_client_reads(entries: list[dict[str, object]]) -> None:
    """What a server that follows the protocol sends means to a bystander what it means to a client (codec)."""
    import json

    outputs = read_tokens(json.dumps(entries))
    found = frames.token_entries(entries)
    assert [(one.token, one.logprob, one.text, one.last) for one in found] == [
        (NO_TOKEN if out.token is None else out.token, out.logprob, out.text, out.last) for out in outputs
    ]
    assert [alternatives(entry) for entry in entries] == [out.top_logprobs or () for out in outputs]


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["token", "stream_id", "logprob", "text", "error", "x"]), values | scalars)
    )
)
def test_odd_entries(entries: list[dict[str, object]]) -> None:
    """Each entry has a meaning of its own, whatever stands beside it."""
    assert frames.token_entries(entries) == [frames.token_entries([one])[0] for one in entries]


def test_what_makes_no_sense_ends_its_stream() -> None:
    """As for a client: a field of the wrong type is an error of the stream, told with the field's name."""
    (entry,) = frames.token_entries([{"token": "7", "stream_id": 1}])
    assert entry.last
    assert "makes no sense" in str(entry.error)
    assert "token" in str(entry.error)


def test_infinities_and_nulls() -> None:
    """LMQL's server writes -Infinity: the token counts, its logprob does not. A null is a missing field."""
    entries = [{"token": 5, "stream_id": 1, "logprob": -math.inf}, {"token": None, "stream_id": 1, "logprob": None}]
    assert frames.token_entries(entries) == [TokenEntry(1, 5), TokenEntry(1)]


@pytest.mark.parametrize("token", [-1, 2**31 - 1, 2**70])
def test_ids_no_vocabulary_has(token: int) -> None:
    """Ids that do not fit are no tokens; text beside them is text."""
    plain, with_text = frames.token_entries(
        [{"token": token, "stream_id": 1}, {"token": token, "stream_id": 1, "text": "a"}]
    )
    assert (plain.has_token, plain.counts, with_text.counts) == (False, False, True)


def test_alternatives() -> None:
    """Best first; names that are no ids, and values that are no finite numbers, are passed over."""
    top = {"3": -2, "x": -1.0, "-1": -1.0, "99999999999": -1.0, "4": None, "5": "a", "6": -1, "٣": -1.0, "7": -math.inf}
    assert alternatives({"top_logprobs": top}) == ((6, -1.0), (3, -2.0))
    assert [alternatives({"top_logprobs": one}) for one in (None, [5], {})] == [(), (), ()]


@pytest.mark.parametrize(
    ("command", "entry", "last"),
    [
        ("TOKEN", {"finish_reason": "stop"}, True),
        ("TOKEN", {"error": "no"}, True),
        ("TOKEN", {"finish_reason": None, "token": 1}, False),
        ("MSG", {"model_info": "x"}, True),
        ("MSG", {"error": "no"}, True),
        ("MSG", {"progress": {}}, False),
        (None, {"finish_reason": "stop"}, True),
    ],
)
def test_endings(command: str | None, entry: dict[str, object], last: bool) -> None:
    """A stream ends with a reason or an error, a question with its answer."""
    assert ends(command, entry) == last


@given(stream_ids | values, stream_ids | values)
def test_stream_ids_stay_apart(one: object, other: object) -> None:
    """LMTP, STR-2: two ids have the same key only where JSON cannot tell them apart."""
    if stream_key(one) == stream_key(other):
        assert stream_name(stream_key(one)) == stream_name(stream_key(other))


def test_names_of_stream_ids() -> None:
    """A whole number is shown as it is, everything else as JSON; the order of members means nothing."""
    assert [stream_name(stream_key(one)) for one in (3, "3", "日", 1.5, None, [1, "a"])] == [
        "3", '"3"', '"日"', "1.5", "null", '[1,"a"]',
    ]  # fmt: skip
    assert stream_key({"a": 1, "b": 2}) == stream_key({"b": 2, "a": 1})
    assert len({stream_key(one) for one in (1, 1.0, "1", True)}) == 4
