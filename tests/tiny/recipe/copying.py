"""Requests whose answer repeats the question's own words: records, repetition, a name or another thing to remember."""

import json
from collections.abc import Callable, Mapping
from random import Random

from tests.tiny.recipe.document import Turn
from tests.tiny.recipe.phrasebook import items, lines, words
from tests.tiny.recipe.phrasing import (
    ANIMALS,
    CITIES,
    COLOURS,
    EVERYDAY,
    FRUITS,
    JOBS,
    NAMES,
    SURNAMES,
    article,
    capitalised,
    fill,
    hurried,
    invent,
    sloppy,
    some_city,
    some_name,
    some_thing,
    some_word,
    unpunctuated,
)

Fields = dict[str, object]
KEYS = words("words", "keys")
NUMBER_KEYS = frozenset(words("words", "number keys"))
QUOTES = ('"', '"', "'", "“")


def person(rng: Random) -> tuple[str, Fields]:
    """Return a sentence about a person, and what it says."""
    name, age = some_name(rng), rng.randint(1, 99)
    if rng.random() < 0.15:
        name += " " + rng.choice(SURNAMES)
    fields: Fields = {"name": name, "age": age}
    kind = rng.random()
    if kind < 0.2:
        return fill(rng, lines("copying", "person age"), n=name, a=age), fields
    if kind < 0.4:
        job = rng.choice(JOBS)
        return fill(rng, lines("copying", "person job"), n=name, a=age, j=article(job)), fields | {"job": job}
    city = some_city(rng)
    if kind < 0.6:
        return fill(rng, lines("copying", "person home"), n=name, c=city), {"name": name, "city": city}
    return fill(rng, lines("copying", "person city"), n=name, a=age, c=city), fields | {"city": city}


def other(rng: Random) -> tuple[str, Fields]:
    """Return a sentence about a thing or an animal, and what it says."""
    kind = rng.random()
    colour = rng.choice(COLOURS)
    if kind < 0.33:
        thing, price = rng.choice((some_thing(rng), rng.choice(FRUITS), some_word(rng))), rng.randint(1, 200)
        text = fill(rng, lines("copying", "item price"), t=thing, T=capitalised(article(thing)), p=price)
        return text, {"item": thing, "price": price}
    if kind < 0.55:
        animal, name = rng.choice(ANIMALS), some_name(rng)
        text = fill(rng, lines("copying", "animal"), n=name, c=colour, a=animal)
        return text, {"name": name, "animal": animal, "colour": colour}
    if kind < 0.75:
        animal = rng.choice(ANIMALS)
        return fill(rng, lines("copying", "thing colour"), t=animal, c=colour), {"animal": animal, "colour": colour}
    thing = some_thing(rng)
    return fill(rng, lines("copying", "thing colour"), t=thing, c=colour), {"thing": thing, "colour": colour}


def person_record(rng: Random) -> Turn:
    """Return a sentence about a person and its JSON record."""
    if rng.random() < 0.3:
        name, age, city = some_name(rng), rng.randint(1, 99), some_city(rng)
        section, fields = rng.choice(
            (
                ("who age", {"name": name, "age": age}),
                ("who age city", {"name": name, "age": age, "city": city}),
                ("who city", {"name": name, "city": city}),
            )
        )
        who = fill(rng, lines("copying", section), n=name, a=age, c=city).rstrip()
        return Turn(unpunctuated(rng, fill_text(rng, "ask person", s=who)), json.dumps(fields))
    return _record(rng, *person(rng))


def other_record(rng: Random) -> Turn:
    """Return a sentence about a thing or an animal and its JSON record."""
    return _record(rng, *other(rng))


def some_fields(rng: Random, count: int) -> Fields:
    """Return so many keys with values; one key in eight is made up, as is half of the values."""
    keys = [invent(rng) if rng.random() < 0.12 else key for key in rng.sample(KEYS, count)]
    return {key: _value(rng, key) for key in keys}


