"""The mix of documents that the model learns from: endless, the same for a seed."""

from collections.abc import Callable, Iterator
from random import Random

from tests.tiny.recipe.arithmetic import big_sum, count_and_back, drill, numbers, running_sum, small_sum
from tests.tiny.recipe.copying import (
    changed_record,
    copying,
    introduction,
    remembered_fact,
    remembered_name,
    repeat_again,
)
from tests.tiny.recipe.document import Chat, Document, Turn
from tests.tiny.recipe.facts import and_of, fact, several_more
from tests.tiny.recipe.grading import reserved
from tests.tiny.recipe.phrasebook import lines
from tests.tiny.recipe.plain import plain, saying_turn
from tests.tiny.recipe.smalltalk import (
    amusement,
    and_of_nowhere,
    farewell,
    foreign,
    greeting,
    nonsense,
    opinion,
    sign_of_life,
    talk,
    two_jokes,
    unknown,
)
from tests.tiny.recipe.stories import poem_turn, sentence_turn, story_talk, story_turn
from tests.tiny.recipe.tools import by_schema, by_system, with_tools

Theme = Callable[[Random], Turn]
Talk = Callable[[Random], list[Turn]]


SHARES: tuple[tuple[Theme, float], ...] = (
    (numbers, 29),
    (copying, 35),
    (fact, 28),
    (talk, 19),
    (unknown, 26),
    (story_turn, 28),
    (foreign, 7),
    (introduction, 5),
    (opinion, 4),
    (greeting, 3),
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
    *(unknown, farewell, amusement, opinion),
)
"""Themes with short answers, for turns of longer conversations."""


def one_turn(rng: Random) -> Turn:
    """Return a request of any theme and its answer."""
    return rng.choices([theme for theme, _ in SHARES], [share for _, share in SHARES])[0](rng)


def short_turn(rng: Random) -> Turn:
    """Return a request with a short answer, independent of earlier turns."""
    return rng.choice(SHORT_THEMES)(rng)


def remembered_short_name(rng: Random) -> list[Turn]:
    """Return a conversation in which the user says a name and later asks for it."""
    return remembered_name(rng, short_turn)


def remembered_own_fact(rng: Random) -> list[Turn]:
    """Return a conversation in which the user says something else of himself and later asks for it."""
    return remembered_fact(rng, short_turn)


FOLLOW_UPS: tuple[tuple[Talk, float], ...] = (
    (running_sum, 16),
    (and_of, 18),
    (and_of_nowhere, 3),
    (repeat_again, 9),
    (count_and_back, 6),
    (several_more, 12),
    (changed_record, 14),
    (story_talk, 8),
    (two_jokes, 2),
    (remembered_short_name, 12),
    (remembered_own_fact, 7),
)
"""Each kind of conversation in which a question refers to what was said before, with its share."""


def follow_up(rng: Random) -> list[Turn]:
    """Return a conversation in which a question refers to what was said before; in some, other turns come first."""
    turns = rng.choices([kind for kind, _ in FOLLOW_UPS], [share for _, share in FOLLOW_UPS])[0](rng)
    return [short_turn(rng), *turns] if rng.random() < 0.2 else turns


def conversation(rng: Random) -> list[Turn]:
    """Return a conversation of several turns."""
    opening = [greeting(rng)] if rng.random() < 0.4 else []
    count = rng.choice((2, 2, 3, 3, 4, 6))
    return opening + [one_turn(rng) if rng.random() < 0.15 else short_turn(rng) for _ in range(count)]


def document(rng: Random) -> Document:
    """Return one document: plain text, or a conversation of one or more turns."""
    system = rng.choice(lines("plain", "systems")) if rng.random() < 0.15 else None
    kind = rng.choices(
        ("plain", "tools", "schema", "system", "follow up", "drill", "conversation", "one turn"),
        (6, 5, 3, 2.5, 13, 4, 6, 60),
    )[0]
    if kind == "plain":
        return plain(rng)
    if kind == "tools":
        return with_tools(rng, short_turn, system)
    if kind in {"schema", "system"}:
        return (by_schema if kind == "schema" else by_system)(rng)
    makers = {"follow up": follow_up, "drill": drill, "conversation": conversation}
    return Chat(makers[kind](rng) if kind in makers else [one_turn(rng)], system)


def documents(seed: int) -> Iterator[Document]:
    """Yield documents endlessly, the same for a seed; none has a question in it that the model is graded by."""
    rng = Random(seed)
    while True:
        one = document(rng)
        if not (isinstance(one, Chat) and reserved([turn.prompt for turn in one.turns])):
            yield one
