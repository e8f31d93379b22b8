"""What the panes of streams, tokens, frames and time show."""

from __future__ import annotations

import json

from lmtool.terminal.tui.documents.frames import FramesDocument, indented
from lmtool.terminal.tui.documents.streams import StreamsDocument
from lmtool.terminal.tui.documents.time import TimeDocument, spark_line
from lmtool.terminal.tui.documents.tokens import InterleavedDocument, TableDocument
from lmtool.terminal.tui.styles import ASCII, UNICODE
from lmtool.terminal.tui.view import View
from lmtool.trace.filter import parse
from tests.terminal.tui.scripted import conversation, event, request, tokens
from tests.terminal.tui.states import rows, text, view_of


class TestStreams:
    """The table of streams."""

    def test_wide(self, view: View) -> None:
        """Every column of a wide pane, aligned with its heading."""
        heading, first, second = rows(StreamsDocument(view, UNICODE), 118)
        assert first.startswith("▸● 1/1")
        assert first.endswith("✓ stop")
        assert second.endswith("▶ run")
        assert "Hello there" in first
        assert "t=.7" in second
        assert heading.index("state") == first.index("✓")
        assert heading.index("tok/max") + 7 == first.index("6/8") + 3

    def test_columns_go_as_it_gets_narrow(self, view: View) -> None:
        """First the last token, then prompt and times, then the rate; id, count and state stay."""
        shown = {columns: rows(StreamsDocument(view, UNICODE), columns)[0] for columns in (118, 90, 60, 40)}
        assert "last" not in shown[90]
        assert "prompt" in shown[90]
        assert "ttft" not in shown[60]
        assert "tok/s" in shown[60]
        assert shown[40].split() == ["id", "kind", "tok/max", "state"]

    def test_an_error_takes_the_rest_of_the_line(self) -> None:
        """A stream that failed says why, from the column of its last token on."""
        view = view_of([*conversation(), event(1.0, "<", "TOKEN", [{"stream_id": 2, "error": "context overflow"}])])
        assert rows(StreamsDocument(view, ASCII), 118)[2].endswith("  x context overflow")

    def test_nothing_yet_is_told_with_what_to_do(self) -> None:
        """In as many lines as it takes; not where a filter hides what there is."""
        view = view_of([])
        document = StreamsDocument(view, UNICODE, lambda: "point a client at ws://127.0.0.1:8081/")
        assert rows(document, 90)[1:] == ["  no stream yet: point a client at ws://127.0.0.1:8081/"]
        assert rows(document, 34)[1:] == ["  no stream yet: point a client", "  at ws://127.0.0.1:8081/"]
        assert rows(StreamsDocument(view, UNICODE), 40)[1:] == ["  no stream yet"]
        view = view_of()
        view.set_filter(parse("sid:77"))
        assert rows(StreamsDocument(view, UNICODE, lambda: "never"), 90)[1:] == [
            "  no stream for this filter (esc clears it)"
        ]

    def test_marked_streams(self, view: View) -> None:
        """A marked stream has a sign, the one under the cursor another."""
        view.mark_stream()
        view.move_stream(1)
        assert rows(StreamsDocument(view, UNICODE), 60)[1].startswith("=●")


class TestInterleaved:
    """Tokens in order of arrival."""

    def test_rows(self, view: View) -> None:
        """Time once a frame, stream, figure of the heat, token; the cursor's token has a sign."""
        shown = rows(InterleavedDocument(view, UNICODE), 60)
        assert shown[0] == "    0.400 1/1        .905 ▏ the"
        assert shown[1] == "          1/2        .607 ▏ the"
        assert shown[2] == "    0.500 1/1        .007 ▏ fox"
        view.choose_token(2)
        assert "▸ fox" in rows(InterleavedDocument(view, UNICODE), 60)[2]

    def test_narrow(self, view: View) -> None:
        """Without room there is no figure."""
        assert rows(InterleavedDocument(view, UNICODE), 40)[0] == "    0.400 1/1     ▏ the"

    def test_colours(self, view: View) -> None:
        """A surprising token has a later step of the heat than an expected one."""
        document = InterleavedDocument(view, UNICODE)
        styles = [next(run.style for run in reversed(document.line(y, 60)) if "heat" in run.style) for y in (0, 2)]
        assert styles[0].split()[0] < styles[1].split()[0]


