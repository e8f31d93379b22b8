"""What the model knows about the world: short questions with one right answer."""

from collections.abc import Callable
from random import Random

from lmtool.tiny.recipe.document import Turn
from lmtool.tiny.recipe.phrasebook import items, lines, rows, table, talks
from lmtool.tiny.recipe.phrasing import ANIMALS, COLOURS, FRUITS, article, capitalised, fill, join_list, sloppy

CAPITALS = table("facts", "capitals")
OPPOSITES = table("facts", "opposites")
COLOUR_OF = table("facts", "colour of")
SOUNDS = table("facts", "sounds")
YOUNG = table("facts", "young")
LEGS = table("facts", "legs")
DAYS = items("facts", "days")
MONTHS = items("facts", "months")
MEANINGS = rows("facts", "meanings")
SINGLE = talks("facts", "single")
GROUPS = {
    "colours": COLOURS,
    "colors": COLOURS,
    "animals": ANIMALS[:24],
    "fruits": FRUITS,
    **{name: tuple(members.split(", ")) for name, members in rows("facts", "groups")},
}
AMOUNTS = ((2, "two"), (3, "three"), (3, "three"), (3, "3"), (4, "four"), (5, "five"), (3, "some"), (3, "a few"))


def capital(rng: Random) -> Turn:
    """Return a question for a capital, or for the country of a capital."""
    country, city = rng.choice(CAPITALS)
    chance = rng.random()
    if chance < 0.12:
        return Turn(f"{city} is the capital of which country?", f"{city} is the capital of {country}.")
    if chance < 0.17:
        return Turn(f"Where is {city}?", f"{city} is in {country}.")
    if chance < 0.22:
        return Turn(fill(rng, lines("facts", "ask city"), c=city), f"{city} is the capital of {country}.")
    return Turn(fill(rng, lines("facts", "ask capital"), c=country), f"The capital of {country} is {city}.")


def opposite(rng: Random) -> Turn:
    """Return a question for an opposite."""
    word, other = rng.choice(OPPOSITES)
    return Turn(fill(rng, lines("facts", "ask opposite"), w=word), f"The opposite of {word} is {other}.")


def colour_of(rng: Random) -> Turn:
    """Return a question for the colour of a thing."""
    thing, colour = rng.choice(COLOUR_OF)
    return Turn(fill(rng, lines("facts", "ask colour"), t=thing), f"{capitalised(thing)} is {colour}.")


def sound(rng: Random) -> Turn:
    """Return a question for what an animal says."""
    animal, says = rng.choice(SOUNDS)
    noun = article(animal)
    return Turn(fill(rng, lines("facts", "ask sound"), a=noun), f"{capitalised(noun)} says {says}.")


def young(rng: Random) -> Turn:
    """Return a question for the name of a young animal."""
    animal, name = rng.choice(YOUNG)
    return Turn(fill(rng, lines("facts", "ask young"), a=animal), f"A young {animal} is called {article(name)}.")


def legs(rng: Random) -> Turn:
    """Return a question for a number of legs."""
    animal, count = rng.choice(LEGS)
    noun = article(animal)
    return Turn(f"How many legs does {noun} have?", f"{capitalised(noun)} has {count} legs.")


def calendar(rng: Random) -> Turn:
    """Return a question for the neighbour of a day or month."""
    names, kind = rng.choice(((DAYS, "day"), (MONTHS, "month")))
    at = rng.randrange(len(names))
    side, step = ("after", 1) if rng.random() < 0.7 else ("before", -1)
    prompt = fill(rng, lines("facts", "ask day"), k=kind, s=side, d=names[at])
    return Turn(prompt, f"{names[(at + step) % len(names)]} comes {side} {names[at]}.")


def meaning(rng: Random) -> Turn:
    """Return a question for what a word means."""
    noun, text = rng.choice(MEANINGS)
    return Turn(fill(rng, lines("facts", "ask meaning"), a=article(noun), w=noun), text)


def single(rng: Random) -> Turn:
    """Return one of the facts that stand alone."""
    talk = rng.choice(SINGLE)
    return Turn(fill(rng, talk.asks), rng.choice(talk.answers))


def several(rng: Random) -> Turn:
    """Return a request to name some members of a group."""
    group = rng.choice(list(GROUPS))
    count, word = rng.choice(AMOUNTS)
    members = join_list(rng.sample(GROUPS[group], count))
    return Turn(fill(rng, lines("facts", "ask several"), c=word, g=group), f"{capitalised(members)}.")


KINDS: tuple[tuple[Callable[[Random], Turn], int], ...] = (
    (capital, 45),
    (opposite, 15),
    (colour_of, 14),
    (sound, 6),
    (young, 4),
    (legs, 4),
    (calendar, 7),
    (meaning, 8),
    (single, 26),
    (several, 7),
)
"""Each kind of fact with its share, relative to the others."""


def fact(rng: Random) -> Turn:
    """Return a question about the world and its answer."""
    kind = rng.choices([kind for kind, _ in KINDS], [share for _, share in KINDS])[0]
    turn = kind(rng)
    return Turn(sloppy(rng, turn.prompt), turn.reply)
