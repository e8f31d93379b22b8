"""Sequences aligned: by ids at their place in the sequence, between two tokenizers by text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.trace.events import Frame, Parsed
from lmtool.tui.alignment import OTHER_PROMPTS, Side, align
from lmtool.tui.lines import Spool
from lmtool.tui.view import View
from tests.trace.conftest import generate
from tests.tui.folding import asked, chunk, sse
from tests.tui.sequences import WORDS, plain, score, side, sides

UNKNOWN = "nothing says that both have the same tokenizer: aligned by text"


def test_the_same_prompt() -> None:
    """Equal tokens are counted up to the first that differs."""
    a, b = sides((generate(0.0), plain(1, 2, 3)), (generate(0.0, 2), plain(1, 2, 4, 1)))
    made = align(a, b)
    assert (made.same, made.parted, made.places, made.names, made.notes) == (2, True, (2, 2), (3, 4), ())
    assert made.pairs == [(0, 3), (1, 4)]


def test_a_branch_and_its_parent() -> None:
    """The parent's kept tokens are the branch's prompt: they are the same tokens, at the same place."""
    a, b = sides((generate(0.0), plain(1, 2, 3, 4)), (generate(0.0, 2, prompt=[5, 6, 7, 1, 2, 4]), plain(3)))
    made = align(a, b)
    assert (made.same, made.parted, made.places, made.names) == (2, True, (2, -1), (3, 4))
    assert made.pairs == []


def test_a_branch_from_the_token_itself() -> None:
    """What comes behind the kept tokens is compared, also in the other order."""
    streams = (generate(0.0), plain(1, 2, 3, 4)), (generate(0.0, 2, prompt=[5, 6, 7, 1, 2]), plain(3, 4))
    a, b = sides(*streams)
    assert (align(a, b).same, align(a, b).pairs, align(a, b).parted) == (4, [(2, 4), (3, 5)], False)
    assert (align(b, a).same, align(b, a).pairs, align(b, a).places) == (4, [(4, 2), (5, 3)], (2, 4))


def test_a_score_and_what_it_scores() -> None:
    """The scored tokens stand where the generated ones do."""
    a, b = sides((generate(0.0), plain(1, 2)), (score([5, 6, 7], [1, 2], 2), plain(1, 2)))
    assert align(a, b).pairs == [(0, 2), (1, 3)]


def test_an_empty_prompt_is_the_bos() -> None:
    """GENERATE begins an empty prompt with the model's bos; SCORE is given it."""
    a, b = sides((generate(0.0, prompt=[]), plain(1)), (score([9], [1], 2), plain(1)))
    assert align(a, b).notes == (OTHER_PROMPTS,)
    a.view.state.bos = 9
    assert (align(a, b).notes, align(a, b).pairs) == ((), [(0, 1)])


def test_other_prompts() -> None:
    """Prompts that part before one of them ends are said to do so: what follows them is aligned by itself."""
    a, b = sides((generate(0.0), plain(1, 2)), (generate(0.0, 2, prompt=[5, 6, 1, 9]), plain(1, 3)))
    made = align(a, b)
    assert (made.same, made.places, made.notes) == (1, (1, 1), (OTHER_PROMPTS,))


@pytest.mark.parametrize(
    ("ours", "theirs", "notes"),
    [
        ("text", "text", ()),
        ("text", "other", (OTHER_PROMPTS,)),
        ("text", [5, 6, 7], (OTHER_PROMPTS,)),
        ({"$redacted": "prompt", "n": 3}, "text", ("a prompt is not known: their own tokens are aligned",)),
    ],
)
def test_prompts_without_ids(ours: object, theirs: object, notes: tuple[str, ...]) -> None:
    """Texts are the same or not; what was not recorded is not known."""
    made = align(*sides((generate(0.0, prompt=ours), plain(1, 2)), (generate(0.0, 2, prompt=theirs), plain(1, 3))))
    assert (made.same, made.notes) == (1, notes)


def test_two_models_in_one_trace() -> None:
    """Their ids may mean other tokens."""
    a, b = sides((generate(0.0), plain(1, 2)), (generate(0.0, 2, model="other"), plain(1, 2)))
    assert (align(a, b).by_ids, align(a, b).same, align(a, b).notes) == (False, 2, (UNKNOWN,))


