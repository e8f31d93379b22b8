"""Two streams aligned, compared, and shown side by side."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.terminal.tui.alignment import OTHER_PROMPTS, WINDOW, Side, align, compare
from lmtool.terminal.tui.documents.comparison import ComparisonDocument
from lmtool.terminal.tui.event_store import EventStore
from lmtool.terminal.tui.runs import width
from lmtool.terminal.tui.styles import UNICODE
from lmtool.terminal.tui.view import View
from lmtool.trace.events import Frame, JsonText, Vocab
from tests.terminal.tui.scripted import request, tokens
from tests.terminal.tui.states import WORDS, Token, asked, chunk, plain, rows, score, side, sides, sse, view_of
from tests.trace.conftest import generate, token
from tests.trace.conftest import tokens as brought

UNKNOWN = "nothing says that both have the same tokenizer: aligned by text"


ids = st.lists(st.integers(1, 4), max_size=6)


class TestAlignment:
    """Sequences aligned: by ids at their place in the sequence, between two tokenizers by text."""

    def test_the_same_prompt(self) -> None:
        """Equal tokens are counted up to the first that differs."""
        a, b = sides((generate(0.0), plain(1, 2, 3)), (generate(0.0, 2), plain(1, 2, 4, 1)))
        made = align(a, b)
        assert (made.same, made.parts, made.places, made.names, made.notes) == (2, True, (2, 2), (3, 4), ())
        assert made.pairs == [(0, 3), (1, 4)]

    def test_a_branch_and_its_parent(self) -> None:
        """The parent's kept tokens are the branch's prompt: they are the same tokens, at the same place."""
        a, b = sides((generate(0.0), plain(1, 2, 3, 4)), (generate(0.0, 2, prompt=[5, 6, 7, 1, 2, 4]), plain(3)))
        made = align(a, b)
        assert (made.same, made.parts, made.places, made.names) == (2, True, (2, -1), (3, 4))
        assert made.pairs == []

    def test_a_branch_from_the_token_itself(self) -> None:
        """What comes behind the kept tokens is compared, also in the other order."""
        streams = (generate(0.0), plain(1, 2, 3, 4)), (generate(0.0, 2, prompt=[5, 6, 7, 1, 2]), plain(3, 4))
        a, b = sides(*streams)
        assert (align(a, b).same, align(a, b).pairs, align(a, b).parts) == (4, [(2, 4), (3, 5)], False)
        assert (align(b, a).same, align(b, a).pairs, align(b, a).places) == (4, [(4, 2), (5, 3)], (2, 4))

    def test_a_score_and_what_it_scores(self) -> None:
        """The scored tokens stand where the generated ones do."""
        a, b = sides((generate(0.0), plain(1, 2)), (score([5, 6, 7], [1, 2], 2), plain(1, 2)))
        assert align(a, b).pairs == [(0, 2), (1, 3)]

    def test_an_empty_prompt_is_the_bos(self) -> None:
        """GENERATE begins an empty prompt with the model's bos; SCORE is given it."""
        a, b = sides((generate(0.0, prompt=[]), plain(1)), (score([9], [1], 2), plain(1)))
        assert align(a, b).notes == (OTHER_PROMPTS,)
        a.view.state.bos = 9
        assert (align(a, b).notes, align(a, b).pairs) == ((), [(0, 1)])

    def test_other_prompts(self) -> None:
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
    def test_prompts_without_ids(self, ours: object, theirs: object, notes: tuple[str, ...]) -> None:
        """Texts are the same or not; what was not recorded is not known."""
        made = align(*sides((generate(0.0, prompt=ours), plain(1, 2)), (generate(0.0, 2, prompt=theirs), plain(1, 3))))
        assert (made.same, made.notes) == (1, notes)

    def test_two_models_in_one_trace(self) -> None:
        """Their ids may mean other tokens."""
        a, b = sides((generate(0.0), plain(1, 2)), (generate(0.0, 2, model="other"), plain(1, 2)))
        assert (align(a, b).by_ids, align(a, b).same, align(a, b).notes) == (False, 2, (UNKNOWN,))

    def test_answers_over_http(self) -> None:
        """Tokens without ids are compared by their texts, after equal requests."""
        logprobs = {"tokens": [" b"], "token_logprobs": [-2.0], "top_logprobs": [{" a": -0.5, " b": -2.0}]}
        found = []
        for one in (asked(0.0), asked(0.0)):
            made = side(ask=one)
            made.view.lines.feed([sse(0.1, chunk(" b", logprobs=logprobs))])  # type: ignore[attr-defined] # a spool
            found.append(made)
        made = align(*found)
        assert (made.same, made.characters, made.notes) == (1, 2, ("tokens without ids: aligned by text",))
        assert found[0].top(0, by_ids=False) == {b" a": -0.5, b" b": -2.0}

    def test_pieces_of_text_over_http(self) -> None:
        """Text that came in other pieces is the same text."""
        spool = EventStore()
        for connection, pieces in ((1, ("a", "bc", "d")), (2, ("ab", "c", "x"))):
            spool.feed([replace(asked(0.0), connection=connection)])
            spool.feed([sse(0.1, chunk(piece), connection=connection) for piece in pieces])
        view = View(spool.state, spool)
        made = align(*(Side(view, stream) for stream in spool.state.streams))
        assert (made.same, made.characters, made.parts, made.names) == (0, 3, True, (b"d", b"x"))

    @pytest.mark.parametrize(("ours", "theirs", "by_ids"), [("x", "x", True), ("x", "y", False), (None, "x", False)])
    def test_two_traces(self, ours: str | None, theirs: str | None, by_ids: bool) -> None:
        """Ids are compared where both headers name the same tokenizer."""
        made = align(side(*plain(1), tokenizer=ours), side(*plain(1), tokenizer=theirs))
        assert made.by_ids is by_ids
        assert (made.notes == ()) is by_ids
        assert ("two tokenizers" in "".join(made.notes)) == (ours == "x" and theirs == "y")

    def test_other_ids_and_other_cuts(self) -> None:
        """By text, tokens are the same that begin and end at the same places; where texts part is what counts."""
        other = {21: "ab", 22: "c", 23: "é", 31: "x", 32: "yz"}
        made = align(side(*plain(1, 2, 3, 4)), side(*plain(21, 22, 23), words=other, prompt=[31, 32]))
        assert (made.characters, made.same, made.pairs) == (3, 1, [(2, 1)])
        assert (made.parts, made.places, made.names) == (True, (3, 2), (b"d", "é".encode()))

    def test_a_prompt_that_holds_the_others_text(self) -> None:
        """By text as well: the parting lies in a prompt, of which the tokens are not told."""
        other = {31: "xyz", 32: "ad", 33: "q"}
        made = align(side(*plain(1, 2)), side(*plain(33), words=other, prompt=[31, 32]))
        assert (made.characters, made.places, made.names) == (1, (1, -1), (b"b", None))

    def test_ids_that_nobody_spells(self) -> None:
        """They are the same where they are the same ids."""
        made = align(side(*plain(1, 2), words={}), side(*plain(1, 3), words={}))
        assert (made.same, made.places) == (1, (1, 1))

    @given(ids, ids, ids, ids)
    def test_both_ways_agree(self, prompt: list[int], more: list[int], ours: list[int], theirs: list[int]) -> None:
        """Where every token is one character, text and ids tell the same; the order of the sides does not matter."""

        def of(tokenizer: str | None, prompt: list[int], own: list[int]) -> Side:
            return side(*plain(*own), tokenizer=tokenizer, prompt=prompt)

        prompts = [[5, *prompt], [5, *prompt, *more]]
        by_ids = align(of("t", prompts[0], ours), of("t", prompts[1], theirs))
        by_text = align(of("t", prompts[0], ours), of("u", prompts[1], theirs))
        back = align(of("t", prompts[1], theirs), of("t", prompts[0], ours))
        assert (by_ids.pairs, by_ids.parts, by_ids.same) == (by_text.pairs, by_text.parts, by_text.characters)
        assert [max(-1, place) for place in by_ids.places] == list(by_text.places)
        assert (back.same, back.parts) == (by_ids.same, by_ids.parts)
        assert [(x, y) for y, x in back.pairs] == by_ids.pairs
        whole = [[*prompts[0], *ours], [*prompts[1], *theirs]]
        assert whole[0][: len(prompts[0]) + by_ids.places[0]] == whole[1][: len(prompts[1]) + by_ids.places[1]]

    def test_words_have_one_letter(self) -> None:
        """What the test above rests on."""
        assert {len(WORDS[i]) for i in range(1, 6)} == {1}

    def test_a_request_that_nobody_saw(self) -> None:
        """Its prompt is not known."""
        a, b = sides(
            (generate(0.0), plain(1)), (Frame(0.0, ">", 1, JsonText("SCORE", {"stream_id": 2}, "py")), plain(1))
        )
        assert align(a, b).notes == ("a prompt is not known: their own tokens are aligned",)


