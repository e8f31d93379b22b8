"""The table of streams."""

from __future__ import annotations

from lmtool.trace.filter import parse
from lmtool.tui.documents.streams import StreamsDocument
from lmtool.tui.glyphs import ASCII, UNICODE
from lmtool.tui.view import View
from tests.tui.documents.watched import close, rows, view_of
from tests.tui.scripted import conversation, event


def test_wide(view: View) -> None:
    """Every column of a wide pane, aligned with its heading."""
    heading, first, second = rows(StreamsDocument(view, UNICODE), 118)
    assert first.startswith("▸● 1/1")
    assert first.endswith("✓ stop")
    assert second.endswith("▶ run")
    assert "Hello there" in first
    assert "t=.7" in second
    assert heading.index("state") == first.index("✓")
    assert heading.index("tok/max") + 7 == first.index("6/8") + 3


def test_columns_go_as_it_gets_narrow(view: View) -> None:
    """First the last token, then prompt and times, then the rate; id, count and state stay."""
    shown = {columns: rows(StreamsDocument(view, UNICODE), columns)[0] for columns in (118, 90, 60, 40)}
    assert "last" not in shown[90]
    assert "prompt" in shown[90]
    assert "ttft" not in shown[60]
    assert "tok/s" in shown[60]
    assert shown[40].split() == ["id", "kind", "tok/max", "state"]


def test_an_error_takes_the_rest_of_the_line() -> None:
    """A stream that failed says why, from the column of its last token on."""
    view = view_of([*conversation(), event(1.0, "<", "TOKEN", [{"stream_id": 2, "error": "context overflow"}])])
    assert rows(StreamsDocument(view, ASCII), 118)[2].endswith("  x context overflow")
    close(view)


def test_nothing_yet_is_told_with_what_to_do() -> None:
    """In as many lines as it takes; not where a filter hides what there is."""
    view = view_of([])
    document = StreamsDocument(view, UNICODE, lambda: "point a client at ws://127.0.0.1:8081/")
    assert rows(document, 90)[1:] == ["  no stream yet: point a client at ws://127.0.0.1:8081/"]
    assert rows(document, 34)[1:] == ["  no stream yet: point a client", "  at ws://127.0.0.1:8081/"]
    assert rows(StreamsDocument(view, UNICODE), 40)[1:] == ["  no stream yet"]
    close(view)
    view = view_of()
    view.set_filter(parse("sid:77"))
    assert rows(StreamsDocument(view, UNICODE, lambda: "never"), 90)[1:] == [
        "  no stream for this filter (esc clears it)"
    ]
    close(view)


def test_marked_streams(view: View) -> None:
    """A marked stream has a sign, the one under the cursor another."""
    view.mark_stream()
    view.move_stream(1)
    assert rows(StreamsDocument(view, UNICODE), 60)[1].startswith("=●")
