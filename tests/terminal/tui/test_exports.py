"""Streams and screens in forms for elsewhere."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lmtool.core.errors import FileError, UsageError
from lmtool.terminal.tui import exports
from lmtool.terminal.tui.documents.tokens import DetailDocument
from lmtool.terminal.tui.event_store import EventStore, TraceFile
from lmtool.terminal.tui.exports import preamble, without_other_streams
from lmtool.terminal.tui.headless import size_of, snapshot
from lmtool.terminal.tui.options import InspectorOptions
from lmtool.terminal.tui.state import State
from lmtool.terminal.tui.styles import UNICODE
from lmtool.terminal.tui.view import View
from lmtool.trace.codec import Header
from lmtool.trace.events import Close, Event, Frame, JsonText, Open, Piece, Request, Response, Vocab
from lmtool.trace.reader import TraceReader
from lmtool.trace.writer import TraceWriter
from tests.terminal.tui.states import asked, chunk, rows, sse
from tests.trace.conftest import generate, token, tokens
from tests.trace.test_formats import HOSTILE, hostile_trace

WORDS = {5: "Say", 11: " <b>", 12: "\n", 13: "\x1b[2J", 14: " 日本"}


TOP = {"11": -0.1, "14": -3.0}


@pytest.fixture
def view() -> Iterator[View]:
    """Two interleaved streams, the first of them with markup, controls, a line break and wide characters."""
    events: list[Event] = [
        Open(0.0, 1),
        Vocab(0.0, 0, WORDS),
        generate(0.1, 1),
        generate(0.1, 2),
        tokens(0.2, token(11, 1, top_logprobs=TOP), token(14, 2)),
        tokens(0.3, token(12, 1), token(14, 2)),
        tokens(0.4, token(13, 1, logprob=-9.0)),
        tokens(0.5, token(14, 1) | {"finish_reason": "stop"}, token(14, 2)),
    ]
    with shown(events) as view:
        yield view


@contextlib.contextmanager
def shown(events: list[Event]) -> Iterator[View]:
    """A view of events that came live."""
    spool = EventStore()
    spool.feed(events)
    yield View(spool.state, spool)
    spool.close()


def written(form: str, view: View, folder: Path) -> str:
    return exports.write(form, view, folder).read_text(encoding="utf-8")


@pytest.mark.parametrize("form", [*sorted(set(exports.FORMS) - {"trace"}), "snapshot"])
def test_nothing_of_a_hostile_trace_acts_or_hides(form: str, tmp_path: Path) -> None:
    """Labels, ids, texts, models and errors of strangers: in no form, nor in the name of its file."""
    with shown([Open(0.0, 1), *hostile_trace()]) as view:
        for stream in view.state.streams:
            view.choose_stream(stream.index)
            if form == "snapshot":
                text = "\n".join(rows(DetailDocument(view, UNICODE), 120))
            else:
                path = exports.write(form, view, tmp_path)
                assert path.name.isascii()
                assert len(path.name) < 120
                text = path.read_text(encoding="utf-8")
            text = re.sub(r"\x1b\[[0-9;]*m", "", text)  # colours are our own
            assert not [c for c in text if c not in "\n\t" and (c < " " or (c in HOSTILE and c > "~"))]
            assert form not in ("html", "svg") or "<script>alert" not in text


RECORDING = Path(__file__).parents[3] / "recordings/two_streams_interleaved.lmtp.jsonl"


class TestExports:
    """One stream in other forms."""

    def test_a_trace_of_one_stream(self, view: View, tmp_path: Path) -> None:
        """It holds this stream's request and outputs and no others, and is complete."""
        path = exports.write("trace", view, tmp_path)
        assert path.name == "stream-1-1.lmtp.jsonl"
        reader, state = TraceReader(path), State()
        state.feed(list(reader))
        assert [stream.label for stream in state.streams] == ["1/1"]
        assert state.text(state.streams[0]) == " <b>\n\x1b[2J 日本"
        assert state.streams[0].finish_reason == "stop"
        assert reader.ending is not None
        assert reader.ending.state == "complete"

    def test_frames_that_json_cannot_say(self, tmp_path: Path) -> None:
        """A frame with -Infinity, and a refusal, are shared out as any other is."""
        entries = [token(11, 1, top_logprobs={"14": -math.inf}), token(14, 2)]
        refusals = [{"stream_id": of, "error": f"no {of}"} for of in (1, 2)]
        events: list[Event] = [
            Open(0.0, 1),
            Vocab(0.0, 0, WORDS),
            generate(0.1, 1),
            generate(0.1, 2),
            Frame(0.2, "<", 1, f"TOKEN {json.dumps(entries)}"),
            Frame(0.3, "<", 1, JsonText("MSG", refusals, "py")),
        ]
        with shown(events) as view:
            path = exports.write("trace", view, tmp_path)
        state = State()
        state.feed(list(TraceReader(path)))
        assert [stream.label for stream in state.streams] == ["1/1"]
        assert state.text(state.streams[0]) == " <b>"
        text = path.read_text()
        assert "Infinity" in text
        assert "no 2" not in text

    def test_a_table(self, view: View, tmp_path: Path) -> None:
        """A row a token, with text and logprob."""
        rows = list(csv.DictReader(io.StringIO(written("csv", view, tmp_path))))
        assert [row["token"] for row in rows if row["token"]] == ["11", "12", "13", "14"]

    def test_a_document(self, view: View, tmp_path: Path) -> None:
        """Request and text of the stream."""
        document = written("markdown", view, tmp_path)
        assert "## 1/1 · GENERATE" in document
        assert "## 1/2" not in document

    def test_coloured_text(self, view: View, tmp_path: Path) -> None:
        """Colours around each token; controls of the model are written out."""
        text = written("ansi", view, tmp_path)
        assert "\x1b[2J" not in text
        assert "⟨1b⟩[2J" in text
        assert text.count("\x1b[38;5;") == 3
        assert "\n" in text

    def test_a_picture(self, view: View, tmp_path: Path) -> None:
        """Well-formed XML with a text for each token and nothing from the network."""
        svg = written("svg", view, tmp_path)
        root = ET.fromstring(svg)
        texts = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
        assert " <b>" in texts
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")

    def test_a_page(self, view: View, tmp_path: Path) -> None:
        """Markup of a model stays text; each token tells its alternatives."""
        page = written("html", view, tmp_path)
        assert "<b>" not in page
        assert "&lt;b&gt;" in page
        assert "rank 1" in page
        assert "\x1b" not in page

    def test_which_distribution_a_page_is_of(self, tmp_path: Path) -> None:
        """A perplexity that is not the model's own says so, and a rank that is a bound is shown as one."""
        top = {"1": -0.5, "2": -3.0}
        for bias, told in (({}, "perplexity 20.0855\n"), ({"3": 1.0}, "perplexity 20.0855 (biased)")):
            answer = tokens(0.1, token(2, logprob=-3.0, top_logprobs=top))
            with shown([generate(0.0, logit_bias=bias), answer]) as view:
                page = written("html", view, tmp_path)
                assert told in page
                assert "rank &gt;1" in page

    def test_long_lines_are_broken_between_tokens(self) -> None:
        """A picture's line ends where the next token does not fit."""
        lines = exports._wrapped([("x" * 60, "", ""), ("y" * 60, "", ""), ("z" * 200, "", "")])
        assert [len(line) for line in lines] == [1, 1, 1]

    def test_what_is_seen_is_what_is_written(self, view: View, tmp_path: Path) -> None:
        """A paused view exports the stream as it was then."""
        view.moment = 0.35
        rows = list(csv.DictReader(io.StringIO(written("csv", view, tmp_path))))
        assert [row["token"] for row in rows] == ["11", "12"]

    def test_an_http_stream(self, tmp_path: Path) -> None:
        """The trace of a completion has its request, the head of the response and its pieces."""
        chunk = {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]}
        body = JsonText("", {"model": "m", "messages": [{"role": "user", "content": "?"}], "stream": True}, "py")
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        events: list[Event] = [
            Open(0.0, 1),
            Request(0.1, 1, "POST", "/v1/chat/completions", {}, body),
            Response(0.2, 1, 200, "OK", {"content-type": "text/event-stream"}),
            Piece(0.3, "sse", 1, JsonText("data: ", chunk, "py")),
            Piece(0.4, "sse", 1, JsonText("data: ", last, "py")),
        ]
        with shown(events) as view:
            kinds = [type(event).__name__ for event in TraceReader(exports.write("trace", view, tmp_path))]
        assert kinds == ["Open", "Request", "Response", "Piece", "Piece", "End"]

    def test_nothing_is_overwritten(self, view: View, tmp_path: Path) -> None:
        """A second export gets another name; a named file is replaced only when asked."""
        first, second = (exports.write("csv", view, tmp_path) for _ in range(2))
        assert (first.name, second.name) == ("stream-1-1.csv", "stream-1-1-2.csv")
        for form in ("csv", "trace"):
            with pytest.raises(FileError, match="exists already"):
                exports.write_to(first, form, view, view.state.streams[0])
        exports.write_to(first, "html", view, view.state.streams[0], overwrite=True)
        assert first.read_text().startswith("<!doctype")
        with pytest.raises(FileError, match="cannot write"):
            exports.write("csv", view, tmp_path / "missing")

    def test_no_stream(self, tmp_path: Path) -> None:
        """There is nothing to write before a stream began."""
        with shown([]) as view, pytest.raises(UsageError, match="no stream yet"):
            exports.write("csv", view, tmp_path)

    def test_the_form_by_the_name(self) -> None:
        """The ending of a file says what to write."""
        assert exports.form_of(Path("a.lmtp.jsonl")) == "trace"
        assert exports.form_of(Path("a.md")) == "markdown"
        with pytest.raises(UsageError) as caught:
            exports.form_of(Path("a.doc"))
        assert ".html" in caught.value.hints[0]

    @pytest.mark.parametrize(
        ("number", "shown"), [(16, "#000000"), (231, "#ffffff"), (215, "#ffaf5f"), (232, "#080808")]
    )
    def test_colours(self, number: int, shown: str) -> None:
        """Numbers of the 256 colours as web colours."""
        assert exports.rgb(number) == shown

    def test_other_frames_stay_out(self, view: View) -> None:
        """Frames of other streams on the same connection do not belong to the export."""
        events = list(exports.events_of(view, view.state.streams[1]))
        for event in events:
            if isinstance(event, Frame) and event.command == "TOKEN":
                assert isinstance(event.content, JsonText)
                assert {entry["stream_id"] for entry in event.content.value} == {2}  # type: ignore[union-attr]

    def test_one_choice_of_an_http_answer(self, tmp_path: Path) -> None:
        """A table and a document of a choice hold that choice alone; alternatives are named by their texts."""
        logprobs = {"tokens": ["b"], "token_logprobs": [-0.5], "top_logprobs": [{"b": -0.5, " c:": -1.5}]}
        events = [
            asked(0.0, n=2),
            sse(0.1, chunk("a")),
            sse(0.2, chunk("b", 1, logprobs=logprobs, finish_reason="stop")),
        ]
        with shown(events) as view:
            view.choose_stream(1)
            (row,) = csv.DictReader(io.StringIO(written("csv", view, tmp_path), newline=""))
            assert (row["stream"], row["text"], row["finish_reason"]) == ("1/1.1", "b", "stop")
            assert row["top_logprobs"] == '"b":-0.5 " c:":-1.5'
            document = written("markdown", view, tmp_path)
            assert ("```text\nb\n```" in document, document.count("## ")) == (True, 1)


