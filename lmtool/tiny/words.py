"""Words that several themes draw from."""

from random import Random

from lmtool.tiny.phrasebook import words
from lmtool.tiny.phrasing import invent

NAMES = words("words", "names")
SURNAMES = words("words", "surnames")
CITIES = words("words", "cities")
ANIMALS = words("words", "animals")
PEOPLE = words("words", "people")
THINGS = words("words", "things")
COLOURS = words("words", "colours")
FRUITS = words("words", "fruits")
JOBS = words("words", "jobs")


def some_name(rng: Random) -> str:
    """Return a first name: known half of the time, else made up, so that names are copied and not guessed."""
    return rng.choice(NAMES) if rng.random() < 0.5 else invent(rng).capitalize()


def some_city(rng: Random) -> str:
    """Return a city: known half of the time, else made up."""
    return rng.choice(CITIES) if rng.random() < 0.5 else invent(rng).capitalize()


def some_thing(rng: Random) -> str:
    """Return a thing: known half of the time, else made up."""
    return rng.choice(THINGS) if rng.random() < 0.5 else invent(rng)


def some_topic(rng: Random) -> str:
    """Return a noun that a story can be about; one in four is made up."""
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(ANIMALS)
    if kind < 0.75:
        return rng.choice(PEOPLE if kind < 0.6 else THINGS)
    return invent(rng)
