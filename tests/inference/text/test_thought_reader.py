"""Thoughts between two marks: split wherever a stream is cut into pieces, and wherever it ends."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.core.reasoning import ThoughtMarks
from lmtool.inference.text.harmony import HarmonyChannels
from lmtool.inference.text.reasoning_parser import Beginning, ReasoningParser, ThoughtReader
from lmtool.inference.text.thought_reader import MarkedThoughts

THINK = MarkedThoughts("think")
R1 = MarkedThoughts("deepseek_r1", implicit=True)


def read(reader: ThoughtReader, pieces: list[str]) -> tuple[str, str]:
    """The thought and the answer of a text in these pieces."""
    found = [*map(reader.push, pieces), reader.finish()]
    return "".join(piece.reasoning for piece in found), "".join(piece.answer for piece in found)


CASES: list[tuple[MarkedThoughts, Beginning, bool, str, tuple[str, str]]] = [
    (THINK, "undecided", False, "<think>\nHm, so.\n</think>\n\nYes.", ("Hm, so.", "Yes.")),
    (THINK, "open", False, "\nHm, so.\n</think>\n\nYes.", ("Hm, so.", "Yes.")),
    (THINK, "open", False, "a < b </ c\n\nd</thin k></think>Yes</think>", ("a < b </ c\n\nd</thin k>", "Yes</think>")),
    (THINK, "open", False, "cut in the </thi", ("cut in the </thi", "")),
    (THINK, "open", False, "cut behind\n", ("cut behind\n", "")),
    (THINK, "open", False, "cut </think>\n", ("cut", "")),
    (THINK, "open", False, "", ("", "")),
    (THINK, "undecided", False, "Yes.", ("", "Yes.")),
    (THINK, "undecided", False, " \n Yes: <think>", ("", " \n Yes: <think>")),
    (THINK, "undecided", False, "<thi", ("", "<thi")),
    (THINK, "undecided", False, "<thinking>", ("", "<thinking>")),
    (THINK, "undecided", False, "\n\n<think>", ("", "")),
    (THINK, "undecided", False, "<think></think>Yes.", ("", "Yes.")),
    (THINK, "closed", False, "Yes.", ("", "Yes.")),
    (THINK, "closed", False, "<think>again</think>Yes.", ("again", "Yes.")),
    (R1, "undecided", False, "Hm, so.</think>Yes.", ("Hm, so.", "Yes.")),
    (R1, "undecided", False, "<think>Hm, so.</think>Yes.", ("Hm, so.", "Yes.")),
    (R1, "undecided", False, "<thi", ("<thi", "")),
    (R1, "closed", False, "Yes.", ("", "Yes.")),
    (THINK, "open", True, "Hm</think>\n\n\n yes", ("Hm", "\n yes")),
    (THINK, "open", True, "Hm</think>\n yes", ("Hm", " yes")),
    (THINK, "open", True, "Hm</think> yes", ("Hm", " yes")),
    (MarkedThoughts("m", "[THINK]", "[/THINK]", ""), "open", True, "Hm[/THINK]\n yes", ("Hm", "\n yes")),
]


@pytest.mark.parametrize(("parser", "beginning", "constrained", "text", "both"), CASES)
def test_a_text_is_split_however_it_is_cut(
    parser: MarkedThoughts, beginning: Beginning, constrained: bool, text: str, both: tuple[str, str]
) -> None:
    """In one piece, in two at any place, and by the character."""
    for pieces in ([text], list(text), *([text[:at], text[at:]] for at in range(len(text)))):
        assert read(parser.reader(beginning, constrained=constrained), pieces) == both


@given(st.text("</think> \nax", max_size=40), st.lists(st.integers(0, 40)), st.sampled_from([THINK, R1]))
def test_pieces_make_no_difference(text: str, cuts: list[int], parser: MarkedThoughts) -> None:
    """Whatever the text; nothing is held back for good, and what is shown does not depend on what comes."""
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[first:end] for first, end in pairwise(places)]
    for beginning in ("open", "undecided", "closed"):
        whole = read(parser.reader(beginning, constrained=False), [text])
        assert read(parser.reader(beginning, constrained=False), pieces) == whole
        assert len("".join(whole)) <= len(text)


def test_a_reader_tells_where_it_is() -> None:
    """A mark belongs to the thought, whole or begun, and so do blanks behind it: the answer begins behind these."""
    reader = THINK.reader("undecided", constrained=False)
    told = []
    for piece in ("<th", "ink>", "so", "</think>", "\n\n", "Yes"):
        reader.push(piece)
        told.append(reader.thinking)
    assert told == [True, True, True, True, True, False]


@pytest.mark.parametrize(
    ("tail", "prefill", "beginning"),
    [
        ("<|im_start|>assistant\n", "", "undecided"),
        ("<|im_start|>assistant\n<think>\n", "", "open"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "", "closed"),
        ("what is <think>?<|im_end|>\n<|im_start|>assistant\n", "", "undecided"),
        ("assistant\n<think>\n", "Let me", "open"),
        ("assistant\n<think>\n", "Let me</think>\n\nYes", "closed"),
        ("assistant\n", "<think>Let me", "open"),
        ("assistant\n", "Yes, ", "closed"),
    ],
)
def test_how_a_prompt_leaves_the_thought(tail: str, prefill: str, beginning: Beginning) -> None:
    """By its very end and the answer's beginning, not by what a user wrote of marks."""
    assert THINK.beginning(tail, prefill) == beginning


def test_the_same_in_ids() -> None:
    """What ends a thought at its budget, with what the model writes behind the mark."""

    def encode(text: str) -> list[int]:
        return list(text.encode())

    def ids(text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    assert THINK.thought_marks("closed", encode, 5, constrained=True) is None
    both = {"closings": ("</think>",), "ending": ids("</think>\n\n"), "separator": "\n\n"}
    separators = (ids("\n\n"), ids("\n"))
    opened = ThoughtMarks(opening="", **both, separators=separators, budget=5)
    assert THINK.thought_marks("open", encode, 5, constrained=True) == opened
    empty = ids("<think>\n\n</think>\n\n")
    undecided = ThoughtMarks(opening="<think>", **both, separators=separators, budget=None, empty=empty)
    assert THINK.thought_marks("undecided", encode, None, constrained=True) == undecided
    implicit = ThoughtMarks(**both, opening="", separators=separators, empty=empty)
    assert R1.thought_marks("undecided", encode, None, constrained=True) == implicit


@pytest.mark.parametrize("parser", [THINK, HarmonyChannels()])
def test_they_are_parsers(parser: object) -> None:
    """As another package's are."""
    assert isinstance(parser, ReasoningParser)
