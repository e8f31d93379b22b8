"""The numbers that the model can handle, and a plain refusal for all others."""

from dataclasses import dataclass
from random import Random

from tests.tiny.recipe.document import Turn
from tests.tiny.recipe.phrasebook import lines
from tests.tiny.recipe.phrasing import fill, sloppy

LARGEST_OPERAND = 20
"""Sums and differences of operands from 0 to this are to be known."""
LARGEST_FACTOR = 10
"""Products of factors from 0 to this are to be known, and sums of three numbers."""
LARGEST_COUNT = 20
"""Counting goes from 0 to this."""

TOO_BIG = "That is too big for me. I can add and subtract numbers up to twenty."
NO_PRODUCT = "That is too big for me. I can multiply numbers up to ten."
NO_MATHS = "That is too hard for me. I can add and subtract numbers up to twenty."
TOO_FAR = "I can only count to twenty."

NUMBER_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
SIGNS = {"+": ("plus", "and"), "-": ("minus",), "*": ("times", "x", "multiplied by")}
"""Each sign with the words for it."""
VERBS = {"+": "add", "-": "subtract", "*": "multiply"}
"""The section of the page with sums in words, by sign."""
ROUND_NUMBERS = (25, 30, 40, 50, 60, 75, 80, 90, 99, 100, 101, 123, 200, 300, 456, 500, 1000, 1234)


@dataclass(frozen=True, slots=True)
class Sum:
    """A small exercise."""

    left: int
    sign: str
    """One of + - *"""
    right: int

    @property
    def result(self) -> int:
        """The right number."""
        if self.sign == "*":
            return self.left * self.right
        return self.left + self.right if self.sign == "+" else self.left - self.right

    @property
    def known(self) -> bool:
        """Whether the model is to know it."""
        return max(self.left, self.right) <= (LARGEST_FACTOR if self.sign == "*" else LARGEST_OPERAND)

    @property
    def answer(self) -> str:
        """The right reply, which may be to decline."""
        if not self.known:
            return NO_PRODUCT if self.sign == "*" else TOO_BIG
        return f"{self.left} {self.sign} {self.right} = {self.result}"


def every_sum() -> list[Sum]:
    """Return all exercises that the model is to know."""
    signs = (("+", LARGEST_OPERAND), ("-", LARGEST_OPERAND), ("*", LARGEST_FACTOR))
    return [Sum(a, sign, b) for sign, most in signs for a in range(most + 1) for b in range(most + 1)]


def ask(rng: Random, exercise: Sum) -> str:
    """Return one way to ask for the exercise."""
    sign, names = exercise.sign, SIGNS[exercise.sign]
    numbers = (exercise.left, exercise.right)
    spelled_out = rng.random() < 0.12 and max(numbers) <= LARGEST_OPERAND
    a, b = (NUMBER_WORDS[number] if spelled_out else str(number) for number in numbers)
    if rng.random() < 0.25:
        return sloppy(rng, fill(rng, lines("numbers", VERBS[sign]), a=a, b=b))
    section, names = ("spelled out", names) if spelled_out else ("ask", (sign, names[0]) * 2 + (sign, *names))
    between = "x" if sign == "*" and rng.random() < 0.15 else sign
    prompt = fill(rng, lines("numbers", section), a=a, b=b, s=rng.choice(names), sign=between)
    return sloppy(rng, prompt)


def known_sum(rng: Random) -> Sum:
    """Return an exercise that the model is to know; small numbers are the most frequent."""
    sign = rng.choice("+++--*")
    most = LARGEST_FACTOR if sign == "*" or rng.random() < 0.4 else LARGEST_OPERAND
    a, b = rng.randint(0, most), rng.randint(0, most)
    return Sum(b, sign, a) if sign == "-" and a > b and rng.random() < 0.6 else Sum(a, sign, b)


def small_sum(rng: Random) -> Turn:
    """Return an exercise that the model is to know."""
    exercise = known_sum(rng)
    return Turn(ask(rng, exercise), exercise.answer)


def three_numbers(rng: Random) -> Turn:
    """Return a sum of three numbers, worked out in two steps, or declined where the first step is below zero."""
    a, b, c = (rng.randint(0, LARGEST_FACTOR) for _ in range(3))
    first, second = rng.choice(("++", "++", "++", "+-", "-+", "--"))
    step = Sum(a, first, b)
    between = rng.choice((" ", " ", ""))
    text = f"{a} {first} {b} {second} {c}".replace(" ", between)
    if rng.random() < 0.15:
        words = {"+": "plus", "-": "minus"}
        text = f"{a} {words[first]} {b} {words[second]} {c}"
    prompt = sloppy(rng, fill(rng, lines("numbers", "three"), t=text))
    if step.result < 0:
        return Turn(prompt, NO_MATHS)
    rest = Sum(step.result, second, c)
    return Turn(prompt, f"{a} {first} {b} {second} {c} = {rest.answer}")


