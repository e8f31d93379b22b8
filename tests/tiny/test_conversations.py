"""Conversations of the corpus: what refers to an answer before, tools, schemas, system prompts, other languages."""

from __future__ import annotations

import json
from random import Random

import pytest

from lmtool.protocol.http.tools.formats import TOOL_CALL_PARSERS
from tests.tiny.recipe.arithmetic import TOO_FAR, count_and_back
from tests.tiny.recipe.copying import (
    changed_record,
    fields_record,
    introduction,
    remembered_fact,
    repeat,
    repeat_again,
)
from tests.tiny.recipe.corpus import short_turn
from tests.tiny.recipe.facts import CAPITALS, and_of, capital, colour_of, opposite, several_more, sound
from tests.tiny.recipe.grading import CALL, HONEST
from tests.tiny.recipe.smalltalk import LANGUAGES, and_of_nowhere, foreign, made_up_place, opinion, two_jokes
from tests.tiny.recipe.tools import by_schema, by_system, functions, with_tools

SEEDS = range(150)


class TestFollowUps:
    """A question that refers to what was said before."""

    def test_counting_is_turned_round(self) -> None:
        """`now backwards` has the same numbers, the last one first."""
        for seed in SEEDS:
            first, *rest = count_and_back(Random(seed))
            assert bool(rest) == (first.reply != TOO_FAR)
            assert all(turn.reply.split(", ") == first.reply.split(", ")[::-1] for turn in rest)

    def test_what_was_said_is_said_again(self) -> None:
        """`say it again` gets the same answer."""
        for seed in SEEDS:
            first, again = repeat_again(Random(seed))
            assert first.reply == again.reply
            assert first.reply in first.prompt

    def test_one_value_of_a_record_is_changed(self) -> None:
        """The changed record has the same keys, and the new value is in the question."""
        for seed in SEEDS:
            turns = changed_record(Random(seed))
            before, after = (json.loads(turn.reply) for turn in turns)
            assert list(before) == list(after)
            changed = [key for key in before if before[key] != after[key]]
            assert len(changed) <= 1
            assert all(str(after[key]) in turns[1].prompt for key in changed)

    def test_the_same_is_asked_of_something_else(self) -> None:
        """`and of Italy?` has the answer of the whole question; of nowhere, a refusal."""
        whole = {kind(Random(seed)).reply for kind in (capital, opposite, colour_of, sound) for seed in range(1500)}
        for seed in SEEDS:
            first, second = and_of(Random(seed))
            assert {first.reply, second.reply} <= whole
            assert first.reply != second.reply
            _, nowhere = and_of_nowhere(Random(seed))
            assert HONEST.search(nowhere.reply)

    def test_members_of_a_list_are_recalled_or_new(self) -> None:
        """The first one is the first one of the list before; two more are not in it."""
        for seed in SEEDS:
            first, second = several_more(Random(seed))
            listed = first.reply.removesuffix(".").lower().replace(" and ", ", ").split(", ")
            if " one was " in second.reply:
                assert second.reply.removesuffix(".").partition(" one was ")[2].lower() in listed
            else:
                assert not set(listed) & set(second.reply.removesuffix(".").lower().replace(" and ", ", ").split(", "))

    def test_what_the_user_says_of_himself_is_recalled(self) -> None:
        """The value in the last answer stands in the first message."""
        for seed in SEEDS:
            turns = remembered_fact(Random(seed), short_turn)
            assert turns[-1].reply.removesuffix(".").partition(" is ")[2] in turns[0].prompt

    def test_another_joke_is_another(self) -> None:
        """Nobody hears the same joke twice."""
        assert all(one.reply != other.reply for one, other in (two_jokes(Random(seed)) for seed in SEEDS))


class TestOneTurn:
    """Answers that take their words from the question."""

    @pytest.mark.parametrize("make", [fields_record, repeat, introduction], ids=lambda make: make.__name__)
    def test_values_stand_in_the_question(self, make) -> None:
        """Values of a record, words to repeat and a name in the same breath are the question's own."""
        for seed in SEEDS:
            turn = make(Random(seed))
            if make is fields_record:
                values = [str(value) for item in json.loads(turn.reply).items() for value in item]
            else:
                values = [turn.reply] if make is repeat else [turn.reply.removesuffix(".").partition("name is ")[2]]
            assert all(value in turn.prompt for value in values), turn


class TestTools:
    """Functions that a client offers."""

    def test_calls_are_read_by_the_server(self) -> None:
        """A call has the form that the server reads as Hermes', and names an offered function with its arguments."""
        calls = 0
        for seed in SEEDS:
            chat = with_tools(Random(seed), short_turn, None)
            offered = {tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in chat.tools}
            match = CALL.fullmatch(chat.turns[0].reply)
            reader = TOOL_CALL_PARSERS["hermes"].reader()
            deltas = [*reader.push(chat.turns[0].reply), *reader.finish()]
            assert bool(match) == any(delta.name for delta in deltas)
            if match:
                calls += 1
                call = json.loads(match[1])
                assert set(call["arguments"]) == set(offered[call["name"]])
                assert json.loads("".join(delta.arguments for delta in deltas)) == call["arguments"]
                assert all(str(value) in chat.turns[0].prompt for value in call["arguments"].values())
        assert 0.6 * len(SEEDS) < calls < 0.9 * len(SEEDS)

    def test_functions_are_read_from_their_page(self) -> None:
        """Every function has arguments and ways to ask that name each of them."""
        for function in functions():
            assert function.asks
            assert all(f"{{{name}}}" in ask for ask in function.asks for name in function.arguments)

    def test_answers_follow_their_schema(self) -> None:
        """The record has the keys of the schema in its order, with values of their types."""
        for seed in SEEDS:
            chat = by_schema(Random(seed))
            start = chat.system.index("{")
            schema, _ = json.JSONDecoder().raw_decode(chat.system[start:])
            record = json.loads(chat.turns[0].reply)
            assert list(record) == list(schema["properties"])
            kinds = {"integer": int, "string": str}
            assert all(isinstance(record[key], kinds[one["type"]]) for key, one in schema["properties"].items())

    def test_system_prompts_are_followed(self) -> None:
        """A name in the system prompt is in the answer; JSON is answered where it asks for JSON."""
        for seed in SEEDS:
            chat = by_system(Random(seed))
            if "JSON" in chat.system:
                assert set(json.loads(chat.turns[0].reply)) == {"answer"}
            else:
                assert any(word.strip(".,") in chat.system for word in chat.turns[0].reply.split()[2:4])


class TestLanguages:
    """Other languages, places that are not, and opinions."""

    def test_a_language_is_answered_in_itself(self) -> None:
        """Spanish, German, French, Italian and Russian have answers of their own."""
        assert LANGUAGES == ("Spanish", "German", "French", "Italian", "Russian")
        assert len({foreign(Random(seed)).reply for seed in range(400)}) == 15

    def test_made_up_places_are_no_known_country(self) -> None:
        """No country with a known capital is among those to be declined."""
        known = {country for country, _ in CAPITALS}
        assert not known & {made_up_place(Random(seed)) for seed in range(2000)}

    def test_opinions_are_a_programs(self) -> None:
        """Asked for likes and opinions, it says that it is a program, or that tastes differ."""
        assert all("program" in reply or "others like" in reply for reply in (opinion(Random(s)).reply for s in SEEDS))
