"""Short stories about what was asked for, poems, and single sentences."""

from dataclasses import dataclass, replace
from random import Random

from tests.tiny.recipe.document import Turn
from tests.tiny.recipe.phrasebook import items, lines, page
from tests.tiny.recipe.phrasing import (
    ANIMALS,
    CITIES,
    COLOURS,
    COMMON,
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

TRAITS = items("stories", "traits")
FRIEND_PLOTS = tuple(section for section in page("stories") if section.startswith("friend "))
SHORT_NAMES = tuple(name for name in NAMES[:110] if len(name) <= 4)
LONG_STORY = 230
"""Characters of a story above which it has no ending of its own, so that it stays under 80 tokens."""
CHILDREN = ("girl", "boy", "child")
VERSES = {
    "ask poem": ("poems", 40),
    "ask any poem": ("poems", 20),
    "ask haiku": ("topic haiku", 20),
    "ask any haiku": ("haiku", 20),
}
"""Each way to ask for verses, a section, with the section of the verses and its share, relative to the others."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a story is asked to have; empty where it is up to the teller."""

    hero: str
    """A noun without its article."""
    name: str = ""
    """Of the hero."""
    friend: str = ""
    """A noun without its article."""
    thing: str = ""
    """A noun, a colour before it or not."""
    plot: str = ""
    """A section of the page."""
    place: str = ""
    """With its preposition."""
    wish: str = ""
    """A verb."""
    fear: str = ""
    """What the hero is afraid of."""
    trait: str = ""
    """An adjective of the hero."""


def story(rng: Random, wanted: Wanted) -> str:
    """Return a story with all that is wanted in it, of 35 to 55 words.

    Most heroes have a name, a trait and a plot of their own, by their first letters: so a greedy model does not always
    tell of Anna, and always knows how to go on.
    """
    name, other, trait = _names_and_trait(rng, wanted)
    own = rng.random() < 0.75
    places = items("stories", "homes")
    plot = wanted.plot or (_by(wanted.hero, FRIEND_PLOTS) if own else rng.choice(FRIEND_PLOTS))
    openings = lines("stories", "openings")
    opening = _by(wanted.hero[1:], openings) if own else rng.choice(openings)
    friend = wanted.friend or (_by(wanted.hero[::-1], ANIMALS[:24]) if own else rng.choice(ANIMALS[:30]))
    (middle,), thing = lines("stories", plot), wanted.thing or "hat"
    text = fill(
        rng,
        (f"{opening} {middle}",),
        hero=article(f"{trait} {wanted.hero}"),
        name=name,
        other=other,
        friend=article(friend),
        home=wanted.place or _by(name, places),
        where=f" {wanted.place}" if wanted.place else "",
        thing=article(thing),
        the=f"the {thing}",
        wish=wanted.wish,
        fear=wanted.fear,
    )
    ending = rng.choice(lines("stories", "endings")).format(name=name)
    return _capital_sentences(f"{text} {ending}" if len(text) <= LONG_STORY else text)


def _names_and_trait(rng: Random, wanted: Wanted) -> tuple[str, str, str]:
    letter = wanted.hero[0].upper()
    fitting = [name for name in SHORT_NAMES if name.startswith(letter)] or list(SHORT_NAMES)
    own = fitting[len(wanted.hero) % len(fitting)]
    name = wanted.name or (own if rng.random() < 0.75 else rng.choice(SHORT_NAMES))
    others = [other for other in SHORT_NAMES if other[0] != name[0]]
    other = others[(ord(name[0]) * 7 + len(name)) % len(others)] if rng.random() < 0.75 else rng.choice(others)
    trait = _by(wanted.hero[1:], TRAITS) if rng.random() < 0.75 else rng.choice(TRAITS)
    return name, other, wanted.trait or trait


def _by(word: str, choices: tuple[str, ...]) -> str:
    """Return the choice that belongs to the word: always the same one."""
    return choices[sum(map(ord, word[:2])) % len(choices)]


def _capital_sentences(text: str) -> str:
    """Return the text with a capital letter behind each full stop: a friend's article may begin a sentence."""
    parts = text.split(". ")
    return ". ".join(capitalised(part) for part in parts)


def story_turn(rng: Random) -> Turn:
    """Return a request for a story, and the story."""
    if rng.random() < 0.12:
        return Turn(sloppy(rng, fill(rng, lines("stories", "ask any story"))), story(rng, Wanted(some_topic(rng))))
    ask, wanted = request(rng)
    return Turn(ask, story(rng, wanted))


def request(rng: Random) -> tuple[str, Wanted]:
    """Return a request for a story, and what it wants."""
    make = rng.choices((_plain, _two, _named, _placed, _with_thing, _with_verb, _child), (34, 12, 10, 8, 14, 16, 6))[0]
    section, slots, wanted = make(rng)
    return sloppy(rng, fill(rng, lines("stories", section), **slots)), wanted


_Request = tuple[str, dict[str, str], Wanted]


def _plain(rng: Random) -> _Request:
    hero = some_topic(rng)
    trait = rng.choice(TRAITS) if rng.random() < 0.25 else ""
    return "plain request", {"a": article(f"{trait} {hero}".strip())}, Wanted(hero, trait=trait)


def _two(rng: Random) -> _Request:
    hero, friend = some_topic(rng), some_topic(rng)
    between = rng.choice((" and ", " and ", " and his friend, ", " and her friend ", ", and "))
    return "plain request", {"a": article(hero) + between + article(friend)}, Wanted(hero, friend=friend)


def _name(rng: Random) -> str:
    return invent(rng, 2).capitalize() if rng.random() < 0.5 else rng.choice(NAMES)


def _named(rng: Random) -> _Request:
    hero, name = some_topic(rng), _name(rng)
    noun = article(hero) + rng.choice((" named ", " called ", " named ", ", ", " whose name is ")) + name
    return "plain request", {"a": noun}, Wanted(hero, name=name)


def _placed(rng: Random) -> _Request:
    hero = some_topic(rng)
    city = rng.choice(CITIES) if rng.random() < 0.5 else invent(rng, 2).capitalize()
    place = f"in {city}" if rng.random() < 0.6 else "in the " + rng.choice(items("stories", "places"))
    return "plain request", {"a": f"{article(hero)} {place}"}, Wanted(hero, place=place)


def _thing(rng: Random) -> str:
    thing = some_topic(rng) if rng.random() < 0.4 else rng.choice((*THINGS, *COMMON[:40], some_thing(rng)))
    return f"{rng.choice(COLOURS)} {thing}" if rng.random() < 0.2 else thing


def _with_thing(rng: Random) -> _Request:
    hero, thing = some_topic(rng), _thing(rng)
    joiner = rng.choice(
        (" and a {}", " and a {}", " and his {}", " and her {}", " with a {}", " and the {}", " and its {}")
    )
    wanted = Wanted(hero, thing=thing, plot=rng.choice(("own", "lost", "found", "magic")))
    if joiner in {" and his {}", " and her {}", " and its {}", " with a {}"}:
        wanted = Wanted(hero, thing=thing, plot="own")
    noun = article(hero) + joiner.format(thing)
    return "plain request", {"a": noun}, wanted


def _with_verb(rng: Random) -> _Request:
    hero = some_topic(rng)
    kind = rng.random()
    if kind < 0.55:
        thing = _thing(rng)
        plot, verbs = rng.choice(
            (
                ("lost", ("loses", "lost", "cannot find", "is looking for", "has lost", "misses")),
                ("found", ("finds", "found", "discovers", "sees")),
                ("magic", ("finds", "finds a magic", "meets a magic")),
                ("own", ("has", "had", "loves", "owns", "shares")),
            )
        )
        verb = rng.choice(verbs)
        the = thing if verb.endswith("magic") else f"{rng.choice(('his', 'her', 'its', 'a', 'a', 'the'))} {thing}"
        return "verb request", {"a": article(hero), "v": f"{verb} {the}"}, Wanted(hero, thing=thing, plot=plot)
    if kind < 0.8:
        wish = rng.choice(items("stories", "wishes"))
        verb = rng.choice(("wants to", "wanted to", "would like to", "dreams that he can", "cannot", "tries to"))
        return "verb request", {"a": article(hero), "v": f"{verb} {wish}"}, Wanted(hero, wish=wish, plot="wish")
    fear = rng.choice(items("stories", "fears")) if rng.random() < 0.7 else some_topic(rng) + "s"
    verb = rng.choice(("is afraid of", "was afraid of", "is scared of", "fears"))
    return "verb request", {"a": article(hero), "v": f"{verb} {fear}"}, Wanted(hero, fear=fear, plot="fear")


def _child(rng: Random) -> _Request:
    """A request that has only the hero's name, with a thing or not."""
    name, hero = _name(rng), rng.choice(CHILDREN)
    if rng.random() < 0.4:
        return "plain request", {"a": name}, Wanted(hero, name=name)
    thing = _thing(rng)
    noun = f"{name} and {rng.choice(('his', 'her', 'a', 'the'))} {thing}"
    return "plain request", {"a": noun}, Wanted(hero, name=name, thing=thing, plot="own")


def story_talk(rng: Random) -> list[Turn]:
    """Return a request for a story, and what is asked about it afterwards."""
    ask, wanted = request(rng)
    name, _, _ = _names_and_trait(rng, wanted)
    wanted = replace(wanted, name=name)
    first = Turn(ask, story(rng, wanted))
    kind = rng.random()
    if kind < 0.7:
        question = sloppy(rng, fill(rng, lines("stories", "ask hero's name"), hero=wanted.hero))
        return [first, Turn(question, f"The {wanted.hero}'s name was {name}.")]
    question = sloppy(rng, fill(rng, lines("stories", "ask another story"), a=article(wanted.hero)))
    again = Wanted(wanted.hero, plot=rng.choice(FRIEND_PLOTS))
    return [first, Turn(question, story(rng, again))]


def poem_turn(rng: Random) -> Turn:
    """Return a request for a poem or a haiku, and the verses."""
    noun = article(some_topic(rng)) if rng.random() < 0.7 else rng.choice(items("stories", "poem topics"))
    request_section = rng.choices(list(VERSES), [share for _, share in VERSES.values()])[0]
    if request_section == "ask any poem":
        noun = article(rng.choice(ANIMALS + THINGS))
    verses = rng.choice(lines("stories", VERSES[request_section][0])).replace(" / ", "\n")
    prompt = fill(rng, lines("stories", request_section), a=noun)
    return Turn(sloppy(rng, prompt), verses.format(a=noun, A=capitalised(noun)))


def sentence(rng: Random, word: str) -> str:
    """Return a plain sentence about the word."""
    return fill(rng, lines("stories", "sentences"), t=word, c=rng.choice(COLOURS))


def sentence_turn(rng: Random) -> Turn:
    """Return a request for a sentence about a word, and the sentence."""
    word = rng.choice((rng.choice(ANIMALS), rng.choice(PEOPLE), some_thing(rng)))
    prompt = fill(rng, lines("stories", "ask sentence"), a=article(word), w=word)
    return Turn(sloppy(rng, prompt), sentence(rng, word))
