"""Any value, content and event that a trace can hold, for property tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from lmtool.trace.events import (
    STYLES,
    Blob,
    Close,
    Done,
    Drop,
    Frame,
    JsonText,
    Message,
    Open,
    Other,
    Piece,
    Remark,
    Request,
    Response,
    Stat,
    Turn,
    Vocab,
)

if TYPE_CHECKING:
    from lmtool.trace.events import Event

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4))
style = st.sampled_from(STYLES)
contents = st.builds(JsonText, text, values, style) | text | st.binary(max_size=20)
facts = st.dictionaries(text, values, max_size=3)
headers = st.dictionaries(text, text, max_size=3)
times = st.integers(0, 10**12).map(lambda us: us / 1e6)
connections = st.integers(0, 2**50)

events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Frame, times, st.sampled_from(["<", ">"]), connections, contents),
    st.builds(Message, times, st.sampled_from(["<", ">"]), connections, facts),
    st.builds(Request, times, connections, text, text, headers, st.none() | contents),
    st.builds(Response, times, connections, st.integers(100, 599), text, headers),
    st.builds(Piece, times, st.sampled_from(["sse", "body"]), connections, contents),
    st.builds(Done, times, connections),
    st.builds(Open, times, connections, facts),
    st.builds(Close, times, connections, st.sampled_from(["client", "server"]), st.none() | st.integers(0, 9999), text),
    st.builds(Drop, times, connections, facts),
    st.builds(
        Vocab, times, connections, st.dictionaries(st.integers(0, 2**40), text | st.binary(max_size=4), max_size=4)
    ),
    st.builds(Blob, times, connections, text, values),
    st.builds(Remark, times, st.sampled_from(["mark", "note"]), connections, text),
    st.builds(Stat, times, connections, facts),
    st.builds(Turn, times, connections, facts),
    st.builds(Other, times, text.map(lambda name: f"x-{name}"), connections, st.lists(values, max_size=3).map(tuple)),
)