class TestTable:
    """Tokens as a table."""

    def test_rows(self, view: View) -> None:
        """Number, id, token, p, bits, rank and the other alternatives under their headings."""
        view.choose_token(2)
        heading, _, fox, *_ = rows(TableDocument(view, UNICODE), 90)
        assert fox == "▸    1       8 ' fox'          .007    7.2    3  ' dog' .368  '.' .050"
        assert heading.index("token") < heading.index("p ") < heading.index("bits") < heading.index("alternatives")


class TestFrames:
    """What went over the wire."""

    def test_rows(self, view: View) -> None:
        """Time, connection, direction, tokens or what was requested; long ones cut with a sign."""
        shown = rows(FramesDocument(view, UNICODE), 60)
        assert shown[0].split(maxsplit=3)[:3] == ["0.000", "1", "·"]
        sent = next(row for row in shown if "GENERATE" in row)
        assert sent.split()[2] == ">"
        assert sent.endswith("> GENERATE 1/1 'Hello there' top=3 max 8")
        both = next(row for row in shown if "' the'" in row)
        assert both.endswith("< 1/1 ' the' .905  1/2 ' the' .607")
        assert any(row.endswith("1/1 ⟨f0 9f⟩ .741 ⟨99 82⟩ .990") for row in shown)
        assert any(row.endswith("'.' .951 ✓ stop") for row in shown)
        assert rows(FramesDocument(view, UNICODE), 34)[3].endswith("…")
        assert rows(FramesDocument(view, ASCII), 60)[0].split()[2] == "."

    def test_the_frame_of_the_token_is_marked(self, view: View) -> None:
        """Both ways: a click on a frame chooses its first token."""
        view.choose_token(2)
        document = FramesDocument(view, UNICODE)
        marked = [y for y, row in enumerate(rows(document, 60)) if row.startswith("▸")]
        assert marked == [view.state.tokens.frames[2]] == [document.anchor(60)]
        document.click(view.state.tokens.frames[0])
        assert view.token == 0

    def test_whole_frame_with_line_breaks(self, view: View) -> None:
        """Everything that was sent, the command first."""
        whole = FramesDocument(view, UNICODE).whole(view.state.tokens.frames[0])
        command, _, payload = indented(whole).partition(" ")
        assert command == "TOKEN"
        assert json.loads(payload)[0]["token"] == 7
        assert indented("no JSON") == "no JSON"


class TestTime:
    """When tokens came."""

    def test_figures(self, view: View) -> None:
        """The stream under the cursor, then all: percentiles of gaps between frames, tokens a frame, stalls."""
        shown = "\n".join(rows(TimeDocument(view, UNICODE), 70))
        for part in (
            "stream 1/1",
            "p50 100ms",
            "max 100ms",
            "ttft 200ms",
            "1.5 tokens/frame",
            "0 stalls",
            "all streams",
        ):
            assert part in shown

    def test_a_stall_stands_out(self) -> None:
        """A gap over 50 ms and four medians is a mark of its own."""
        times = [0.2, 0.21, 0.22, 0.23, 0.24, 1.24, 1.25, 1.26]
        view = view_of([request(0.1, 1), *(tokens(t, (1, 7, -0.1)) for t in times)])
        shown = rows(TimeDocument(view, UNICODE), 60)
        assert shown[1].index("▲") == 4
        assert "1 stall" in shown[2]
        assert "^" in text(spark_line(view, ASCII, 60))

    def test_one_token_has_no_gap(self) -> None:
        """That is said, in the pane and in the line."""
        view = view_of([request(0.1, 1), tokens(0.2, (1, 7, -0.1), (1, 8, -0.1))])
        assert "no gaps between frames yet" in "\n".join(rows(TimeDocument(view, UNICODE), 60))
        assert "no gaps" in text(spark_line(view, UNICODE, 60))
