"""Pleasantries, what the model says of itself, and refusals of what it cannot know, do or understand."""

from random import Random

from tests.tiny.recipe.document import Turn
from tests.tiny.recipe.facts import capital
from tests.tiny.recipe.phrasebook import Talk, items, lines, page, talks, words
from tests.tiny.recipe.phrasing import COMMON, fill, invent, sloppy, spin, unpunctuated

GREETING = talks("smalltalk", "greeting")
FAREWELL = talks("smalltalk", "farewell")
IDENTITY = talks("smalltalk", "identity")
FEELINGS = talks("smalltalk", "feelings")
CHIT_CHAT = GREETING * 3 + FAREWELL + IDENTITY * 2 + FEELINGS * 3 + talks("smalltalk", "tech")
"""Every pleasantry; greetings and feelings come three times as often as most, questions about itself twice."""

NO_SENSE = "I do not understand that. Ask me for a story, an easy sum or a fact."

COUNTRIES = items("unknowns", "countries")
HARD_TOPICS = items("unknowns", "hard topics")
FAMOUS_PEOPLE = items("unknowns", "people")
ORDINARY = words("unknowns", "ordinary")
JUNK = words("unknowns", "junk")
FAIRY_LANDS = items("unknowns", "fairy lands")
PLACE_ENDINGS = items("unknowns", "place endings")
OPINION_TOPICS = items("unknowns", "opinion topics")
LANGUAGES = tuple(page("languages"))
KEY_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")

SHARES = {
    "questions": 16,
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

UNKNOWN_PLACES = 0.55
"""Share of the requests, 0 to 1, that are about a country."""


def talk(rng: Random, kinds: tuple[Talk, ...] = CHIT_CHAT) -> Turn:
    """Return a pleasantry and its answer."""
    kind = rng.choice(kinds)
    prompt = fill(rng, kind.asks)
    return Turn(prompt.rstrip("?") if rng.random() < 0.2 else sloppy(rng, prompt), rng.choice(kind.answers))


def greeting(rng: Random) -> Turn:
    """Return a greeting."""
    return talk(rng, GREETING)


def farewell(rng: Random) -> Turn:
    """Return thanks, a farewell or a short remark."""
    return talk(rng, FAREWELL)


def amusement(rng: Random) -> Turn:
    """Return a request for a joke, a curious fact or a riddle."""
    kind = rng.random()
    if kind < 0.55:
        section, answer = "ask joke", rng.choice(lines("smalltalk", "jokes"))
    elif kind < 0.85:
        section, answer = "ask curious", "Did you know? " + rng.choice(lines("smalltalk", "curious facts"))
    else:
        section, answer = "ask riddle", rng.choice(lines("smalltalk", "riddles")).replace(" / ", " ")
    return Turn(sloppy(rng, fill(rng, lines("smalltalk", section))), answer)


def two_jokes(rng: Random) -> list[Turn]:
    """Return a request for a joke, and one for another."""
    first, second = rng.sample(lines("smalltalk", "jokes"), 2)
    return [
        Turn(sloppy(rng, fill(rng, lines("smalltalk", "ask joke"))), first),
        Turn(sloppy(rng, fill(rng, lines("smalltalk", "ask another"))), second),
    ]


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


def made_up_place(rng: Random) -> str:
    """Return the name of a country that there is not, or that the model does not know."""
    kind = rng.random()
    if kind < 0.2:
        return rng.choice(COUNTRIES)
    if kind < 0.3:
        return rng.choice(FAIRY_LANDS)
    word = invent(rng)
    return (word if kind < 0.5 else word.rstrip("aeiou") + rng.choice(PLACE_ENDINGS)).capitalize()


def unknown_place(rng: Random) -> Turn:
    """Return a question about a country that the model does not know, asked just as those about known ones."""
    place = made_up_place(rng)
    section = rng.choice((("facts", "ask capital"), ("unknowns", "places")))
    (kind,) = talks("unknowns", "questions")
    return Turn(sloppy(rng, fill(rng, lines(*section), c=place, f=place)), rng.choice(kind.answers))


def and_of_nowhere(rng: Random) -> list[Turn]:
    """Return a question for a capital, and the same one for a place that the model does not know."""
    (kind,) = talks("unknowns", "questions")
    question = fill(rng, ("[And|and|ok, and] of {p}?", "[what about|and] {p}?"), p=made_up_place(rng))
    return [capital(rng), Turn(sloppy(rng, question), rng.choice(kind.answers))]


def opinion(rng: Random) -> Turn:
    """Return a question for what the model likes or thinks, and an answer that says that it is a program."""
    things = [rng.choice(rng.choice((OPINION_TOPICS, OPINION_TOPICS, COMMON[:120]))) for _ in range(2)]
    if rng.random() < 0.15:
        things = [invent(rng), invent(rng)]
    kind = rng.choices(("like", "think", "better"), (40, 35, 25))[0]
    prompt = fill(rng, lines("unknowns", f"ask {kind}"), x=things[0], y=things[1])
    (answer,) = lines("unknowns", f"say {kind}")
    return Turn(sloppy(rng, prompt), answer.format(x=things[0], y=things[1]))


def foreign(rng: Random) -> Turn:
    """Return a greeting or a request in another language, and an answer in that language."""
    language = rng.choice(LANGUAGES)
    kind = rng.choice(talks("languages", language))
    prompt = spin(rng, rng.choice(kind.asks))
    if rng.random() < 0.3:
        prompt = prompt.lower()
    return Turn(unpunctuated(rng, prompt), rng.choice(kind.answers))


def unknown(rng: Random) -> Turn:
    """Return a request that is beyond a small model, and an honest answer."""
    if rng.random() < UNKNOWN_PLACES:
        return unknown_place(rng)
    (kind,) = talks("unknowns", rng.choices(list(SHARES), list(SHARES.values()))[0])
    return Turn(sloppy(rng, _fill_unknown(rng, kind)), rng.choice(kind.answers))


def _fill_unknown(rng: Random, kind: Talk) -> str:
    odd, odd2 = (rng.choice(ORDINARY) if rng.random() < 0.45 else invent(rng) for _ in range(2))
    country = rng.choice(COUNTRIES)
    hard, hard2 = rng.sample(HARD_TOPICS, 2)
    spelling = ("strawberry", "banana", "apple", "cat", "hello", "mississippi", "dog", "orange", "house")
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
        person=rng.choice(FAMOUS_PEOPLE) if rng.random() < 0.6 else f"{odd.capitalize()} {odd2.capitalize()}",
        word=rng.choice((odd, odd2, *spelling)),
    )