def _value(rng: Random, key: str) -> object:
    if key in NUMBER_KEYS or (key not in KEYS and rng.random() < 0.3):
        most = rng.choice((10, 99, 99, 999, 2030))
        return rng.randint(1000, 2030) if most == 2030 or key == "year" else rng.randint(0, most)
    if key in {"name", "first", "author", "artist"}:
        return some_name(rng)
    if key in {"colour", "color"}:
        return rng.choice(COLOURS)
    if key == "city":
        return some_city(rng)
    word = some_word(rng)
    if rng.random() < 0.2:
        word += " " + some_word(rng)
    return word.title() if rng.random() < 0.4 else word


def fields_record(rng: Random) -> Turn:
    """Return keys with their values, and the record that they make."""
    fields = some_fields(rng, rng.choice((1, 2, 2, 2, 3, 3, 4)))
    if rng.random() < 0.25:
        return Turn(fill_text(rng, "ask literal", j=json.dumps(fields)), json.dumps(fields))
    between = rng.choice((" ", ": ", "=", " = ", " is ", ": ", " "))
    listed = [f"{key}{between}{_shown(rng, value)}" for key, value in fields.items()]
    text = rng.choice((", ".join(listed), ", ".join(listed), " and ".join(listed), "; ".join(listed)))
    if len(listed) > 1 and rng.random() < 0.5:
        text = ", ".join(listed[:-1]) + " and " + listed[-1]
    prompt = fill_text(rng, "ask fields", f=text, to=rng.choice(("to", "into")))
    return Turn(unpunctuated(rng, prompt), json.dumps(fields))


def _shown(rng: Random, value: object) -> str:
    return f'"{value}"' if isinstance(value, str) and rng.random() < 0.12 else str(value)


def fill_text(rng: Random, section: str, **slots: object) -> str:
    """Return a phrase of the section, typed in a hurry, with texts in its slots that stay as they are.

    `:?` becomes a colon or nothing.
    """
    marks = {name: f"<<{name}>>" for name in slots}
    text = fill(rng, lines("copying", section), **marks).replace(":?", rng.choice((":", "")))
    text = hurried(rng, text, typos=0.1)
    for name, value in slots.items():
        text = text.replace(f"<<{name}>>", str(value))
    return text


def changed_record(rng: Random) -> list[Turn]:
    """Return a request for a record, and one to change a value in it."""
    turn = rng.choice((person_record, person_record, other_record, fields_record))(rng)
    fields: Fields = json.loads(turn.reply)
    key = rng.choice(list(fields))
    new = rng.randint(1, 99) if isinstance(fields[key], int) else _value(rng, key if key in KEYS else "item")
    prompt = fill_text(rng, "change record", k=key, v=new, o=fields[key])
    return [turn, Turn(unpunctuated(rng, prompt), json.dumps(fields | {key: new}))]


def any_record(rng: Random) -> Turn:
    """Return a request for a record without any data, and a record of somebody known."""
    fields = {"name": rng.choice(NAMES), "age": rng.randint(1, 99), "city": rng.choice(CITIES)}
    return Turn(unpunctuated(rng, fill(rng, lines("copying", "any record"))), json.dumps(fields))


def repeat(rng: Random) -> Turn:
    """Return a request to say something again."""
    if rng.random() < 0.25:
        text = _clause(rng)
        return Turn(fill_text(rng, "repeat sentence", s=text), text)
    length = rng.choice((1, 1, 2, 2, 2, 3, 3, 4, 5))
    if rng.random() < 0.35:
        text = " ".join(rng.choice(EVERYDAY) for _ in range(length))
    else:
        text = " ".join(
            rng.choice((invent(rng), some_word(rng), some_word(rng), some_name(rng))) for _ in range(length)
        )
    if rng.random() < 0.3:
        quote = rng.choice(QUOTES)
        prompt = fill_text(rng, "repeat quoted", s=text, q=quote)
        return Turn(prompt.replace(f"{text}“", f"{text}”"), text)
    return Turn(unpunctuated(rng, fill_text(rng, "repeat", s=text)), text)


def _clause(rng: Random) -> str:
    subject = rng.choice(items("copying", "clause subject"))
    end = rng.choice(items("copying", "clause end")).format(w=some_word(rng), w2=some_word(rng))
    return f"{subject} {end}" + rng.choice((".", ".", "", "!"))


