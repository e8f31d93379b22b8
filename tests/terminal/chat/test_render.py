"""Views of arriving tokens."""

from __future__ import annotations

import json
import math
from collections import deque

import pytest

from lmtool.core.types import ModelInfo, TokenOutput
from lmtool.settings.terminal import Output
from lmtool.terminal.chat.options import OutputOptions
from lmtool.terminal.chat.render import (
    BufferedView,
    InterleavedView,
    JsonLinesView,
    JsonView,
    RawView,
    StyledOutput,
    TableView,
    TextView,
    TokenColorer,
    View,
    safe,
    stats_lines,
    text_styler,
)
from lmtool.terminal.chat.running_streams import Arrival
from lmtool.terminal.chat.stream_record import StreamRecord

PIPE = StyledOutput(Output(color=False, note_color=False, terminal=False), "none")
TERMINAL = StyledOutput(Output(color=True, note_color=True, terminal=True), "256")
NO_COLOR = StyledOutput(Output(color=False, note_color=False, terminal=True), "attributes")
NO_TINT = TokenColorer("none")


def arrive(record: StreamRecord, *texts: str, p: float = 0.5, last: bool = False) -> list[Arrival]:
    """Return tokens of these texts that come together."""
    arrivals = []
    for i, text in enumerate(texts):
        output = TokenOutput(
            record.index,
            token=len(record.tokens),
            logprob=math.log(p),
            top_logprobs=((len(record.tokens), math.log(p)), (99, math.log(p / 2))),
            text=text,
            finish_reason="stop" if last and i == len(texts) - 1 else None,
        )
        record.add(record.sent + 0.001, output)
        arrivals.append((record, record.sent + 0.001, output))
    return arrivals


def test_pipe_gets_the_text_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe gets the model's text and a line feed where it ends in none: no escapes of ours, controls as they are."""
    for last, end in (("lo\x1b[31m", "\n"), ("lo\n", ""), ("", "\n")):
        view = TextView(PIPE, TokenColorer("none", "prob"))
        view.show(arrive(StreamRecord(1, 0.0), "Hel", last))
        view.close()
        assert capsys.readouterr().out == f"Hel{last}{end}"
    TextView(PIPE, TokenColorer("none", "prob")).close()
    assert capsys.readouterr().out == ""


def test_terminal_is_safe_and_left_on_a_fresh_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A model's control characters are shown, never sent; the cursor ends at the beginning of a line."""
    view = TextView(TERMINAL, TokenColorer("256"))
    view.show(arrive(StreamRecord(1, 0.0), "a\x1b[31m"))
    view.close()
    assert capsys.readouterr().out == "a⟨1b⟩[31m\n"
    view = TextView(TERMINAL, TokenColorer("256"))
    view.show(arrive(StreamRecord(1, 0.0), "a\n"))
    view.close()
    assert capsys.readouterr().out == "a\n"


def test_heat(capsys: pytest.CaptureFixture[str]) -> None:
    """Each token has the style of its step; a line feed ends a style, so that no background runs on."""
    view = TextView(TERMINAL, TokenColorer("256", "prob"))
    record = StreamRecord(1, 0.0)
    view.show([*arrive(record, "sure", p=0.99), *arrive(record, "a\nb", p=0.001)])
    style = "38;5;16;48;5;222"
    assert capsys.readouterr().out == f"\x1b[38;5;231;48;5;17msure\x1b[0m\x1b[{style}ma\x1b[0m\n\x1b[{style}mb\x1b[0m"


def test_heat_without_colour(capsys: pytest.CaptureFixture[str]) -> None:
    """NO_COLOR on a terminal: dim, plain, bold, bold and underlined."""
    view = TextView(NO_COLOR, TokenColorer("attributes", "prob"))
    record = StreamRecord(1, 0.0)
    for text, p in (("a", 0.6), ("b", 0.2), ("c", 0.05), ("d", 0.001)):
        view.show(arrive(record, text, p=p))
    assert capsys.readouterr().out == "\x1b[2ma\x1b[0mb\x1b[1mc\x1b[0m\x1b[1;4md\x1b[0m"
    assert [text for text, _ in TokenColorer("attributes", "prob").legend()][:3] == ["prob ", " ≥.9 ", " "]
    assert TokenColorer("none", "prob").legend() == []


def test_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal Markdown is drawn, in one answer and in several; piped text stays as it is."""
    display = OutputOptions(markdown=True)
    view: View = TextView(TERMINAL, text_styler(TERMINAL, display, NO_TINT))
    view.show(arrive(StreamRecord(1, 0.0), "a ", "**bo", "ld**"))
    view.close()
    assert capsys.readouterr().out == "a \x1b[1mbo\x1b[0m\x1b[1mld\x1b[0m\n"
    view = InterleavedView.of(TERMINAL, lambda: text_styler(TERMINAL, display, NO_TINT), 1)
    view.show(arrive(StreamRecord(1, 0.0), "# Title\n", "`x`"))
    view.close()
    assert "\x1b[1;4mTitle\x1b[0m\n" in capsys.readouterr().out
    view = TextView(PIPE, text_styler(PIPE, display, NO_TINT))
    view.show(arrive(StreamRecord(1, 0.0), "# **b**"))
    view.close()
    assert capsys.readouterr().out == "# **b**\n"
    assert text_styler(TERMINAL, OutputOptions(), NO_TINT) is NO_TINT


def test_echo(capsys: pytest.CaptureFixture[str]) -> None:
    """The prompt stands in front once."""
    view = TextView(PIPE, NO_TINT, echo="Once")
    view.show(arrive(StreamRecord(1, 0.0), " upon"))
    view.show(arrive(StreamRecord(1, 0.0), " a"))
    assert capsys.readouterr().out == "Once upon a"


def test_lanes_are_labelled(capsys: pytest.CaptureFixture[str]) -> None:
    """Streams are interleaved by lines, each with its stream's number."""
    view = InterleavedView.of(PIPE, lambda: NO_TINT, 2)
    one, two = StreamRecord(1, 0.0), StreamRecord(2, 0.0)
    view.show([*arrive(one, "a"), *arrive(two, "x"), *arrive(one, "b\n"), *arrive(two, "y", last=True)])
    view.show(arrive(one, "c", last=True))
    view.close()
    assert capsys.readouterr().out == "1│ ab\n2│ xy\n1│ c\n"


