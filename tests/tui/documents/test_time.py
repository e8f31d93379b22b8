"""When tokens came."""

from __future__ import annotations

from lmtool.tui.documents.time import TimeDocument, spark_line
from lmtool.tui.glyphs import ASCII, UNICODE
from lmtool.tui.view import View
from tests.tui.documents.watched import close, rows, text, view_of
from tests.tui.scripted import request, tokens


def test_figures(view: View) -> None:
    """The stream under the cursor, then all: percentiles of gaps between frames, tokens a frame, stalls."""
    shown = "\n".join(rows(TimeDocument(view, UNICODE), 70))
    for part in ("stream 1/1", "p50 100ms", "max 100ms", "ttft 200ms", "1.5 tokens/frame", "0 stalls", "all streams"):
        assert part in shown


def test_a_stall_stands_out() -> None:
    """A gap over 50 ms and four medians is a mark of its own."""
    times = [0.2, 0.21, 0.22, 0.23, 0.24, 1.24, 1.25, 1.26]
    view = view_of([request(0.1, 1), *(tokens(t, (1, 7, -0.1)) for t in times)])
    shown = rows(TimeDocument(view, UNICODE), 60)
    assert shown[1].index("▲") == 4
    assert "1 stall" in shown[2]
    assert "^" in text(spark_line(view, ASCII, 60))
    close(view)


def test_one_token_has_no_gap() -> None:
    """That is said, in the pane and in the line."""
    view = view_of([request(0.1, 1), tokens(0.2, (1, 7, -0.1), (1, 8, -0.1))])
    assert "no gaps between frames yet" in "\n".join(rows(TimeDocument(view, UNICODE), 60))
    assert "no gaps" in text(spark_line(view, UNICODE, 60))
    close(view)
