"""What a model thinks before its answer is seen apart from it: live and from a file, over every wire that tells it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from lmtool.core.logprobs.heat import THOUGHT_COLORS
from lmtool.terminal.tui import exports
from lmtool.terminal.tui.documents.text import SplitDocument, TextDocument
from lmtool.terminal.tui.documents.tokens import DetailDocument, InterleavedDocument, TableDocument
from lmtool.terminal.tui.event_store import TraceFile
from lmtool.terminal.tui.plain import PlainLines, Sentences
from lmtool.terminal.tui.styles import UNICODE
from lmtool.terminal.tui.view import View
from lmtool.trace import filter as filters
from lmtool.trace.events import Event, Response, Vocab
from tests.terminal.tui.states import asked, rows, sse, view_of
from tests.trace.conftest import generate, token, tokens
from tests.trace.test_session_actions import action, leaf, message

RECORDING = Path(__file__).parents[3] / "recordings/thoughts.lmtp.jsonl"
STARTED = Response(0.1, 1, 200, "OK", {"content-type": "text/event-stream"})
LMTP = [
    generate(0.0, reasoning=True),
    tokens(0.1, token(7, logprob=-2.0, text="", reasoning="Hm"), token(8, text="", reasoning="")),
    tokens(0.2, token(9, text="Yes") | {"finish_reason": "stop"}),
]
POOL = [
    generate(0.0, reasoning=True),
    tokens(0.1, {"stream_id": 1, "finish_reason": None, "text": "", "reasoning": "Hm"}),
    tokens(0.2, {"stream_id": 1, "finish_reason": "stop", "text": "Yes"}),
]


def chat(name: str) -> list[Event]:
    """A chat completion whose thought has this name; logprobs where it is lmtool's own."""
    own = name == "reasoning_content"
    thought = {"logprobs": {"content": None, name: [{"token": "Hm", "logprob": -2.0}]}} if own else {}
    answer = {"logprobs": {"content": [{"token": "Yes", "logprob": -0.5}]}} if own else {}
    return [
        asked(0.0, "/v1/chat/completions", messages=[{"role": "user", "content": "Is it?"}]),
        STARTED,
        sse(0.2, {"choices": [{"index": 0, "delta": {name: "Hm"}, **thought, "finish_reason": None}]}),
        sse(0.3, {"choices": [{"index": 0, "delta": {"content": "Yes"}, **answer, "finish_reason": "stop"}]}),
    ]


def deltas(path: str, *values: dict[str, object]) -> list[Event]:
    """A streamed answer of these events."""
    return [asked(0.0, path), STARTED, *[sse(0.2 + i / 10, value) for i, value in enumerate(values)]]


WIRES = {
    "LMTP": LMTP,
    "LMTP, a pool": POOL,
    "LMTP, the recorder knows the vocabulary": [Vocab(0.0, 0, {7: "Hm", 8: "", 9: "Yes"}), *LMTP],
    "chat": chat("reasoning_content"),
    "chat of others": chat("reasoning"),
    "messages": deltas(
        "/v1/messages",
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Yes"}},
    ),
    "responses": deltas(
        "/v1/responses",
        {"type": "response.reasoning_text.delta", "delta": "Hm"},
        {"type": "response.output_text.delta", "delta": "Yes"},
    ),
    "Evergreen": [
        message(">", actions=(action(outputs=("reasoning", "response")),), time=0.0),
        message("<", leaf("reasoning", "Hm"), time=0.1),
        message("<", leaf("response", "Yes"), time=0.2),
    ],
}  # fmt: skip


def styles_of(view: View) -> list[tuple[str, str]]:
    """Text and style of each token of the first stream that shows any."""
    return [(text, style) for text, style, _ in exports.tokens_of(view, view.state.streams[0]) if text]


