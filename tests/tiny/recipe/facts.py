"""What the model knows about the world: short questions with one right answer."""

from collections.abc import Callable, Sequence
from random import Random

from tests.tiny.recipe.document import Turn
from tests.tiny.recipe.phrasebook import items, lines, rows, table, talks
from tests.tiny.recipe.phrasing import article, capitalised, fill, join_list, sloppy, spin

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
EXPLANATIONS = rows("facts", "explanations")
REASONS = rows("facts", "reasons")
SPOKEN = table("facts", "spoken languages")
PROPERTIES = table("facts", "properties")
GROUPS = {name: tuple(members.split(", ")) for name, members in rows("facts", "groups")}
"""Members by group. They are always listed in this order, from any of them on: so no member comes twice."""
AMOUNTS = (
    *((2, "two"), (2, "2"), (3, "three"), (3, "three"), (3, "3"), (3, "some"), (3, "a few"), (3, "")),
    *((4, "four"), (4, "4"), (5, "five"), (5, "5"), (6, "six")),
)
"""How many are asked for, and the word for it."""
POSITIONS = ("first", "second", "third", "last")


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


def explanation(rng: Random) -> Turn:
    """Return a request to explain something in a sentence."""
    noun, text = rng.choice(EXPLANATIONS)
    return Turn(fill(rng, lines("facts", "ask explanation"), w=noun), text)


def reason(rng: Random) -> Turn:
    """Return a question for the reason of something."""
    question, text = rng.choice(REASONS)
    asked = spin(rng, question)
    return Turn(rng.choice(("Why {}?", "why {}?", "Can you tell me why {}?", "Why {}, please?")).format(asked), text)


def spoken_language(rng: Random) -> Turn:
    """Return a question for the language of a country."""
    country, language = rng.choice(SPOKEN)
    return Turn(fill(rng, lines("facts", "ask spoken"), c=country), f"They speak {language} in {country}.")


def has_property(rng: Random) -> Turn:
    """Return a question that is answered with yes or no."""
    noun, adjectives = rng.choice(PROPERTIES)
    true, false = adjectives.split("/")
    asked, other = rng.choice(((true, false), (false, true)))
    prompt = fill(rng, lines("facts", "ask property"), t=noun, p=asked, o=other)
    answer = f"{noun} is {true}."
    if prompt.lower().startswith("why"):
        return Turn(f"Is {noun} {asked}?", ("Yes, " if asked == true else "No, ") + answer)
    if " or " in prompt:
        return Turn(prompt, capitalised(answer))
    return Turn(prompt, ("Yes, " if asked == true else "No, ") + answer)


def _members(rng: Random, group: str, count: int) -> list[str]:
    members = GROUPS[group]
    start = 0 if rng.random() < 0.5 else rng.randrange(len(members))
    return [members[(start + at) % len(members)] for at in range(min(count, len(members)))]


def _listed(members: Sequence[str]) -> str:
    return f"{capitalised(join_list(members))}."


def several(rng: Random) -> Turn:
    """Return a request to name some members of a group."""
    group = rng.choice(list(GROUPS))
    if rng.random() < 0.08:
        return Turn(fill(rng, lines("facts", "ask one"), g=group), _listed(_members(rng, group, 1)))
    count, word = rng.choice([amount for amount in AMOUNTS if amount[0] <= len(GROUPS[group])])
    prompt = fill(rng, lines("facts", "ask several"), c=word, g=group).replace("  ", " ").strip()
    return Turn(prompt, _listed(_members(rng, group, count)))


def several_more(rng: Random) -> list[Turn]:
    """Return a request to name members of a group, and a question about them or for more of them."""
    group = rng.choice([name for name, members in GROUPS.items() if len(members) >= 6])
    count, word = rng.choice([amount for amount in AMOUNTS if 2 <= amount[0] <= 4])
    members = _members(rng, group, count)
    first = Turn(fill(rng, lines("facts", "ask several"), c=word, g=group).replace("  ", " ").strip(), _listed(members))
    if rng.random() < 0.7:
        position = rng.choice((*POSITIONS[: min(count, 3)], "first", "last"))
        chosen = members[-1] if position == "last" else members[POSITIONS.index(position)]
        question = sloppy(rng, fill(rng, lines("facts", "ask position"), p=position))
        return [first, Turn(question, f"The {position} one was {chosen}.")]
    extra, word = rng.choice(((2, "two"), (1, "one"), (2, "2")))
    start = GROUPS[group].index(members[-1]) + 1
    more = [GROUPS[group][(start + at) % len(GROUPS[group])] for at in range(extra)]
    return [first, Turn(sloppy(rng, fill(rng, lines("facts", "ask more"), c=word)), _listed(more))]


def and_of(rng: Random) -> list[Turn]:
    """Return a question with one right answer, and the same one of something else in a few words."""
    kind = rng.random()
    if kind < 0.45:
        (one, first), (two, second) = rng.sample(CAPITALS, 2)
        turn = Turn(fill(rng, lines("facts", "ask capital"), c=one), f"The capital of {one} is {first}.")
        answer, noun = f"The capital of {two} is {second}.", f"of {two}"
    elif kind < 0.65:
        (one, first), (two, second) = rng.sample(OPPOSITES, 2)
        turn = Turn(fill(rng, lines("facts", "ask opposite"), w=one), f"The opposite of {one} is {first}.")
        answer, noun = f"The opposite of {two} is {second}.", f"of {two}"
    elif kind < 0.9:
        (one, first), (two, second) = rng.sample(COLOUR_OF, 2)
        turn = Turn(fill(rng, lines("facts", "ask colour"), t=one), f"{capitalised(one)} is {first}.")
        answer, noun = f"{capitalised(two)} is {second}.", two
    else:
        (one, first), (two, second) = rng.sample(SOUNDS, 2)
        turn = Turn(
            fill(rng, lines("facts", "ask sound"), a=article(one)), f"{capitalised(article(one))} says {first}."
        )
        answer, noun = f"{capitalised(article(two))} says {second}.", article(two)
    short = noun.removeprefix("of ") if rng.random() < 0.5 else noun
    question = fill(
        rng, ("[And|and|And what|what|ok, and] {s}?", "[what about|And what about|how about] {s}?"), s=short
    )
    return [Turn(sloppy(rng, turn.prompt), turn.reply), Turn(sloppy(rng, question), answer)]


KINDS: tuple[tuple[Callable[[Random], Turn], int], ...] = (
    (capital, 34),
    (opposite, 14),
    (colour_of, 13),
    (sound, 6),
    (young, 4),
    (legs, 4),
    (calendar, 7),
    (meaning, 7),
    (single, 22),
    (several, 28),
    (explanation, 30),
    (reason, 5),
    (spoken_language, 7),
    (has_property, 22),
)
"""Each kind of fact with its share, relative to the others."""


def fact(rng: Random) -> Turn:
    """Return a question about the world and its answer."""
    kind = rng.choices([kind for kind, _ in KINDS], [share for _, share in KINDS])[0]
    turn = kind(rng)
    return Turn(sloppy(rng, turn.prompt), turn.reply)
