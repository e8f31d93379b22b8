"""GPT-OSS's channels: thoughts, answers and calls of one stream, wherever it is cut."""

from __future__ import annotations

import pytest

from lmtool.inference.text.harmony import ChannelReader, ChannelText, HarmonyChannels
from tests.inference.text.test_thought_reader import read

CALLED = '<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": 1}<|call|>'
CASES = [
    (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        ("Hm.", "Yes."),
    ),
    ("<|channel|>final<|message|>Yes.<|return|>", ("", "Yes.")),
    ("<|channel|>analysis<|message|>Hm, <|en", ("Hm, <|en", "")),
    ("<|channel|>analysis<|mess", ("", "")),
    ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assist", ("Hm.", "")),
    (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>" + CALLED,
        ("a\nb", "I look." + CALLED),
    ),
    ("<|channel|>analysis<|message|>a<|end|>" + CALLED[:-9], ("a", CALLED[:-9])),
    (" to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
     ("", " to=functions.f<|channel|>commentary json<|message|>{}<|call|>")),
    ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", ("", "{}")),
    ("<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b", ("a", "b")),
    ("Plain words, no channel.", ("", "Plain words, no channel.")),
    ("<|channel|>" + "x" * 520 + "<|message|>y", ("", "<|channel|>" + "x" * 520 + "<|message|>y")),
    ("<b>bold</b>", ("", "<b>bold</b>")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "both"), CASES)
def test_a_text_is_split_however_it_is_cut(text: str, both: tuple[str, str]) -> None:
    """In one piece, in two at any place, and by the character; calls keep their header and marks."""
    for pieces in ([text], list(text), *([text[:at], text[at:]] for at in range(len(text)))):
        assert read(HarmonyChannels().reader("undecided", constrained=False), pieces) == both


CONSTRAINED = [
    (
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>{}",
        ("I look.", "{}"),
    ),
    (
        "<|channel|>analysis<|message|>a<|end|>" + CALLED + "<|start|>assistant<|channel|>final <|constrain|>json"
        "<|message|>{}<|return|>",
        ('a\n{"at": 1}', "{}"),
    ),
    ("Hm, so.<|channel|>final<|message|>{}", ("Hm, so.", "{}")),
    ("<|channel|>analysis<|message|>a<|channel|>final<|message|>{}", ("a", "{}")),
    ("<|channel|>final json<|message|>b<|end|><|start|>assistant<|channel|>final<|message|>{}", ("b", "{}")),
    ("<|channel|>commentary<|message|>cut", ("cut", "")),
]


@pytest.mark.parametrize(("text", "both"), CONSTRAINED)
def test_a_constrained_answer_is_what_stands_on_final(text: str, both: tuple[str, str]) -> None:
    """As its guide has it: all before the header of `final` is free, and no part of an answer that has a form."""
    for pieces in ([text], list(text), *([text[:at], text[at:]] for at in range(len(text)))):
        reader = HarmonyChannels().reader("undecided", constrained=True)
        assert read(reader, pieces) == both
        assert reader.thinking == (not both[1])


def test_messages_with_their_headers() -> None:
    """For readers of calls: channel, recipient and text of each message, and the mark that ended it."""
    header = "<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json"
    reader = ChannelReader()
    assert reader.push("<|channel|>analysis<|message|>Hm.<|end|>" + CALLED) == [
        ChannelText("analysis", None, "<|channel|>analysis", "Hm.", True, "<|end|>"),
        ChannelText("commentary", "functions.look", header, '{"at": 1}', True, "<|call|>"),
    ]
    assert reader.channel is None
    assert reader.push("<|channel|>final<|message|>Ye") == [ChannelText("final", None, "<|channel|>final", "Ye", True)]
    assert (reader.channel, reader.recipient) == ("final", None)
    assert reader.push("s") == [ChannelText("final", None, "<|channel|>final", "s")]
    assert reader.finish() == []


def test_what_ends_an_answer_is_no_thought() -> None:
    """Marks behind a thought belong to it, up to the next message's text; those behind an answer to that."""
    reader = HarmonyChannels().reader("undecided", constrained=False)
    told = []
    for piece in (
        *("<|channel|>", "analysis", "<|message|>", "Hm.", "<|end|>", "<|start|>", "assistant"),
        *("<|channel|>", "final", "<|message|>", "Yes.", "<|return|>"),
    ):
        reader.push(piece)
        told.append(reader.thinking)
    assert told == [*[False] * 2, *[True] * 7, *[False] * 3]


def test_a_prompt_may_have_the_header() -> None:
    """Where the prompt is exact ids up to the answer's text."""
    parser = HarmonyChannels()
    assert parser.beginning("<|start|>assistant") == "undecided"
    assert parser.beginning("<|start|>assistant<|channel|>final<|message|>") == "closed"
    assert read(parser.reader("closed", constrained=True), ["Yes", ".<|return|>"]) == ("", "Yes.")
    assert parser.thought_marks("closed", lambda _: (1,), 5, constrained=True) is None


def test_the_marks_of_a_thought() -> None:
    """All before `final` is the thought: its end at the budget is the header of the answer."""
    thought = HarmonyChannels().thought_marks("undecided", lambda text: tuple(text.encode()), 0, constrained=True)
    assert thought is not None
    assert bytes(thought.ending) == b"<|end|><|start|>assistant<|channel|>final<|message|>"
    assert bytes(thought.empty) == b"<|channel|>final<|message|>"
    assert (thought.opening, thought.separators, thought.budget) == ("", (), 0)