class TestComparison:
    """Two streams compared: where they part, whether it was a tie, how far their numbers are apart."""

    def test_where_they_part(self) -> None:
        """The margin of each side's own token there tells a near tie; so does the largest difference before."""
        same: list[Token] = [(1, -0.5, {}), (2, -0.6, {})]
        a = side(*same, (3, -1.0, {"3": -1.0, "4": -1.005}))
        b = side((1, -0.5, {}), (2, -0.65, {}), (4, -1.0, {"4": -1.0, "3": -1.2}))
        made = compare(a, b)
        assert (made.alignment.same, made.alignment.parts, made.near_tie) == (2, True, True)
        assert list(made.margins) == [pytest.approx(0.005), pytest.approx(0.2)]
        assert made.candidates == (-1.0, -1.0)
        assert made.worst == pytest.approx(0.05, abs=1e-12)
        assert made.worst_at == (1, 1)

    def test_clearly_apart(self) -> None:
        """Where neither side had the other's token near, it is no tie; a token it had not at all has no margin."""
        made = compare(side((3, -0.1, {"3": -0.1, "4": -3.0})), side((4, -0.1, {"4": -0.1})))
        assert (made.alignment.same, made.near_tie) == (0, False)
        assert list(made.margins) == [pytest.approx(2.9), None]
        assert (made.worst, made.worst_at) == (None, None)

    @pytest.mark.parametrize(("a", "b"), [(2, 2), (1, 2), (0, 2), (0, 0)])
    def test_one_merely_ends(self, a: int, b: int) -> None:
        """A stream that ends where the other goes on has not parted from it."""
        made = compare(side(*plain(*[1] * a)), side(*plain(*[1] * b)))
        assert (made.alignment.same, made.alignment.parts, made.near_tie) == (min(a, b), False, False)

    def test_a_branch(self) -> None:
        """What a branch has instead stands in its prompt: its probability is the one that the parent gave it."""
        parent: list[Token] = [(1, -0.5, {}), (2, -0.6, {"2": -0.6, "4": -1.7})]
        made = compare(*sides((generate(0.0), parent), (generate(0.0, 2, prompt=[5, 6, 7, 1, 4]), plain(3))))
        assert (made.candidates, made.margins) == ((-0.6, -1.7), (pytest.approx(1.1), None))
        assert made.divergences == (None,)
        assert made.alignment.own == ("", "d")

    @pytest.mark.parametrize("words", [WORDS, {**WORDS, 4: " two words"}])
    def test_the_token_of_a_branch_stands_out(self, words: dict[int, str]) -> None:
        """It is drawn as the token of the parent that it replaced is, not as what both have in common."""
        spool = EventStore()
        spool.feed([Vocab(0.0, 0, words), generate(0.0), generate(0.0, 2, prompt=[5, 6, 7, 1, 4])])
        spool.feed([brought(0.1, token(i, n)) for i, n in ((1, 1), (2, 1), (3, 2))])
        view = View(spool.state, spool)
        document = ComparisonDocument(*(Side(view, stream) for stream in spool.state.streams), UNICODE)
        drawn = [document.line(y, 60) for y in range(document.height(60))]
        marked = [run.text for line in drawn for run in line if "here" in run.style]
        assert marked == ["▕b▏", *(f"▕{word}▏" for word in re.findall(r"\s*\S+", words[4]))]
        assert sum(run.text == "xyza" and run.style == "dim" for line in drawn for run in line) == 1

    def test_models_with_other_ids(self) -> None:
        """Between tokenizers, alternatives are compared by what they mean."""
        ours = side((1, -0.5, {"1": -0.5, "2": -1.0}))
        theirs = side(
            (7, -0.5, {"7": -0.5, "8": -1.0}), words={5: "x", 6: "y", 7: "a", 8: "b", 9: "z"}, prompt=[5, 6, 9]
        )
        made = compare(ours, theirs)
        assert made.alignment.same == 1
        assert list(made.divergences) == [pytest.approx(0)]

    def test_only_what_is_seen(self) -> None:
        """A paused view compares what had come by then."""
        a = side(*plain(1, 1, 1))
        a.view.moment = 0.05
        made = compare(a, side(*plain(2)))
        assert (made.alignment.same, made.alignment.parts, made.worst, made.divergences) == (0, False, None, ())

    def test_two_kinds_of_logprobs(self) -> None:
        """What is of the model and what is of a biased distribution is never compared in silence."""
        biased = (generate(0.0, logit_bias={"3": 1.0}), plain(1))
        made = compare(*sides(biased, (score([5, 6, 7], [1], 2), plain(1))))
        assert made.notes == (
            "logprobs of two kinds: A biased, after logit_bias and constraint; B raw, the model's own",
        )
        assert compare(*sides(biased, (generate(0.0, 2, logit_bias={"3": 1.0}), plain(1)))).notes == ()

    def test_divergences(self) -> None:
        """One for each equal token and one where they part, of B from A."""
        p, q = {"1": math.log(0.6), "2": math.log(0.3)}, {"1": math.log(0.1), "2": math.log(0.8)}
        made = compare(
            side((1, math.log(0.6), p), (1, math.log(0.6), p)), side((1, math.log(0.6), p), (2, math.log(0.8), q))
        )
        assert made.divergences[0] == pytest.approx(0, abs=1e-6)
        assert made.divergences[1] == pytest.approx(0.6 * math.log(6) + 0.3 * math.log(0.3 / 0.8))

    def test_long_streams(self) -> None:
        """Alternatives are compared near the parting only: they must be read from the frames again."""
        many: list[Token] = [(1, -0.5, {"1": -0.5})] * (WINDOW + 20)
        made = compare(side(*many, (2, -1.0, {})), side(*many, (3, -1.0, {})))
        assert (made.alignment.same, len(made.divergences)) == (WINDOW + 20, WINDOW + 1)


