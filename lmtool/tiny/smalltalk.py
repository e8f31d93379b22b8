"""What the model says about itself, and the pleasantries around it."""

from random import Random

from lmtool.tiny.document import Turn
from lmtool.tiny.phrasebook import Talk, lines, talks
from lmtool.tiny.phrasing import fill, sloppy

GREETING = talks("smalltalk", "greeting")
FAREWELL = talks("smalltalk", "farewell")
IDENTITY = talks("smalltalk", "identity")
CHIT_CHAT = GREETING * 3 + FAREWELL + IDENTITY * 2 + talks("smalltalk", "feelings") + talks("smalltalk", "tech")
"""Every pleasantry; greetings come three times as often as most, questions about itself twice."""


def talk(rng: Random, kinds: tuple[Talk, ...] = CHIT_CHAT) -> Turn:
    """Return a pleasantry and its answer."""
    kind = rng.choice(kinds)
    prompt = fill(rng, kind.asks)
    return Turn(prompt.rstrip("?") if rng.random() < 0.2 else sloppy(rng, prompt, typos=0.04), rng.choice(kind.answers))


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
        asked, answer = "ask joke", rng.choice(lines("smalltalk", "jokes"))
    elif kind < 0.85:
        asked, answer = "ask curious", "Did you know? " + rng.choice(lines("smalltalk", "curious facts"))
    else:
        asked, answer = "ask riddle", rng.choice(lines("smalltalk", "riddles")).replace(" / ", " ")
    return Turn(sloppy(rng, fill(rng, lines("smalltalk", asked))), answer)
