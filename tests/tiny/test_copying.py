"""Answers made of the question's own words."""

from __future__ import annotations

import json
from random import Random

from lmtool.tiny.copying import (
    any_record,
    completion,
    copied,
    introduction,
    other_record,
    person_record,
    remembered_name,
    repeat,
)
from lmtool.tiny.smalltalk import greeting


def test_records_hold_what_the_sentence_says() -> None:
    """A record is JSON, and each of its values stands in the sentence."""
    for seed in range(200):
        turn = (person_record, other_record)[seed % 2](Random(seed))
        record = json.loads(turn.reply)
        assert all(str(value) in turn.prompt for value in record.values())


def test_a_record_without_data_is_still_json() -> None:
    """Asked for any record, it makes one up."""
    assert set(json.loads(any_record(Random(0)).reply)) == {"name", "age", "city"}


def test_repetition_is_literal() -> None:
    """What is to be repeated stands in the question, letter by letter."""
    assert all((turn := repeat(Random(seed))).reply in turn.prompt for seed in range(200))


def test_a_name_is_remembered() -> None:
    """The name told in the first turn is the answer of the last."""
    for seed in range(50):
        turns = remembered_name(Random(seed), greeting)
        name = turns[-1].reply.removeprefix("Your name is ").removesuffix(".")
        assert name in turns[0].prompt
        assert name in turns[0].reply


def test_one_turn_kinds_answer() -> None:
    """Introductions, sentences with a question, and the mix of all."""
    for make in (introduction, completion, copied):
        assert all(make(Random(seed)).reply for seed in range(50))
