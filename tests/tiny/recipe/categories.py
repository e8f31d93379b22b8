"""What the embedded model has been taught, asked again: questions, and which answers are right.

The model is a function from texts to replies; nothing here computes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tests.tiny.recipe import arithmetic, copying, facts, smalltalk
from tests.tiny.recipe.document import Chat, Turn
from tests.tiny.recipe.grading import HONEST
from tests.tiny.recipe.phrasebook import items, lines, rows
from tests.tiny.recipe.phrasing import NAMES, article, capitalised, invent

SEED = 90_001
"""Seed of the questions; the corpus is never made from it."""

Answer = Callable[[Sequence[str]], list[str]]
"""From prompts to the model's greedy replies."""

SMALL = 6
"""Sums of numbers up to this are all asked for; of the others only some."""
STORY_WORDS = 30
"""Least number of words of a story."""
UNSEEN_NAMES = items("unseen", "names")
UNSEEN_COUNTRIES = items("unseen", "countries")
UNSEEN_TOPICS = items("unseen", "topics")
UNSEEN_QUESTIONS = lines("unseen", "questions")
STORY_TOPICS = items("unseen", "stories")
BEGINNINGS = lines("unseen", "beginnings")
FIRST_PROMPTS = rows("first_prompts", "prompts")


@dataclass(frozen=True, slots=True)
class Case:
    """A question and its check."""

    text: str
    """The prompt."""
    accepts: Callable[[str], bool]
    """Whether a reply is right."""


@dataclass(frozen=True, slots=True)
class Category:
    """Questions of one kind, and the required share of right answers."""

    name: str
    cases: tuple[Case, ...]
    required: float
    """Share of right answers, 0 to 1, that the shipped model must reach."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a category."""

    category: Category
    failures: tuple[tuple[str, str], ...]
    """Prompts with the replies that were wrong."""

    @property
    def share(self) -> float:
        """Share of right answers, 0 to 1."""
        return 1 - len(self.failures) / len(self.category.cases)

    @property
    def passed(self) -> bool:
        """Whether enough answers were right."""
        return self.share >= self.category.required


def judge(categories: Sequence[Category], answer: Answer) -> list[Result]:
    """Return a model's results by category; all questions go into one call of `answer`."""
    answers = iter(answer([case.text for category in categories for case in category.cases]))
    results = []
    for category in categories:
        replies = [(case, next(answers)) for case in category.cases]
        results.append(
            Result(category, tuple((case.text, reply) for case, reply in replies if not case.accepts(reply)))
        )
    return results


def categories() -> list[Category]:
    """Return every category, the same each time."""
    rng = Random(SEED)
    sums = [one for one in arithmetic.every_sum() if max(one.left, one.right) <= SMALL]
    sums += rng.sample(arithmetic.every_sum(), 150)
    table: tuple[tuple[str, float, list[Case]], ...] = (
        ("first prompts", 0.9, [_matching(prompt, pattern) for prompt, pattern in FIRST_PROMPTS]),
        ("sums", 0.95, [_exact(f"{one.left}{one.sign}{one.right}", one.answer) for one in sums]),
        ("sums in words", 0.95, [_exact(arithmetic.ask(rng, one), one.answer) for one in sums[::2]]),
        ("sums declined", 0.95, [_honest(arithmetic.big_sum(rng).prompt) for _ in range(100)]),
        ("counting", 0.9, [_turn(arithmetic.counting(rng)) for _ in range(40)]),
        ("capitals", 0.95, [_capital(*pair) for pair in facts.CAPITALS]),
        ("opposites", 0.95, [_opposite(*pair) for pair in facts.OPPOSITES]),
        ("colours", 0.95, [_colour(*pair) for pair in facts.COLOUR_OF]),
        ("other facts", 0.95, [_turn(facts.single(rng)) for _ in range(60)]),
        ("people as records", 0.9, [_turn(copying.person_record(rng)) for _ in range(40)]),
        ("things as records", 0.9, [_turn(copying.other_record(rng)) for _ in range(40)]),
        ("records of unseen names", 0.9, [_unseen_record(name, age) for age, name in enumerate(UNSEEN_NAMES, 21)]),
        ("repeating", 0.9, [_turn(copying.repeat(rng)) for _ in range(40)]),
        ("name memory", 0.9, [_name_memory(name, rng) for name in (*UNSEEN_NAMES, *NAMES[:5])]),
        ("stories", 0.9, [_story(topic) for topic in STORY_TOPICS]),
        ("unknown", 0.9, [_honest(prompt) for prompt in _unseen_questions(rng)]),
        ("plain beginnings", 1.0, [Case(text, _is_text) for text in BEGINNINGS]),
    )
    return [Category(name, tuple(cases), required) for name, required, cases in table]


def _chat(prompt: str) -> str:
    return Chat([Turn(prompt, "")]).prompt()


def _exact(prompt: str, reply: str) -> Case:
    return Case(_chat(prompt), reply.__eq__)


def _turn(turn: Turn) -> Case:
    return _exact(turn.prompt, turn.reply)


def _matching(prompt: str, pattern: str) -> Case:
    compiled = re.compile(pattern, re.IGNORECASE | re.DOTALL)
    return Case(_chat(prompt), lambda reply: compiled.search(reply) is not None)


def _honest(prompt: str) -> Case:
    return Case(_chat(prompt), lambda reply: HONEST.search(reply) is not None)


def _capital(country: str, city: str) -> Case:
    return _exact(f"What is the capital of {country}?", f"The capital of {country} is {city}.")


def _opposite(word: str, other: str) -> Case:
    return _exact(f"What is the opposite of {word}?", f"The opposite of {word} is {other}.")


def _colour(thing: str, colour: str) -> Case:
    return _exact(f"What colour is {thing}?", f"{capitalised(thing)} is {colour}.")


def _unseen_record(name: str, age: int) -> Case:
    return _exact(
        f"Make a JSON record: {name} is {age} years old and lives in Paris.",
        f'{{"name": "{name}", "age": {age}, "city": "Paris"}}',
    )


def _name_memory(name: str, rng: Random) -> Case:
    introduction = Turn(f"My name is {name}.", f"Nice to meet you, {name}!")
    between = [Turn("What is 2 + 2?", "2 + 2 = 4"), Turn("How are you?", "I am fine, thank you! How are you?")]
    turns = [introduction, *rng.sample(between, rng.randint(0, 2)), Turn("What is my name?", "")]
    return Case(Chat(turns).prompt(), f"Your name is {name}.".__eq__)


def _story(topic: str) -> Case:
    def accepts(reply: str) -> bool:
        return topic in reply and len(reply.split()) >= STORY_WORDS and reply.endswith((".", "!", '"'))

    return Case(_chat(f"Tell me a story about {article(topic)}."), accepts)


def _unseen_questions(rng: Random) -> list[str]:
    questions = [rng.choice(UNSEEN_QUESTIONS).format(topic=topic) for topic in UNSEEN_TOPICS for _ in range(2)]
    questions += [f"What is the capital of {country}?" for country in UNSEEN_COUNTRIES]
    questions += [f"What is {article(invent(rng))}?" for _ in range(10)] + [smalltalk.junk(rng) for _ in range(10)]
    return questions + [smalltalk.unknown(rng).prompt for _ in range(30)]


def _is_text(reply: str) -> bool:
    return len(reply.split()) >= 2 and reply.isascii()
