"""Parts of traces, and several as one."""

from __future__ import annotations

from lmtool.trace.codec import Header
from lmtool.trace.editing import Cut, merge, merge_headers
from lmtool.trace.events import Blob, Close, End, Event, Frame, JsonText, Open, Remark, Vocab
from tests.trace.conftest import CONVERSATION, generate, token, tokens


def cut(events: list[Event], start: float, stop: float, *connections: int) -> list[Event]:
    """The part of these events."""
    blobs = {e.sha256: e for e in events if isinstance(e, Blob)}
    part = Cut(start, stop, frozenset(connections), blobs.__getitem__)
    return [taken for event in events for taken in part.part_of(event)]


def test_a_part_begins_at_zero() -> None:
    """Times are counted from the cut; what lies outside is left out, and so is the end record."""
    found = cut([*CONVERSATION, End(1, 5, 3, "")], 0.02, 0.025)
    assert found == [CONVERSATION[0], tokens(0.0, token(12))]


def test_a_part_has_what_it_needs() -> None:
    """Connections still open, vocabulary so far, and blobs that its frames refer to are put at its beginning."""
    mask = Frame(3, ">", 1, JsonText("GENERATE", {"logit_bias": {"$blob": "ab"}}, "py"))
    before: list[Event] = [
        Open(0, 1, {"agent": "a"}),
        Open(0, 2),
        Vocab(1, 0, {1: "a"}),
        Vocab(1, 0, {2: "b"}),
        Blob(1, 0, "ab", {"1": 2}),
        Blob(1, 0, "cd", {"1": 3}),
        Close(1, 2, "client", 1000),
    ]
    found = cut([*before, mask, mask], 2, 9)
    assert found[:3] == [Open(0, 1, {"agent": "a"}), Vocab(0, 0, {1: "a", 2: "b"}), Blob(1, 0, "ab", {"1": 2})]
    assert [type(e) for e in found[3:]] == [Frame, Frame]


def test_a_part_may_be_one_connection() -> None:
    """Other connections are left out; what belongs to the whole recording stays."""
    events = [Open(0, 1), Open(0, 2), Remark(0, "note", 0, "x"), generate(1, connection=1), generate(1, connection=2)]
    assert {e.connection for e in cut(events, 0, 9, 2)} == {0, 2}


def test_merged_traces_are_in_order() -> None:
    """Events of all in order of time; connections of different traces do not meet; ends are left out."""
    first = [Open(0, 1), generate(2), End(3, 2, 0, "")]
    second = [Open(0, 1), generate(1), Blob(2, 0, "ab", 1)]
    third = [Blob(0, 0, "ab", 1)]
    found = list(merge([first, second, third]))
    assert [e.time for e in found] == sorted(e.time for e in found)
    assert [e.connection for e in found] == [1, 2, 0, 2, 1]
    assert sum(isinstance(e, Blob) for e in found) == 1


def test_headers_are_joined() -> None:
    """Titles are joined; what any was redacted of, the whole is."""
    first = Header(title="a", redacted=("headers",), covers=("GEN-1",), by="x", times="numbered")
    joined = merge_headers([first, Header(title="b", redacted=("prompt", "headers"), covers=("INT-1", "GEN-1"))])
    assert joined == Header(title="a + b", redacted=("headers", "prompt"), covers=("GEN-1", "INT-1"), by="x")