class TestSnapshot:
    """Pictures without a terminal."""

    @pytest.mark.parametrize("text", ["120", "x", "0x10", "5x5", "120x", "9999x20", "120 x 36"])
    def test_sizes_that_are_none(self, text: str) -> None:
        """They are refused with an example."""
        with pytest.raises(UsageError) as caught:
            size_of(text)
        assert "120x36" in caught.value.hints[0]

    async def test_the_same_picture_each_time(self) -> None:
        """The end of a trace, with its streams, in fonts that every machine has and none from the network."""
        size = size_of("120x36")
        pictures = []
        for _ in range(2):
            with closing(TraceFile(RECORDING)) as file:
                pictures.append(await snapshot(file, InspectorOptions(), size))
        assert pictures[0].count("1/2") == pictures[1].count("1/2") > 0
        assert "@font-face" not in pictures[0]
        assert "cdnjs" not in pictures[0]
        assert "DejaVu Sans Mono" in pictures[0]

    async def test_a_moment(self) -> None:
        """At its first second a trace has no second stream yet."""
        with closing(TraceFile(RECORDING)) as file:
            svg = await snapshot(file, InspectorOptions(at=0.0), (120, 36))
        assert "1/2" not in svg


def test_what_runs_is_whole() -> None:
    """Requests of streams that run and their tokens so far, in order; nothing of streams that are over."""
    spool = EventStore()
    together = tokens(0.3, token(5, 1), token(6, 2))
    spool.feed(
        [
            Open(0.0, 1), generate(0.1, 1), generate(0.2, 2), together,
            tokens(0.4, token(7, 1) | {"finish_reason": "stop"}), tokens(0.5, token(8, 2)), generate(0.6, 3),
        ]
    )  # fmt: skip
    assert preamble(spool) == [
        generate(0.2, 2),
        tokens(0.3, token(6, 2)),
        tokens(0.5, token(8, 2)),
        generate(0.6, 3),
    ]
    spool.feed([Close(0.7, 1, "client")])
    assert preamble(spool) == []