class TestComparisonDocument:
    """Two streams side by side."""

    def test_where_they_part(self, view: View) -> None:
        """How many tokens are the same, what each side says there with its probability, and both texts."""
        a, b = view.state.streams
        shown = rows(ComparisonDocument(Side(view, a), Side(view, b), UNICODE), 100)
        assert "1 token" in shown[0]
        joined = "\n".join(shown)
        assert "A 1/1" in joined
        assert "B 1/2" in joined
        assert "▕ fox▏" in joined
        assert "▕.▏" in joined

    @pytest.mark.parametrize("columns", [30, 45, 100])
    def test_the_verdict_is_whole(self, view: View, columns: int) -> None:
        """However narrow the screen, no number and no remark of it is cut."""
        a, b = view.state.streams
        document = ComparisonDocument(Side(view, a), Side(view, b), UNICODE)
        shown = rows(document, columns)
        assert all(width(line) <= columns for line in shown)
        verdict = " ".join(" ".join(shown[: document.heads - 1]).split())
        whole = " ".join(run.text for part in document._verdict for run in part)
        assert verdict == " ".join(whole.split())
        assert "A ' fox'" in verdict

    @pytest.mark.parametrize(
        ("a", "b", "says"), [(2, 2, "and nothing more"), (1, 2, "then A ends"), (2, 1, "then B ends")]
    )
    def test_streams_that_do_not_part(self, a: int, b: int, says: str) -> None:
        """The verdict says which of them ends first, or that both end there."""
        ours, theirs = (side(*plain(*[1] * tokens), tokenizer="t") for tokens in (a, b))
        document = ComparisonDocument(ours, theirs, UNICODE)
        same = "2 tokens" if a == b else "1 token"
        assert rows(document, 60)[0] == f" same {same}, {says}"

    def test_a_piece_of_text_is_cut(self) -> None:
        """Over HTTP a whole answer may be one piece: the verdict says how it begins."""
        answers = [replace(asked(0.0), connection=1), replace(asked(0.0), connection=2)]
        view = view_of([*answers, sse(0.1, chunk("x" * 500)), sse(0.1, chunk("y" * 500), connection=2)])
        a, b = view.state.streams
        document = ComparisonDocument(Side(view, a), Side(view, b), UNICODE)
        assert (document.line(0, 100)[1].text, document.heads) == ("same 0 characters, 0 tokens cut alike, then", 3)

    def test_the_parting_is_what_is_seen_first(self) -> None:
        """After hundreds of equal tokens the anchor is the line where they part, below what stays in sight."""
        events = [
            request(0.1, 1),
            request(0.1, 2),
            *(tokens(0.2 + i / 1000, (1, 7, -0.1), (2, 7, -0.1)) for i in range(300)),
        ]
        view = view_of([*events, tokens(0.9, (1, 8, -0.1), (2, 9, -0.2))])
        a, b = view.state.streams
        document = ComparisonDocument(Side(view, a), Side(view, b), UNICODE)
        shown = rows(document, 60)
        anchor = document.anchor(60)
        assert anchor is not None
        assert document.heads < anchor < len(shown)
        assert "▕" in shown[anchor]
