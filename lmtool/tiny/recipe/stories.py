"""Short stories about a topic, poems, and single sentences."""

from collections.abc import Sequence
from random import Random

from lmtool.tiny.recipe.document import Turn
from lmtool.tiny.recipe.phrasebook import items, lines, page
from lmtool.tiny.recipe.phrasing import (
    ANIMALS,
    COLOURS,
    NAMES,
    PEOPLE,
    THINGS,
    article,
    capitalised,
    fill,
    invent,
    sloppy,
    some_thing,
    some_topic,
)

PLOTS = tuple(section for section in page("stories") if section.startswith("plot "))
TRAITS = items("stories", "traits")
VERSES = {
    "ask poem": ("poems", 40),
    "ask any poem": ("poems", 20),
    "ask haiku": ("topic haiku", 20),
    "ask any haiku": ("haiku", 20),
}
"""Each way to ask for verses, a section, with the section of the verses and its share, relative to the others."""


def story(rng: Random, topics: Sequence[str]) -> str:
    """Return a story whose hero is the first topic; a second one is the friend.

    A capitalised first topic is the hero's name. Heroes and friends have different names, and most topics a plot of
    their own, by their first letter: so a greedy model does not always tell of Anna and her friend Anna.
    """
    name, other = rng.choice(NAMES[::2]), rng.choice(NAMES[1::2])
    trait = rng.choice(TRAITS)
    hero = f"{article(trait)} {topics[0]}"
    if topics[0][0].isupper():
        name, other = topics[0], other if other != topics[0] else "Tilda"
        hero = f"{article(trait)} {rng.choice(('girl', 'boy', 'child'))}"
    friend = topics[1] if len(topics) > 1 else rng.choice(ANIMALS[:30])
    pages = [rng.choice(lines("stories", section)) for section in ("openings", "likes")]
    plot = rng.choice(PLOTS) if rng.random() < 0.3 else PLOTS[ord(topics[0][0]) % len(PLOTS)]
    pages += [*lines("stories", plot), rng.choice(lines("stories", "endings"))]
    return fill(
        rng,
        (" ".join(pages),),
        hero=hero,
        name=name,
        other=other,
        friend=friend,
        trait=rng.choice(TRAITS),
        place=rng.choice(items("stories", "places")),
        walk=rng.choice(items("stories", "walks")),
        hobby=rng.choice(items("stories", "hobbies")),
        colour=rng.choice(COLOURS[:8]),
        thing=rng.choice(items("stories", "finds")),
    )


def story_turn(rng: Random) -> Turn:
    """Return a request for a story, and the story."""
    if rng.random() < 0.2:
        return Turn(sloppy(rng, fill(rng, lines("stories", "ask any story"))), story(rng, [some_topic(rng)]))
    if rng.random() < 0.1:
        name = invent(rng).capitalize() if rng.random() < 0.6 else rng.choice(NAMES)
        return Turn(fill(rng, lines("stories", "ask story"), a=name), story(rng, [name]))
    topics = [some_topic(rng)]
    if rng.random() < 0.15:
        topics.append(rng.choice(ANIMALS + PEOPLE[:20]))
    prompt = fill(rng, lines("stories", "ask story"), a=" and ".join(article(topic) for topic in topics))
    return Turn(sloppy(rng, prompt, typos=0.02), story(rng, topics))


def poem_turn(rng: Random) -> Turn:
    """Return a request for a poem or a haiku, and the verses."""
    noun = article(some_topic(rng)) if rng.random() < 0.7 else rng.choice(items("stories", "poem topics"))
    request = rng.choices(list(VERSES), [share for _, share in VERSES.values()])[0]
    if request == "ask any poem":
        noun = article(rng.choice(ANIMALS + THINGS))
    verses = rng.choice(lines("stories", VERSES[request][0])).replace(" / ", "\n")
    prompt = fill(rng, lines("stories", request), a=noun)
    return Turn(sloppy(rng, prompt, typos=0.02), verses.format(a=noun, A=capitalised(noun)))


def sentence(rng: Random, word: str) -> str:
    """Return a plain sentence about the word."""
    return fill(rng, lines("stories", "sentences"), t=word, c=rng.choice(COLOURS))


def sentence_turn(rng: Random) -> Turn:
    """Return a request for a sentence about a word, and the sentence."""
    word = rng.choice((rng.choice(ANIMALS), rng.choice(PEOPLE), some_thing(rng)))
    prompt = fill(rng, lines("stories", "ask sentence"), a=article(word), w=word)
    return Turn(sloppy(rng, prompt, typos=0.02), sentence(rng, word))