def test_a_stream_that_nobody_announced() -> None:
    """Without its request there is no beginning to write."""
    spool = EventStore()
    spool.feed([tokens(0.1, token(5, 9))])
    assert preamble(spool) == []


def test_an_answer_over_http() -> None:
    """A request and everything on its connection since."""
    spool, other = EventStore(), generate(0.15, 1, connection=2)
    events = [asked(0.1), other, sse(0.2, chunk(" a")), sse(0.3, chunk(" b"))]
    spool.feed(events)
    assert preamble(spool) == events


def test_a_file_runs_no_more(tmp_path: Path) -> None:
    """Streams of a file that breaks off do not run; what a server answers beside it does."""
    writer = TraceWriter(tmp_path / "a.jsonl", Header(json="py"))
    writer.write(generate(0.0))
    writer.close(1.0)
    file = TraceFile(tmp_path / "a.jsonl")
    file.load(1.0)
    file.feed([generate(2.0, 5, connection=2), tokens(2.1, token(5, 5), connection=2)])
    assert [event.time for event in preamble(file)] == [2.0, 2.1]


def test_ids_of_every_kind() -> None:
    """The number 3 and the text "3" are two streams; a frame that has one stream only stays as it is."""
    frame = tokens(0.1, token(5, 3), token(6, "3"))  # type: ignore[arg-type] # any JSON value may be an id
    assert without_other_streams(frame, {"1/3"}) == tokens(0.1, token(5, 3))
    assert without_other_streams(frame, {'1/"3"'}) == tokens(0.1, token(6, "3"))  # type: ignore[arg-type] # as above
    assert without_other_streams(frame, {"1/3", '1/"3"'}) is frame