def repeat_again(rng: Random) -> list[Turn]:
    """Return a request to say something, and one to say it again."""
    turn = repeat(rng)
    return [turn, Turn(sloppy(rng, fill(rng, lines("copying", "again"))), turn.reply)]


def completion(rng: Random) -> Turn:
    """Return a sentence with a question about it."""
    name, other_name, place = some_name(rng), some_name(rng), some_city(rng)
    has = f"has {article(some_thing(rng))}"
    question, answer = rng.choice(
        (
            (f"{name} {has}. What does {name} have?", f"{name} {has}."),
            (f"{name} lives in {place}. Where does {name} live?", f"{name} lives in {place}."),
            (f"{name} gave {other_name} {article(some_thing(rng))}. Who got it?", f"{other_name} got it."),
            (
                f"{name} lives in {place} and {other_name} {has}. What does {other_name} have?",
                f"{other_name} {has}.",
            ),
        )
    )
    return Turn(unpunctuated(rng, question), answer)


KINDS: tuple[tuple[Callable[[Random], Turn], int], ...] = (
    (person_record, 20),
    (other_record, 20),
    (fields_record, 28),
    (repeat, 60),
    (completion, 8),
    (any_record, 1),
)
"""Each kind of request with its share, relative to the others."""


def copying(rng: Random) -> Turn:
    """Return any request of this theme but those about the user."""
    return rng.choices([kind for kind, _ in KINDS], [share for _, share in KINDS])[0](rng)


def introduction(rng: Random) -> Turn:
    """Return an introduction, with or without the question for the name, or the question alone; the only turn."""
    kind = rng.random()
    if kind < 0.35:
        return _introduce(rng, _user_name(rng))
    if kind < 0.45:
        return Turn(_ask_name(rng), "I do not know your name yet. What is it?")
    name = _user_name(rng)
    told = fill_text(rng, "introduction", n=name).rstrip(".!?")
    return Turn(told + rng.choice((". ", ", ", ". ", " - ", "! ", " ")) + _ask_name(rng), f"Your name is {name}.")


def remembered_name(rng: Random, between: Callable[[Random], Turn]) -> list[Turn]:
    """Return a conversation in which the user says a name and later asks for it.

    between: makes a turn to stand in the middle, so that the name is not always close by.
    """
    name = _user_name(rng)
    middle = [between(rng) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    return [_introduce(rng, name), *middle, Turn(_ask_name(rng), f"Your name is {name}.")]


def remembered_fact(rng: Random, between: Callable[[Random], Turn]) -> list[Turn]:
    """Return a conversation in which the user says something else of himself and later asks for it."""
    key = rng.choice(items("copying", "own kinds"))
    value = some_name(rng) if "name" in key else rng.choice((some_word(rng), rng.choice(COLOURS), some_city(rng)))
    first = Turn(
        unpunctuated(rng, fill_text(rng, "own facts", k=key, v=value)), f"I will remember that: your {key} is {value}."
    )
    middle = [between(rng) for _ in range(rng.choice((0, 0, 1)))]
    question = sloppy(rng, fill(rng, lines("copying", "ask own fact"), k=key))
    return [first, *middle, Turn(question, f"Your {key} is {value}.")]


def _record(rng: Random, sentence: str, fields: Mapping[str, object]) -> Turn:
    prompt = fill_text(rng, "ask record", s=sentence)
    return Turn(unpunctuated(rng, prompt) if rng.random() < 0.5 else prompt, json.dumps(fields))


def _user_name(rng: Random) -> str:
    name = some_name(rng)
    return name.lower() if rng.random() < 0.15 else name


def _introduce(rng: Random, name: str) -> Turn:
    prompt = fill_text(rng, "introduction", n=name)
    return Turn(unpunctuated(rng, prompt), fill(rng, lines("copying", "welcome"), n=name))


def _ask_name(rng: Random) -> str:
    return sloppy(rng, fill(rng, lines("copying", "ask name")))