def test_held_back(capsys: pytest.CaptureFixture[str]) -> None:
    """`--no-stream` shows nothing until the end, then everything, stream by stream."""
    view = BufferedView(InterleavedView.of(PIPE, lambda: NO_TINT, 2))
    one, two = StreamRecord(1, 0.0), StreamRecord(2, 0.0)
    view.show([*arrive(two, "x", last=True), *arrive(one, "a", last=True)])
    assert capsys.readouterr().out == ""
    view.close()
    assert capsys.readouterr().out == "1│ a\n2│ x\n"


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    """One row a token with id, text, p, bits, rank and alternatives: ids where no tokenizer is known."""
    record = StreamRecord(1, 0.0)
    TableView(PIPE, NO_TINT).show(arrive(record, " the", "\n"))
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["#", "id", "token", "p", "bits", "rank", "alternatives"]
    assert first.split() == ["0", "0", "'", "the'", ".500", "1.0", "1", "#0", ".500", "#99", ".250"]
    assert "'\\n'" in second
    TableView(PIPE, NO_TINT, {1: "a", 99: "b"}.get, several=True).show(arrive(StreamRecord(2, 0.0), "x"))  # type: ignore[arg-type] # the two ids it is asked for
    assert capsys.readouterr().out.splitlines()[1].startswith(" 2  0")


def test_table_fits_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a row is never wider than it; in a pipe nothing is cut."""
    monkeypatch.setenv("COLUMNS", "60")
    record = StreamRecord(1, 0.0)
    many = tuple((i, math.log(0.01)) for i in range(50))
    output = TokenOutput(1, token=1, logprob=-1.0, top_logprobs=many, text="x")
    record.add(0.0, output)
    TableView(StyledOutput(TERMINAL.out, "none"), NO_TINT).show([(record, 0.0, output)])
    assert all(len(line) <= 60 for line in capsys.readouterr().out.splitlines())
    TableView(PIPE, NO_TINT).show([(record, 0.0, output)])
    assert "#49" in capsys.readouterr().out


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object a line and event, in the fields of LMTP's TOKEN, with text and time."""
    JsonLinesView(PIPE).show(arrive(StreamRecord(1, 0.0), "a", "ü", last=True))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["token"], line["text"], line["finish_reason"], line["time"]) for line in lines] == [
        (0, "a", None, 0.001),
        (1, "ü", "stop", 0.001),
    ]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object for one stream, a list for several; nothing before the end."""
    view = JsonView(PIPE, ModelInfo("m", "m", "x"))
    view.show(arrive(StreamRecord(1, 0.0), "a", last=True))
    assert capsys.readouterr().out == ""
    view.close()
    assert json.loads(capsys.readouterr().out)["text"] == "a"
    several = JsonView(PIPE, ModelInfo("m", "m", "x"), 2)
    several.show([*arrive(StreamRecord(2, 0.0), "b"), *arrive(StreamRecord(1, 0.0), "a")])
    several.close()
    assert [entry["text"] for entry in json.loads(capsys.readouterr().out)] == ["a", "b"]


def test_raw(capsys: pytest.CaptureFixture[str]) -> None:
    """The server's frames as they are, each once."""
    frames = deque(["MSG [{}]", 'TOKEN [{"token":1}]'])
    view = RawView(PIPE, frames)
    view.show([])
    view.close()
    assert capsys.readouterr().out == 'MSG [{}]\nTOKEN [{"token":1}]\n'


def test_closed_without_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    """A stream that brought nothing leaves nothing on the screen."""
    TextView(TERMINAL, NO_TINT).close()
    InterleavedView.of(TERMINAL, lambda: NO_TINT, 2).close()
    TableView(TERMINAL, NO_TINT).close()
    assert capsys.readouterr().out == ""


def test_stats_of_several_are_labelled() -> None:
    """Figures of several streams say whose they are."""
    one, two = StreamRecord(1, 0.0), StreamRecord(2, 0.0)
    arrive(one, "a", last=True)
    assert stats_lines([one]) == ["stop · 1 token · ttft 1.0 ms · ppl 2.0"]
    assert stats_lines([one, two])[1].startswith("2│ ")


def test_tabs_are_blanks_where_columns_count() -> None:
    """In interleaver on a terminal a tab must not jump."""
    assert safe(TERMINAL, "a\tb\x07") == "a    b⟨07⟩"
    assert safe(PIPE, "a\tb") == "a\tb"