def test_answers_over_http() -> None:
    """Tokens without ids are compared by their texts, after equal requests."""
    logprobs = {"tokens": [" b"], "token_logprobs": [-2.0], "top_logprobs": [{" a": -0.5, " b": -2.0}]}
    found = []
    for request in (asked(0.0), asked(0.0)):
        made = side(ask=request)
        made.view.lines.feed([sse(0.1, chunk(" b", logprobs=logprobs))])  # type: ignore[attr-defined] # a spool
        found.append(made)
    made = align(*found)
    assert (made.same, made.characters, made.notes) == (1, 2, ("tokens without ids: aligned by text",))
    assert found[0].top(0, by_ids=False) == {b" a": -0.5, b" b": -2.0}


def test_pieces_of_text_over_http() -> None:
    """Text that came in other pieces is the same text."""
    spool = Spool()
    for connection, pieces in ((1, ("a", "bc", "d")), (2, ("ab", "c", "x"))):
        spool.feed([replace(asked(0.0), connection=connection)])
        spool.feed([sse(0.1, chunk(piece), connection=connection) for piece in pieces])
    view = View(spool.state, spool)
    made = align(*(Side(view, stream) for stream in spool.state.streams))
    assert (made.same, made.characters, made.parted, made.names) == (0, 3, True, (b"d", b"x"))


@pytest.mark.parametrize(("ours", "theirs", "by_ids"), [("x", "x", True), ("x", "y", False), (None, "x", False)])
def test_two_traces(ours: str | None, theirs: str | None, by_ids: bool) -> None:
    """Ids are compared where both headers name the same tokenizer."""
    made = align(side(*plain(1), tokenizer=ours), side(*plain(1), tokenizer=theirs))
    assert made.by_ids is by_ids
    assert (made.notes == ()) is by_ids
    assert ("two tokenizers" in "".join(made.notes)) == (ours == "x" and theirs == "y")


def test_other_ids_and_other_cuts() -> None:
    """By text, tokens are the same that begin and end at the same places; where texts part is what counts."""
    other = {21: "ab", 22: "c", 23: "é", 31: "x", 32: "yz"}
    made = align(side(*plain(1, 2, 3, 4)), side(*plain(21, 22, 23), words=other, prompt=[31, 32]))
    assert (made.characters, made.same, made.pairs) == (3, 1, [(2, 1)])
    assert (made.parted, made.places, made.names) == (True, (3, 2), (b"d", "é".encode()))


def test_a_prompt_that_holds_the_others_text() -> None:
    """By text as well: the parting lies in a prompt, of which the tokens are not told."""
    other = {31: "xyz", 32: "ad", 33: "q"}
    made = align(side(*plain(1, 2)), side(*plain(33), words=other, prompt=[31, 32]))
    assert (made.characters, made.places, made.names) == (1, (1, -1), (b"b", None))


def test_ids_that_nobody_spells() -> None:
    """They are the same where they are the same ids."""
    made = align(side(*plain(1, 2), words={}), side(*plain(1, 3), words={}))
    assert (made.same, made.places) == (1, (1, 1))


ids = st.lists(st.integers(1, 4), max_size=6)


@given(ids, ids, ids, ids)
def test_both_ways_agree(prompt: list[int], more: list[int], ours: list[int], theirs: list[int]) -> None:
    """Where every token is one character, text and ids tell the same; and the order of the sides does not matter."""

    def of(tokenizer: str | None, prompt: list[int], own: list[int]) -> Side:
        return side(*plain(*own), tokenizer=tokenizer, prompt=prompt)

    prompts = [[5, *prompt], [5, *prompt, *more]]
    by_ids = align(of("t", prompts[0], ours), of("t", prompts[1], theirs))
    by_text = align(of("t", prompts[0], ours), of("u", prompts[1], theirs))
    back = align(of("t", prompts[1], theirs), of("t", prompts[0], ours))
    assert (by_ids.pairs, by_ids.parted, by_ids.same) == (by_text.pairs, by_text.parted, by_text.characters)
    assert [max(-1, place) for place in by_ids.places] == list(by_text.places)
    assert (back.same, back.parted) == (by_ids.same, by_ids.parted)
    assert [(x, y) for y, x in back.pairs] == by_ids.pairs
    whole = [[*prompts[0], *ours], [*prompts[1], *theirs]]
    assert whole[0][: len(prompts[0]) + by_ids.places[0]] == whole[1][: len(prompts[1]) + by_ids.places[1]]


def test_words_have_one_letter() -> None:
    """What the test above rests on."""
    assert {len(WORDS[i]) for i in range(1, 6)} == {1}


def test_a_request_that_nobody_saw() -> None:
    """Its prompt is not known."""
    a, b = sides((generate(0.0), plain(1)), (Frame(0.0, ">", 1, Parsed("SCORE", {"stream_id": 2}, "py")), plain(1)))
    assert align(a, b).notes == ("a prompt is not known: their own tokens are aligned",)
