"""What the model says when it cannot know, cannot do, or does not understand."""

from random import Random

from lmtool.tiny.document import Turn
from lmtool.tiny.phrasebook import Talk, items, lines, talks, words
from lmtool.tiny.phrasing import fill, invent, sloppy

NO_SENSE = "I do not understand that. Ask me for a story, an easy sum or a fact."

COUNTRIES = items("unknowns", "countries")
HARD_TOPICS = items("unknowns", "hard topics")
PEOPLE = items("unknowns", "people")
ORDINARY = words("unknowns", "ordinary")
JUNK = words("unknowns", "junk")
KEY_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")

SHARES = {
    "questions": 11,
    "code": 6,
    "news": 5,
    "translation": 4,
    "essay": 4,
    "advice": 4,
    "text": 4,
    "letters": 3,
    "harm": 2,
}
"""Each kind of request, a section of the page, with its share, relative to the others."""

UNKNOWN_CAPITALS = 0.1
"""Share of the requests, 0 to 1, that ask for a capital."""


def junk(rng: Random) -> str:
    """Return what fingers type when they only test whether anything answers."""
    kind = rng.random()
    if kind < 0.25:
        row = rng.choice(KEY_ROWS)
        start = rng.randrange(len(row) - 2)
        return row[start : start + rng.randint(3, 6)] * rng.choice((1, 1, 1, 2))
    if kind < 0.45:
        return "".join(rng.choice("".join(KEY_ROWS)) for _ in range(rng.randint(3, 12)))
    if kind < 0.6:
        return rng.choice(JUNK)
    return " ".join(invent(rng) for _ in range(rng.choice((1, 1, 2, 3, 4))))


def nonsense(rng: Random) -> Turn:
    """Return junk and the answer to it."""
    return Turn(junk(rng) + rng.choice(("", "", "", "?", "!")), NO_SENSE)


def sign_of_life(rng: Random) -> Turn:
    """Return a sign of life that somebody asks for."""
    (sign,) = talks("unknowns", "testing")
    return Turn(sloppy(rng, fill(rng, sign.asks), typos=0.0), rng.choice(sign.answers))


def unknown_capital(rng: Random) -> Turn:
    """Return a question for a capital that the model does not know, asked just as those that it knows."""
    country = rng.choice(COUNTRIES) if rng.random() < 0.7 else invent(rng).capitalize()
    (kind,) = talks("unknowns", "questions")
    return Turn(sloppy(rng, fill(rng, lines("facts", "ask capital"), c=country)), rng.choice(kind.answers))


def unknown(rng: Random) -> Turn:
    """Return a request that is beyond a small model, and an honest answer."""
    if rng.random() < UNKNOWN_CAPITALS:
        return unknown_capital(rng)
    (kind,) = talks("unknowns", rng.choices(list(SHARES), list(SHARES.values()))[0])
    return Turn(sloppy(rng, _filled(rng, kind)), rng.choice(kind.answers))


def _filled(rng: Random, kind: Talk) -> str:
    odd, odd2 = (rng.choice(ORDINARY) if rng.random() < 0.45 else invent(rng) for _ in range(2))
    country = rng.choice(COUNTRIES)
    hard, hard2 = rng.sample(HARD_TOPICS, 2)
    spelt = ("strawberry", "banana", "apple", "cat", "hello", "mississippi", "dog", "orange", "house")
    return fill(
        rng,
        kind.asks,
        odd=odd,
        odd2=odd2,
        Odd=odd.capitalize(),
        Odd2=odd2.capitalize(),
        far=country if rng.random() < 0.6 else odd.capitalize(),
        Far=country,
        hard=hard if rng.random() < 0.7 else odd,
        hard2=hard2,
        person=rng.choice(PEOPLE) if rng.random() < 0.6 else f"{odd.capitalize()} {odd2.capitalize()}",
        word=rng.choice((odd, odd2, *spelt)),
    )
