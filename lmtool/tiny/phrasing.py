"""How people type: alternatives in a phrase, sloppy spelling, invented words."""

import re
from collections.abc import Sequence
from random import Random

from lmtool.tiny.phrasebook import words

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_A_BEFORE_VOWEL = re.compile(r"\b([Aa]) (?=[aeio]|u(?!ni))")
_ONSETS = words("words", "onsets")
_VOWELS = words("words", "vowels")
_CODAS = ("",) * 4 + words("words", "codas")


def spin(rng: Random, phrase: str) -> str:
    """Return the phrase with each `[this|that]` replaced by one of its alternatives."""
    return _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), phrase)


def fill(rng: Random, phrases: tuple[str, ...], **slots: object) -> str:
    """Return one of the phrases, spun, with its `{slots}` filled and `an` where a vowel follows."""
    return _A_BEFORE_VOWEL.sub(r"\1n ", spin(rng, rng.choice(phrases)).format(**slots))


def invent(rng: Random) -> str:
    """Return a made-up lower-case word of one to four syllables."""
    syllables = rng.choice((1, 2, 2, 2, 3, 3, 4))
    word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))
    return word if len(word) > 2 else word + rng.choice("nlrsmt")


def sloppy(rng: Random, text: str, *, typos: float = 0.04) -> str:
    """Return the text as a hurried person types it: lower case, no full stop, now and then a slip of the finger.

    typos: share of texts, 0 to 1, that get one misspelt word.
    """
    if rng.random() < typos:
        text = _slip(rng, text)
    text = unpunctuated(rng, text)
    case = rng.random()
    if case < 0.35:
        text = text.lower()
    elif case < 0.37:
        text = text.upper()
    if rng.random() < 0.04:
        text = rng.choice(("hey, ", "hi, ", "ok, ", "please ", "so ")) + text
    return text


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


def listed(items: Sequence[str]) -> str:
    """Return the items as English writes a list: one, two and three."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def _slip(rng: Random, text: str) -> str:
    places = [at for at in range(1, len(text) - 1) if text[at - 1 : at + 2].isalpha()]
    if not places:
        return text
    at = rng.choice(places)
    swapped = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    return rng.choice((swapped, text[:at] + text[at + 1 :], text[:at] + text[at] + text[at:]))
