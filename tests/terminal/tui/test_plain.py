"""The inspector without a screen."""

from __future__ import annotations

from lmtool.terminal.tui.plain import PlainLines, Sentences
from lmtool.trace.events import Drop, Event, Frame, JsonText, Open, Remark, Vocab
from lmtool.trace.filter import parse
from tests.trace.conftest import generate, token, tokens

CONVERSATION: tuple[Event, ...] = (
    Open(0.0, 1),
    Vocab(0.0, 0, {11: " a", 12: " cold", 13: "\x1b[2J"}),
    generate(0.1),
    tokens(0.2, token(11, logprob=-0.1)),
    tokens(0.3, token(12, logprob=-5.0)),
    tokens(0.4, token(13) | {"finish_reason": "length"}),
)


def said(kind: type[PlainLines | Sentences], events: tuple[Event, ...] = CONVERSATION, chosen: str = "") -> list[str]:
    lines: list[str] = []
    printer = kind(lines.append, parse(chosen) if chosen else None)
    printer.feed(events)
    printer.finish()
    return lines


def test_a_line_an_event() -> None:
    """Each event and token has its line, in the words of `trace show`; vocabularies have none."""
    lines = said(PlainLines)
    assert len(lines) == 5
    assert lines[2].split() == ["0.200000", "1/1", "<", "11", '"', 'a"', "·", "p", ".905"]


def test_controls_of_a_model_are_written_out() -> None:
    """What would steer a terminal is shown as text."""
    assert all("\x1b" not in line for line in said(PlainLines))
    assert any("\\u001b" in line for line in said(PlainLines))


def test_a_filter_leaves_what_it_matches() -> None:
    """Only requests and tokens that match are told, nothing else."""
    assert [line.split()[3] for line in said(PlainLines, chosen="p<.1")] == ["12"]
    assert len(said(PlainLines, chosen="sid:1")) == 4


def test_sentences_at_the_end_of_a_stream() -> None:
    """A stream is told when it ends: how, how fast, what was least likely, and its text."""
    (line,) = said(Sentences)
    assert line.startswith("Stream 1/1, GENERATE, ended with length. 3 tokens, 10 a second.")
    assert "The first one came after 100 milliseconds." in line
    assert "Least likely: token 2, ' cold', with 0.67 percent." in line
    assert "Text: a cold" in line


def test_streams_that_do_not_end_well() -> None:
    """Failures, losses and what still runs are told for what they are."""
    failed = Frame(0.3, "<", 1, JsonText("TOKEN", [{"stream_id": 1, "error": "too long"}], "py"))
    assert said(Sentences, (generate(0.1), failed))[0].startswith("Stream 1/1, GENERATE, failed: too long. 0 tokens.")
    assert "was cut off" in said(Sentences, (generate(0.1), Drop(0.5, 1)))[0]
    assert said(Sentences, (generate(0.1),)) == ["Stream 1/1, GENERATE, has not ended. 0 tokens."]
    assert said(Sentences, (Remark(0.0, "note", 0, "hello"),)) == ["Note: hello"]


def test_a_filter_chooses_streams_to_tell() -> None:
    """A stream is told when one of its tokens matches."""
    assert len(said(Sentences, chosen="p<.1")) == 1
    assert said(Sentences, chosen="p<.001") == []


def test_long_texts_are_cut() -> None:
    """A text of many pages is not read out whole."""
    words = Vocab(0.0, 0, {11: "word " * 1000})
    (line,) = said(Sentences, (words, generate(0.1), tokens(0.2, token(11) | {"finish_reason": "stop"})))
    assert line.endswith("(and more)")


def test_filters_that_ask_how_streams_end() -> None:
    """Live, a token is told as soon as it is known: of a running stream at once, of one that fails at its end."""
    fails = tokens(0.5, {"stream_id": 2, "error": "no"})
    lines: list[str] = []
    failing, running = PlainLines(lines.append, parse("err tok:12")), PlainLines(lines.append, parse("run tok:12"))
    for one in (failing, running):
        one.feed([generate(0.0), generate(0.0, 2), tokens(0.1, token(12), token(12, 2))])
    assert [line.split()[1] for line in lines] == ["1/1", "1/2"]
    lines.clear()
    for one in (failing, running):
        one.feed([fails])
        one.finish()
    assert [line.split()[:2] for line in lines] == [["0.100000", "1/2"]]