def running_sum(rng: Random) -> list[Turn]:
    """Return a sum, and more that is to be added to its result or taken from it."""
    turns, total = [], -1
    while total < 0:
        exercise = known_sum(rng)
        total = exercise.result if exercise.result <= LARGEST_OPERAND else -1
    turns.append(Turn(ask(rng, exercise), exercise.answer))
    for _ in range(rng.choice((1, 1, 2))):
        sign = rng.choice("+-")
        exercise = Sum(total, sign, rng.randint(0, min(total, 10) if sign == "-" else 10))
        section = "go on plus" if sign == "+" else "go on minus"
        turns.append(Turn(sloppy(rng, fill(rng, lines("numbers", section), b=exercise.right)), exercise.answer))
        total = exercise.result
        if total > LARGEST_OPERAND:
            break
    return turns


def big_sum(rng: Random) -> Turn:
    """Return an exercise that is beyond the model, and the refusal."""
    kind = rng.random()
    if kind < 0.5:
        numbers = [_beyond(rng), rng.choice((_beyond(rng), rng.randint(0, LARGEST_OPERAND)))]
        rng.shuffle(numbers)
        exercise = Sum(numbers[0], rng.choice("+-"), numbers[1])
        return Turn(ask(rng, exercise), exercise.answer)
    if kind < 0.72:
        factors = [rng.choice((rng.randint(11, 20), _beyond(rng))), rng.choice((rng.randint(2, 20), _beyond(rng)))]
        rng.shuffle(factors)
        exercise = Sum(factors[0], "*", factors[1])
        return Turn(ask(rng, exercise), exercise.answer)
    n, m, k = (rng.choice((rng.randint(0, 12), _beyond(rng))) for _ in range(3))
    if kind < 0.8:
        text = f"{n} {rng.choice('+-')} {_beyond(rng)} {rng.choice('+-')} {k}"
        return Turn(sloppy(rng, fill(rng, lines("numbers", "three"), t=text)), NO_MATHS)
    section = "divide" if kind < 0.86 else "too hard"
    return Turn(sloppy(rng, fill(rng, lines("numbers", section), n=n, m=m, k=k)), NO_MATHS)


def counting(rng: Random) -> Turn:
    """Return a request to count, forwards or backwards."""
    most = rng.choice((10, LARGEST_COUNT))
    first, last = sorted(rng.sample(range(1, most + 1), 2))
    section, numbers = rng.choices(
        (
            ("count to", range(1, last + 1)),
            ("count from", range(first, last + 1)),
            ("count back", range(last, first - 1, -1)),
            ("count down", range(last, 0, -1)),
            ("count too far", ()),
        ),
        (36, 24, 22, 10, 8),
    )[0]
    if not numbers:
        last = _beyond(rng)
    names = NUMBER_WORDS if rng.random() < 0.3 and last <= LARGEST_COUNT else range(max(LARGEST_COUNT, last) + 1)
    prompt = sloppy(rng, fill(rng, lines("numbers", section), a=names[first], b=names[last]))
    return Turn(prompt, ", ".join(map(str, numbers)) or TOO_FAR)


def count_and_back(rng: Random) -> list[Turn]:
    """Return a request to count, and one to do it backwards."""
    turn = counting(rng)
    if turn.reply == TOO_FAR:
        return [turn]
    back = ", ".join(reversed(turn.reply.split(", ")))
    return [turn, Turn(sloppy(rng, fill(rng, lines("numbers", "go on back"))), back)]


def neighbour(rng: Random) -> Turn:
    """Return a request for the next number, or the one before."""
    a, step, side = rng.choice(((rng.randint(0, 19), 1, "after"), (rng.randint(1, 20), -1, "before")))
    return Turn(sloppy(rng, fill(rng, lines("numbers", side), a=a)), f"{a + step} comes {side} {a}.")


def numbers(rng: Random) -> Turn:
    """Return any request about numbers."""
    kinds = (small_sum, three_numbers, big_sum, counting, neighbour)
    return rng.choices(kinds, (53, 15, 16, 14, 2))[0](rng)


def drill(rng: Random) -> list[Turn]:
    """Return several short exercises one after the other: much arithmetic in few tokens."""
    return [rng.choice((small_sum, small_sum, three_numbers))(rng) for _ in range(rng.randint(4, 7))]


def _beyond(rng: Random) -> int:
    if rng.random() < 0.25:
        return rng.choice(ROUND_NUMBERS)
    digits = rng.choice(((LARGEST_OPERAND + 1, 30), (LARGEST_OPERAND + 1, 99), (100, 999), (1000, 99999)))
    return rng.randint(*digits)
