"""Words and phrases: shared word lists, alternatives in a phrase, sloppy spelling, invented words."""

import re
from collections.abc import Sequence
from random import Random

from tests.tiny.recipe.phrasebook import words

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_A_BEFORE_VOWEL = re.compile(r"\b([Aa]) (?=[aeio]|u(?!ni))")
_ONSETS = words("words", "onsets")
_PLAIN_ONSETS = tuple(onset for onset in _ONSETS if len(onset) == 1)
_VOWELS = words("words", "vowels")
_CODAS = ("",) * 4 + words("words", "codas")
NAMES = words("words", "names")
SURNAMES = words("words", "surnames")
CITIES = words("words", "cities")
ANIMALS = words("words", "animals")
PEOPLE = words("words", "people")
THINGS = words("words", "things")
COLOURS = words("words", "colours")
FRUITS = words("words", "fruits")
JOBS = words("words", "jobs")
COMMON = words("words", "common")
EVERYDAY = words("words", "everyday")
SHORT_FORMS = {
    "you": "u",
    "are": "r",
    "your": "ur",
    "please": "plz",
    "what": "wat",
    "about": "bout",
    "what is": "whats",
    "and": "n",
    "to": "2",
    "want to": "wanna",
    "write": "rite",
    "the": "teh",
}
"""What hurried people type instead."""
KEYS_BESIDE = {"a": "s", "e": "r", "i": "o", "n": "m", "o": "p", "r": "t", "s": "d", "t": "y", "u": "i", "l": "k"}
"""Each letter with one beside it on the keyboard."""


def spin(rng: Random, phrase: str) -> str:
    """Return the phrase with each `[this|that]` replaced by one of its alternatives."""
    return _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), phrase)


def fill(rng: Random, phrases: tuple[str, ...], **slots: object) -> str:
    """Return one of the phrases, spun, with its `{slots}` filled and `an` where a vowel follows."""
    return _A_BEFORE_VOWEL.sub(r"\1n ", spin(rng, rng.choice(phrases)).format(**slots))


def invent(rng: Random, most: int = 4) -> str:
    """Return a made-up lower-case word of one to `most` syllables, four at most; most have two plain ones.

    One in seven begins with a vowel.
    """
    syllables = min(most, rng.choice((1, 2, 2, 2, 2, 2, 3, 3, 4)))
    onsets = _ONSETS if rng.random() < 0.4 else _PLAIN_ONSETS
    word = "".join(rng.choice(onsets) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))
    if rng.random() < 0.15:
        word = word.lstrip("bcdfghjklmnpqrstvwxyz") or word
    return word if len(word) > 2 else word + rng.choice("nlrsmt")


def sloppy(rng: Random, text: str, *, typos: float = 0.15) -> str:
    """Return the text as a hurried person types it: lower case, no full stop, now and then a typo or two.

    typos: share of texts, 0 to 1, that get one misspelt word at least.
    """
    text = unpunctuated(rng, hurried(rng, text, typos=typos))
    if rng.random() < 0.02:
        text = text.upper()
    if rng.random() < 0.05:
        text = rng.choice(("hey, ", "hi, ", "ok, ", "please ", "so ", "hello, ", "and ", "now ")) + text
    elif rng.random() < 0.04:
        text += rng.choice((" please", " pls", " plz", ", please", " thanks", " :)"))
    return text


def hurried(rng: Random, text: str, *, typos: float = 0.15) -> str:
    """Return the text in lower case, in a third of the cases, and with a typo or two in some.

    typos: share of texts, 0 to 1, that get one misspelt word at least.
    """
    if rng.random() < typos:
        for _ in range(rng.choice((1, 1, 2))):
            text = _typo(rng, text)
    return text.lower() if rng.random() < 0.35 else text


def unpunctuated(rng: Random, text: str) -> str:
    """Return the text, with its last full stop or question mark missing in four of ten cases."""
    chance = rng.random()
    if chance < 0.4:
        return text.rstrip(".?!")
    return text.rstrip(".?!") + rng.choice(("!", "??", " ?", "...")) if chance < 0.45 else text


def article(noun: str) -> str:
    """Return the noun behind its indefinite article."""
    return _A_BEFORE_VOWEL.sub(r"\1n ", f"a {noun}")


def capitalised(text: str) -> str:
    """Return the text with a capital first letter; the others stay."""
    return text[0].upper() + text[1:]


def join_list(items: Sequence[str]) -> str:
    """Return the items as English writes a list: one, two and three."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def _typo(rng: Random, text: str) -> str:
    places = [at for at in range(1, len(text) - 1) if text[at - 1 : at + 2].isalpha()]
    if not places:
        return text
    at = rng.choice(places)
    short = rng.choice(tuple(SHORT_FORMS))
    if rng.random() < 0.25 and f" {short} " in text:
        return text.replace(f" {short} ", f" {SHORT_FORMS[short]} ", 1)
    swapped = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    missing, doubled = text[:at] + text[at + 1 :], text[:at] + text[at] + text[at:]
    beside = text[:at] + KEYS_BESIDE.get(text[at], text[at]) + text[at + 1 :]
    return rng.choice((swapped, swapped, missing, missing, doubled, beside))


def some_name(rng: Random) -> str:
    """Return a first name: known half of the time, else made up, so that names are copied and not guessed."""
    return rng.choice(NAMES) if rng.random() < 0.5 else invent(rng).capitalize()


def some_city(rng: Random) -> str:
    """Return a city: known half of the time, else made up."""
    return rng.choice(CITIES) if rng.random() < 0.5 else invent(rng).capitalize()


def some_thing(rng: Random) -> str:
    """Return a thing: known half of the time, else made up."""
    return rng.choice(THINGS) if rng.random() < 0.5 else invent(rng)


def some_word(rng: Random) -> str:
    """Return a lower-case word: known two times of three, else made up."""
    return rng.choice(rng.choice((COMMON, EVERYDAY, ANIMALS, THINGS))) if rng.random() < 0.65 else invent(rng)


def some_topic(rng: Random) -> str:
    """Return a noun that a story can be about; one in four is made up."""
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(ANIMALS)
    if kind < 0.5:
        return rng.choice(PEOPLE if kind < 0.4 else THINGS)
    return rng.choice(COMMON[-110:]) if kind < 0.75 else invent(rng, 2)
