"""Requests whose answer repeats the question's own words: records, repetition, a name to remember."""

import json
from collections.abc import Callable
from random import Random

from lmtool.tiny.recipe.document import Turn
from lmtool.tiny.recipe.phrasebook import lines
from lmtool.tiny.recipe.phrasing import (
    ANIMALS,
    CITIES,
    COLOURS,
    FRUITS,
    JOBS,
    NAMES,
    PEOPLE,
    SURNAMES,
    THINGS,
    article,
    capitalised,
    fill,
    invent,
    some_city,
    some_name,
    some_thing,
    unpunctuated,
)


def person_record(rng: Random) -> Turn:
    """Return a sentence about a person and its JSON record."""
    name, age = some_name(rng), rng.randint(1, 99)
    if rng.random() < 0.2:
        name += " " + rng.choice(SURNAMES)
    fields: dict[str, object] = {"name": name, "age": age}
    kind = rng.random()
    if kind < 0.25:
        return _record(rng, fill(rng, lines("copying", "person age"), n=name, a=age), fields)
    if kind < 0.5:
        job = rng.choice(JOBS)
        text = fill(rng, lines("copying", "person job"), n=name, a=age, j=article(job))
        return _record(rng, text, fields | {"job": job})
    city = some_city(rng)
    text = fill(rng, lines("copying", "person city"), n=name, a=age, c=city)
    return _record(rng, text, fields | {"city": city})


def other_record(rng: Random) -> Turn:
    """Return a sentence about a thing or an animal and its JSON record."""
    kind = rng.random()
    colour = rng.choice(COLOURS)
    if kind < 0.33:
        thing, price = rng.choice((some_thing(rng), rng.choice(FRUITS), invent(rng))), rng.randint(1, 200)
        text = fill(rng, lines("copying", "item price"), t=thing, T=capitalised(article(thing)), p=price)
        return _record(rng, text, {"item": thing, "price": price})
    if kind < 0.67:
        animal, name = rng.choice(ANIMALS), some_name(rng)
        text = fill(rng, lines("copying", "animal"), n=name, c=colour, a=animal)
        return _record(rng, text, {"name": name, "animal": animal, "colour": colour})
    thing = some_thing(rng)
    return _record(rng, f"The {thing} is {colour}.", {"thing": thing, "colour": colour})


def any_record(rng: Random) -> Turn:
    """Return a request for a record without any data, and a record of somebody known."""
    fields = {"name": rng.choice(NAMES), "age": rng.randint(1, 99), "city": rng.choice(CITIES)}
    return Turn(unpunctuated(rng, fill(rng, lines("copying", "any record"))), json.dumps(fields))


def repeat(rng: Random) -> Turn:
    """Return a request to say something again."""
    known = ANIMALS + THINGS + COLOURS + PEOPLE
    length = rng.choice((1, 1, 2, 3, 4))
    text = " ".join(rng.choice((invent(rng), invent(rng), rng.choice(known), some_name(rng))) for _ in range(length))
    return Turn(unpunctuated(rng, fill(rng, lines("copying", "repeat"), s=text)), text)


def completion(rng: Random) -> Turn:
    """Return a sentence with a question about it."""
    name, other, place = some_name(rng), some_name(rng), some_city(rng)
    has = f"has {article(some_thing(rng))}"
    question, answer = rng.choice(
        (
            (f"{name} {has}. What does {name} have?", f"{name} {has}."),
            (f"{name} lives in {place}. Where does {name} live?", f"{name} lives in {place}."),
            (f"{name} gave {other} {article(some_thing(rng))}. Who got it?", f"{other} got it."),
            (f"{name} lives in {place} and {other} {has}. What does {other} have?", f"{other} {has}."),
        )
    )
    return Turn(unpunctuated(rng, question), answer)


KINDS = ((person_record, 34), (other_record, 34), (repeat, 34), (completion, 14), (any_record, 2))
"""Each kind of request with its share, relative to the others."""


def copying(rng: Random) -> Turn:
    """Return any request of this theme but those about the user's own name."""
    return rng.choices([kind for kind, _ in KINDS], [share for _, share in KINDS])[0](rng)


def introduction(rng: Random) -> Turn:
    """Return an introduction, or the question for an unknown name; it must be the only turn."""
    if rng.random() < 0.6:
        return _introduce(rng, _user_name(rng))
    return Turn(_ask_name(rng), "I do not know your name yet. What is it?")


def remembered_name(rng: Random, between: Callable[[Random], Turn]) -> list[Turn]:
    """Return a conversation in which the user says a name and later asks for it.

    between: makes a turn to stand in the middle, so that the name is not always close by.
    """
    name = _user_name(rng)
    middle = [between(rng) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    return [_introduce(rng, name), *middle, Turn(_ask_name(rng), f"Your name is {name}.")]


def _record(rng: Random, sentence: str, fields: dict[str, object]) -> Turn:
    prompt = fill(rng, lines("copying", "ask record"), s=sentence)
    return Turn(unpunctuated(rng, prompt) if rng.random() < 0.5 else prompt, json.dumps(fields))


def _user_name(rng: Random) -> str:
    name = some_name(rng)
    return name.lower() if rng.random() < 0.15 else name


def _introduce(rng: Random, name: str) -> Turn:
    prompt = fill(rng, lines("copying", "introduction"), n=name)
    return Turn(unpunctuated(rng, prompt), fill(rng, lines("copying", "welcome"), n=name))


def _ask_name(rng: Random) -> str:
    return unpunctuated(rng, fill(rng, lines("copying", "ask name")))
