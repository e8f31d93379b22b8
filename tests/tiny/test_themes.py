"""The themes of the corpus: each answers its own requests."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from random import Random

import pytest

from tests.tiny.recipe import arithmetic, smalltalk
from tests.tiny.recipe.arithmetic import (
    Sum,
    ask,
    big_sum,
    counting,
    every_sum,
    neighbour,
    numbers,
    running_sum,
    small_sum,
    three_numbers,
)
from tests.tiny.recipe.copying import (
    any_record,
    completion,
    copying,
    introduction,
    other_record,
    person_record,
    remembered_name,
    repeat,
)
from tests.tiny.recipe.facts import (
    CAPITALS,
    EXPLANATIONS,
    GROUPS,
    KINDS,
    MEANINGS,
    OPPOSITES,
    capital,
    fact,
    several,
)
from tests.tiny.recipe.grading import HONEST, is_true
from tests.tiny.recipe.phrasing import (
    ANIMALS,
    CITIES,
    NAMES,
    THINGS,
    some_city,
    some_name,
    some_thing,
    some_topic,
)
from tests.tiny.recipe.plain import SAYINGS, plain, saying_turn
from tests.tiny.recipe.smalltalk import (
    CHIT_CHAT,
    FAREWELL,
    GREETING,
    IDENTITY,
    NO_SENSE,
    amusement,
    farewell,
    greeting,
    nonsense,
    sign_of_life,
    talk,
    unknown,
)
from tests.tiny.recipe.stories import (
    poem_turn,
    request,
    sentence,
    sentence_turn,
    story,
    story_talk,
    story_turn,
)


class TestArithmetic:
    """Numbers: right, or declined."""

    def test_sums_are_right(self) -> None:
        """Every exercise within the range has its right result."""
        for exercise in every_sum():
            left, result = exercise.answer.split(" = ")
            a, sign, b = left.split()
            assert int(result) == {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]

    def test_ranges_are_twenty_and_ten(self) -> None:
        """Sums and differences of 0 to 20, below zero as well, and products of 0 to 10."""
        assert len(every_sum()) == 2 * 21 * 21 + 11 * 11
        assert Sum(3, "-", 8).answer == "3 - 8 = -5"

    def test_beyond_the_range_is_declined(self) -> None:
        """Larger numbers, and what is neither a sum nor a product, have words for an answer."""
        assert Sum(21, "+", 1).answer == arithmetic.TOO_BIG
        assert Sum(3, "*", 11).answer == arithmetic.NO_PRODUCT
        refusals = {arithmetic.TOO_BIG, arithmetic.NO_PRODUCT, arithmetic.NO_MATHS}
        assert {big_sum(Random(seed)).reply for seed in range(300)} == refusals

    def test_exercise_is_asked_with_its_numbers(self) -> None:
        """However it is asked, both operands are in the question."""
        for seed in range(200):
            turn = small_sum(Random(seed))
            digits = re.findall(r"\d+", turn.prompt)
            assert not digits or sorted(digits) == sorted(turn.reply.split()[0:3:2])

    def test_three_numbers_are_added_step_by_step(self) -> None:
        """Each step of a longer sum is true, and a first step below zero is declined."""
        for seed in range(300):
            reply = three_numbers(Random(seed)).reply
            if reply == arithmetic.NO_MATHS:
                continue
            whole, step, result = reply.split(" = ")
            assert is_true(whole, result)
            assert is_true(step, result)

    def test_running_sums_go_on_from_the_result(self) -> None:
        """`and plus 2` adds to the result before."""
        for seed in range(200):
            for before, after in pairwise(running_sum(Random(seed))):
                assert after.reply.split()[0] == before.reply.split()[-1]
                assert is_true(*after.reply.split(" = "))

    def test_counting_runs_from_first_to_last(self) -> None:
        """Counting goes by ones, up or down, or is declined."""
        for seed in range(200):
            reply = counting(Random(seed)).reply
            if reply != arithmetic.TOO_FAR:
                numbers_in_order = [int(number) for number in reply.split(", ")]
                assert {b - a for a, b in pairwise(numbers_in_order)} <= ({1}, {-1})[
                    numbers_in_order[0] > numbers_in_order[-1]
                ]

    def test_the_next_number_is_one_more(self) -> None:
        """What comes after a number is that number and one, what comes before it one less."""
        for seed in range(50):
            turn = neighbour(Random(seed))
            (number,) = re.findall(r"\d+", turn.prompt)
            assert turn.reply in {
                f"{int(number) + 1} comes after {number}.",
                f"{int(number) - 1} comes before {number}.",
            }

    def test_any_request_about_numbers_has_an_answer(self) -> None:
        """The theme mixes all kinds."""
        assert all(numbers(Random(seed)).reply for seed in range(100))
        assert ask(Random(1), Sum(2, "+", 2))


class TestCopying:
    """Answers made of the question's own words."""

    def test_records_hold_what_the_sentence_says(self) -> None:
        """A record is JSON, and each of its values stands in the sentence."""
        for seed in range(200):
            turn = (person_record, other_record)[seed % 2](Random(seed))
            record = json.loads(turn.reply)
            assert all(str(value) in turn.prompt for value in record.values())

    def test_a_record_without_data_is_still_json(self) -> None:
        """Asked for any record, it makes one up."""
        assert set(json.loads(any_record(Random(0)).reply)) == {"name", "age", "city"}

    def test_repetition_is_literal(self) -> None:
        """What is to be repeated stands in the question, letter by letter."""
        assert all((turn := repeat(Random(seed))).reply in turn.prompt for seed in range(200))

    def test_a_name_is_remembered(self) -> None:
        """The name told in the first turn is the answer of the last."""
        for seed in range(50):
            turns = remembered_name(Random(seed), greeting)
            name = turns[-1].reply.removeprefix("Your name is ").removesuffix(".")
            assert name in turns[0].prompt
            assert name in turns[0].reply

    def test_one_turn_kinds_answer(self) -> None:
        """Introductions, sentences with a question, and the mix of all."""
        for make in (introduction, completion, copying):
            assert all(make(Random(seed)).reply for seed in range(50))


