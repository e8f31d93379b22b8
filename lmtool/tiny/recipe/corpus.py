"""The mix of documents that the model learns from: endless, the same for a seed."""

from collections.abc import Callable, Iterator
from random import Random

from lmtool.tiny.recipe.arithmetic import big_sum, numbers, small_sum
from lmtool.tiny.recipe.copying import copying, introduction, remembered_name
from lmtool.tiny.recipe.document import Chat, Document, Turn
from lmtool.tiny.recipe.facts import fact
from lmtool.tiny.recipe.grading import reserved
from lmtool.tiny.recipe.phrasebook import lines
from lmtool.tiny.recipe.plain import plain, saying_turn
from lmtool.tiny.recipe.smalltalk import amusement, farewell, greeting, nonsense, sign_of_life, talk, unknown
from lmtool.tiny.recipe.stories import poem_turn, sentence_turn, story_turn

Theme = Callable[[Random], Turn]

SHARES: tuple[tuple[Theme, float], ...] = (
    (numbers, 30),
    (copying, 25),
    (fact, 25),
    (talk, 14),
    (unknown, 11),
    (story_turn, 3),
    (greeting, 3),
    (introduction, 3),
    (nonsense, 2),
    (amusement, 2),
    (poem_turn, 1.2),
    (sentence_turn, 1),
    (farewell, 1),
    (saying_turn, 0.8),
    (sign_of_life, 0.7),
)
"""Each theme with its share of the one-turn conversations, relative to the others.

Numbers and copying are what a small model learns last: a half of the short answers is theirs, from the first step on.
"""

SHORT_THEMES: tuple[Theme, ...] = (
    *(small_sum, small_sum, big_sum),
    *(fact, fact, fact),
    *(copying, copying),
    *(talk, talk),
    *(unknown, farewell, amusement),
)
"""Themes with short answers, for turns of longer conversations."""


def one_turn(rng: Random) -> Turn:
    """Return a request of any theme and its answer."""
    return rng.choices([theme for theme, _ in SHARES], [share for _, share in SHARES])[0](rng)


def short_turn(rng: Random) -> Turn:
    """Return a request with a short answer, independent of earlier turns."""
    return rng.choice(SHORT_THEMES)(rng)


def conversation(rng: Random) -> list[Turn]:
    """Return a conversation of several turns."""
    opening = [greeting(rng)] if rng.random() < 0.4 else []
    count = rng.choice((2, 2, 3, 3, 4, 8))
    return opening + [one_turn(rng) if rng.random() < 0.15 else short_turn(rng) for _ in range(count)]


def document(rng: Random) -> Document:
    """Return one document: plain text, or a conversation of one or more turns."""
    kind = rng.random()
    if kind < 0.08:
        return plain(rng)
    system = rng.choice(lines("plain", "systems")) if rng.random() < 0.15 else None
    if kind < 0.15:
        return Chat(remembered_name(rng, short_turn), system)
    if kind < 0.28:
        return Chat(conversation(rng), system)
    return Chat([one_turn(rng)], system)


def documents(seed: int) -> Iterator[Document]:
    """Yield documents endlessly, the same for a seed; none has a question in it that the model is graded by."""
    rng = Random(seed)  # noqa: S311 - nothing here is secret
    while True:
        one = document(rng)
        if not (isinstance(one, Chat) and reserved([turn.prompt for turn in one.turns])):
            yield one