@pytest.mark.parametrize("wire", list(WIRES))
def test_each_wire(wire: str) -> None:
    """Tokens of the thought have a style of their own, whatever colours tell; those of the answer do not."""
    for heat in ("prob", "gap", "stream"):
        view = view_of(WIRES[wire])
        view.heat = heat
        (thought, thoughts_style), (answer, answers_style) = styles_of(view)
        assert (thought, answer) == ("Hm", "Yes")
        assert thoughts_style.startswith("thought")
        assert not answers_style.startswith("thought")


def test_heat_of_a_thought() -> None:
    """It is told as that of an answer, by eight steps of another colour."""
    assert styles_of(view_of(LMTP))[0][1] == "thought4"


def test_a_recorded_trace() -> None:
    """The same from a file, whose lines are read in bulk."""
    with closing(TraceFile(RECORDING)) as file:
        assert file.load(10)
        view = View(file.state, file, live=False)
        (stream, *_) = file.state.streams
        thoughts = [file.state.is_thought(row) for row in stream.rows]
        assert thoughts == sorted(thoughts, reverse=True)
        assert 0 < sum(thoughts) < len(thoughts)
        assert [style.startswith("thought") for _, style, _ in exports.tokens_of(view, stream)] == thoughts


def test_documents() -> None:
    """A wall stands before the answer; lists and the pane of one token tell it, too."""
    view = view_of(LMTP)
    for document in (TextDocument(view, UNICODE), SplitDocument(view, UNICODE)):
        assert any("Hm│▕Yes▏" in row for row in rows(document, 60))
    view.choose_token(0)
    for listed in (InterleavedDocument(view, UNICODE), TableDocument(view, UNICODE)):
        lines = [listed.line(y, 100) for y in range(listed.height(100))]
        assert sum(any(run.style.startswith("thought") for run in line) for line in lines) == 2
    assert "thought" in " ".join(rows(DetailDocument(view, UNICODE), 60))
    view.choose_token(2)
    assert "thought" not in " ".join(rows(DetailDocument(view, UNICODE), 60))


@pytest.mark.parametrize("form", ["html", "ansi", "svg", "csv", "markdown"])
def test_exports(form: str, tmp_path: Path) -> None:
    """A file tells it in its own way."""
    text = exports.write(form, view_of(LMTP), tmp_path).read_text(encoding="utf-8")
    ink, ground = THOUGHT_COLORS[4]
    if form == "html":
        assert '<span class="thought4" title="thought · p 0.135">Hm</span>' in text
        assert ".thought4 {" in text
        assert '<span class="heat2" title="p 0.607 · rank 1">Yes</span>' in text
    elif form == "ansi":
        assert f"\x1b[3;38;5;{ink};48;5;{ground}mHm\x1b[0m" in text
    elif form == "svg":
        assert text.count('font-style="italic"') == 1
        assert exports.rgb(ground) in text
    elif form == "csv":
        assert [row["thought"] for row in csv.DictReader(io.StringIO(text))] == ["1", "1", ""]
    else:
        assert "```thought\nHm\n```\n\n```text\nYes\n```" in text


def printed(printer: type[PlainLines | Sentences], events: Sequence[Event], expression: str = "") -> list[str]:
    """What is printed where there is no screen."""
    lines: list[str] = []
    one = printer(lines.append, filters.parse(expression) if expression else None)
    one.feed(events)
    one.finish()
    return lines


@pytest.mark.parametrize("wire", ["LMTP", "chat", "messages"])
def test_without_a_screen(wire: str) -> None:
    """Lines say it with a word; sentences read the thought before the text."""
    lines = [line for line in printed(PlainLines, WIRES[wire]) if '"Hm"' in line or '"Yes"' in line]
    assert [line.split(" · ")[-1] == "thought" for line in lines] == [True, False]
    (said,) = printed(Sentences, WIRES[wire])
    assert said.endswith("Thought: Hm Text: Yes")


def test_filter() -> None:
    """`thought` lets through the tokens of thoughts, `!thought` those of answers."""
    for expression, found in (("thought", "Hm"), ("!thought", "Yes")):
        lines = [line for line in printed(PlainLines, WIRES["chat"], expression) if "piece" in line or ' "' in line]
        assert len(lines) == 1
        assert found in lines[0]