class TestFacts:
    """Questions with one right answer."""

    def test_every_kind_makes_questions(self) -> None:
        """Every kind of fact gives a whole question and a whole answer."""
        for kind, share in KINDS:
            assert share > 0
            for seed in range(50):
                turn = kind(Random(seed))
                assert turn.prompt.strip()
                assert turn.reply[0].isupper()
                assert turn.reply.endswith(".")

    def test_tables_have_one_answer_each(self) -> None:
        """No country has two capitals, and no word two opposites."""
        for table in (CAPITALS, OPPOSITES):
            assert len(dict(table)) == len(table)

    def test_capital_answers_its_question(self) -> None:
        """The answer names the country or city that was asked for."""
        turn = capital(Random(3))
        assert (
            any(country in turn.prompt and city in turn.reply for country, city in CAPITALS)
            or "of which" in turn.prompt
        )

    def test_lists_have_different_members_of_the_group(self) -> None:
        """`Name two ...` is answered with two, and no member comes twice."""
        members = {member.lower() for group in GROUPS.values() for member in group}
        for seed in range(300):
            turn = several(Random(seed))
            listed = turn.reply.removesuffix(".").lower().replace(" and ", ", ").split(", ")
            assert len(set(listed)) == len(listed)
            assert set(listed) <= members
            assert " two " not in turn.prompt or len(listed) == 2

    def test_a_fact_keeps_its_answer(self) -> None:
        """The question may be typed sloppily; the answer never is."""
        assert all(fact(Random(seed)).reply.endswith(".") for seed in range(200))


