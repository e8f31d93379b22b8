"""Text without a chat around it: continuations of a bare beginning."""

from random import Random

from tests.tiny.recipe.arithmetic import small_sum
from tests.tiny.recipe.document import Plain, Turn
from tests.tiny.recipe.facts import CAPITALS, COLOUR_OF, DAYS, MONTHS, OPPOSITES, fact
from tests.tiny.recipe.phrasebook import lines
from tests.tiny.recipe.phrasing import (
    ANIMALS,
    CITIES,
    COLOURS,
    JOBS,
    NAMES,
    PEOPLE,
    THINGS,
    article,
    capitalised,
    fill,
    sloppy,
    some_topic,
)
from tests.tiny.recipe.stories import Wanted, sentence, story

SAYINGS = lines("plain", "sayings")
QUIZ_MARKS = (("Q: ", "\nA: "), ("Question: ", "\nAnswer: "), ("Q:", "\nA:"), ("", "\n"), ("User: ", "\nAssistant: "))
"""What stands before a question and before its answer."""


def plain(rng: Random) -> Plain:
    """Return a document of plain text."""
    kinds = (_story, _beginning, _saying, _statements, _quiz, _series)
    return Plain(rng.choices(kinds, (26, 36, 10, 10, 12, 6))[0](rng), leading_token=rng.random() < 0.2)


def saying_turn(rng: Random) -> Turn:
    """Return the beginning of a saying, and the whole of it."""
    saying = rng.choice(SAYINGS)
    words = saying.split()
    start = " ".join(words[: rng.randint(min(3, len(words) - 2), max(3, len(words) // 2 + 1))])
    order = rng.choice(("", "", "Finish the sentence: ", "Complete: ", "Continue: "))
    return Turn(sloppy(rng, order + start, typos=0.02), saying)


def _story(rng: Random) -> str:
    return story(rng, Wanted(some_topic(rng)))


def _beginning(rng: Random) -> str:
    name, name2 = rng.sample(NAMES, 2)
    animal, animal2 = rng.sample(ANIMALS, 2)
    return fill(
        rng,
        lines("plain", "beginnings"),
        name=name,
        name2=name2,
        animal=animal,
        animal2=animal2,
        a=article(rng.choice(THINGS)),
        thing=rng.choice(THINGS),
        city=rng.choice(CITIES),
        colour=rng.choice(COLOURS),
        day=rng.choice(DAYS),
        job=rng.choice(JOBS),
        trait=rng.choice(("happy", "tired", "new here", "fine")),
        s=sentence(rng, rng.choice(THINGS + ANIMALS)),
        s2=sentence(rng, rng.choice(PEOPLE)),
        story=story(rng, Wanted(animal)),
    )


def _saying(rng: Random) -> str:
    return " ".join(rng.sample(SAYINGS, rng.choice((1, 1, 2))))


def _statements(rng: Random) -> str:
    return " ".join(_statement(rng) for _ in range(rng.randint(1, 3)))


def _statement(rng: Random) -> str:
    country, city = rng.choice(CAPITALS)
    word, other = rng.choice(OPPOSITES)
    thing, colour = rng.choice(COLOUR_OF)
    at = rng.randrange(6)
    return rng.choice(
        (
            f"The capital of {country} is {city}.",
            f"The opposite of {word} is {other}.",
            f"{capitalised(thing)} is {colour}.",
            f"{DAYS[at + 1]} comes after {DAYS[at]}.",
        )
    )


def _quiz(rng: Random) -> str:
    turns = [rng.choice((fact, fact, small_sum))(rng) for _ in range(rng.randint(1, 3))]
    ask, answer = rng.choice(QUIZ_MARKS)
    return "\n".join(f"{ask}{turn.prompt}{answer}{turn.reply}" for turn in turns)


def _series(rng: Random) -> str:
    start = rng.randint(0, 10)
    numbers = ", ".join(str(number) for number in range(start, start + rng.randint(5, 10)))
    spelled_out = "One, two, three, four, five, six, seven."
    return rng.choice((numbers, numbers, ", ".join(DAYS), ", ".join(MONTHS), spelled_out))