class TestStories:
    """Stories and verses are about their topic."""

    def test_story_has_what_is_wanted(self) -> None:
        """Hero, name, friend, thing, place, wish and fear stand in the story that was asked for."""
        for seed in range(200):
            _, wanted = request(Random(seed))
            text = story(Random(seed), wanted)
            for word in (wanted.name, wanted.friend, wanted.thing, wanted.place, wanted.wish, wanted.fear, wanted.hero):
                assert word in text, wanted

    def test_story_is_short_and_whole(self) -> None:
        """A story has 30 to 60 words, ends with a full stop or mark, and has no slot left open."""
        for seed in range(300):
            text = story_turn(Random(seed)).reply
            assert 30 <= len(text.split()) <= 60
            assert text.endswith((".", "!"))
            assert not set("{}[]|") & set(text)

    def test_questions_about_a_story_are_answered_from_it(self) -> None:
        """The hero's name is the one in the story; another story has the same hero."""
        for seed in range(100):
            first, second = story_talk(Random(seed))
            if "'s name was " in second.reply:
                assert second.reply.removesuffix(".").rpartition(" ")[2] in first.reply
            else:
                assert second.reply != first.reply

    def test_verses_have_lines(self) -> None:
        """A poem has four lines, a haiku three."""
        for seed in range(100):
            turn = poem_turn(Random(seed))
            assert turn.reply.count("\n") == (2 if "haiku" in turn.prompt.lower() else 3) or "aiku" not in turn.prompt

    def test_sentences_use_the_word(self) -> None:
        """A sentence about a word has the word in it."""
        assert "lamp" in sentence(Random(0), "lamp")
        assert sentence_turn(Random(0)).reply.endswith(".")


class TestPlain:
    """Text without a chat around it."""

    def test_plain_texts_are_whole(self) -> None:
        """No slot is left open in any kind of plain text."""
        for seed in range(500):
            text = plain(Random(seed)).text
            assert text.strip()
            assert "{" not in text
            assert "[" not in text

    def test_some_open_with_the_special_token(self) -> None:
        """A fifth of them stands behind an end-of-text token, as some clients send it."""
        assert 50 < sum(plain(Random(seed)).leading_token for seed in range(500)) < 150

    def test_sayings_are_completed(self) -> None:
        """The beginning of a saying is answered with the whole of it."""
        assert all(saying_turn(Random(seed)).reply in SAYINGS for seed in range(100))


class TestSmalltalk:
    """Pleasantries, and what the model says of itself."""

    def test_every_talk_has_both_sides(self) -> None:
        """Each pleasantry has ways to ask and answers."""
        assert all(kind.asks and kind.answers for kind in CHIT_CHAT)

    def test_it_says_who_it_is(self) -> None:
        """Asked for its name, it says: I am tiny, the small language model that comes with lmtool."""
        assert all(answer.startswith("I am tiny, the small language model") for answer in IDENTITY[0].answers)

    def test_themes_draw_from_their_pages(self) -> None:
        """Greetings are answered with greetings, farewells with farewells."""
        rng = Random(5)
        assert greeting(rng).reply in {answer for kind in GREETING for answer in kind.answers}
        assert farewell(rng).reply in {answer for kind in FAREWELL for answer in kind.answers}
        assert talk(rng).reply
        assert amusement(rng).reply


class TestUnknowns:
    """Honest refusals."""

    def test_refusals_say_so(self) -> None:
        """Whatever is beyond the model is declined in plain words."""
        assert all(HONEST.search(unknown(Random(seed)).reply) for seed in range(500))

    def test_junk_is_not_understood(self) -> None:
        """Keyboard junk gets the same answer always."""
        assert {nonsense(Random(seed)).reply for seed in range(50)} == {NO_SENSE}

    def test_nothing_known_is_declined(self) -> None:
        """What the facts know is not among the unknown."""
        known = {country for country, _ in CAPITALS} | {noun for noun, _ in (*MEANINGS, *EXPLANATIONS)}
        assert not known & {*smalltalk.COUNTRIES, *smalltalk.ORDINARY, *smalltalk.HARD_TOPICS}

    def test_a_test_is_answered(self) -> None:
        """`test` is answered with a sign of life."""
        assert sign_of_life(Random(0)).reply.startswith("It works!")


class TestWords:
    """Words, known or made up."""

    @pytest.mark.parametrize(("draw", "known"), [(some_name, NAMES), (some_city, CITIES), (some_thing, THINGS)])
    def test_half_is_made_up(self, draw, known) -> None:
        """Half of the names are made up, so that a model must copy and cannot guess."""
        rng = Random(1)
        share = sum(draw(rng) in known for _ in range(2000)) / 2000
        assert 0.45 < share < 0.55

    def test_topics_are_known_and_new(self) -> None:
        """Stories are about known animals, and about words that nobody has seen."""
        drawn = {some_topic(Random(seed)) for seed in range(400)}
        assert drawn & set(ANIMALS)
        assert len(drawn) > 150
