"""The numbers that the model can handle, and a plain refusal for all others."""

from dataclasses import dataclass
from random import Random

from lmtool.tiny.recipe.document import Turn
from lmtool.tiny.recipe.phrasebook import lines
from lmtool.tiny.recipe.phrasing import fill, sloppy

LARGEST_OPERAND = 10
"""Sums and differences of operands from 0 to this are to be known."""
LARGEST_COUNT = 10
"""Counting goes from 0 to this."""

TOO_BIG = "That sum is too big for me. I can only add and subtract two numbers up to ten."
BELOW_ZERO = "That is less than zero, and I only know the numbers from zero up."
NO_PRODUCT = "I cannot multiply or divide. I can add and subtract two numbers up to ten."
NO_MATHS = "That is too hard for me. I can only add and subtract two numbers up to ten."
TOO_FAR = "I can only count to ten."

NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
SIGNS = {"+": ("plus", "and"), "-": ("minus",), "*": ("times", "x", "multiplied by")}
"""Each sign with the words for it."""
VERBS = {"+": "add", "-": "subtract", "*": "multiply"}
"""The section of the page with sums in words, by sign."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A small exercise."""

    left: int
    sign: str
    """One of + - *"""
    right: int

    @property
    def answer(self) -> str:
        """The right reply, which may be to decline."""
        if self.sign == "*":
            return NO_PRODUCT
        if max(self.left, self.right) > LARGEST_OPERAND:
            return TOO_BIG
        if self.sign == "-" and self.left < self.right:
            return BELOW_ZERO
        result = self.left + self.right if self.sign == "+" else self.left - self.right
        return f"{self.left} {self.sign} {self.right} = {result}"


def every_sum() -> list[Sum]:
    """Return all exercises that the model is to know."""
    numbers = range(LARGEST_OPERAND + 1)
    return [Sum(a, sign, b) for sign in "+-" for a in numbers for b in numbers if sign != "-" or a >= b]


def ask(rng: Random, exercise: Sum) -> str:
    """Return one way to ask for the exercise."""
    sign, names = exercise.sign, SIGNS[exercise.sign]
    numbers = (exercise.left, exercise.right)
    spelled_out = rng.random() < 0.1 and max(numbers) <= LARGEST_OPERAND
    a, b = (NUMBER_WORDS[number] if spelled_out else str(number) for number in numbers)
    if rng.random() < 0.15:
        return sloppy(rng, fill(rng, lines("numbers", VERBS[sign]), a=a, b=b))
    section, names = ("spelled out", names) if spelled_out else ("ask", (sign, names[0]) * 2 + (sign, *names))
    between = "x" if sign == "*" and rng.random() < 0.15 else sign
    prompt = fill(rng, lines("numbers", section), a=a, b=b, s=rng.choice(names), sign=between)
    return sloppy(rng, prompt, typos=0.03)


def small_sum(rng: Random) -> Turn:
    """Return an exercise that the model is to know."""
    sign = rng.choice("+++--")
    a, b = rng.randint(0, LARGEST_OPERAND), rng.randint(0, LARGEST_OPERAND)
    if sign == "-" and a < b and rng.random() < 0.8:
        a, b = b, a
    exercise = Sum(a, sign, b)
    return Turn(ask(rng, exercise), exercise.answer)


def big_sum(rng: Random) -> Turn:
    """Return an exercise that is beyond the model, and the refusal."""
    kind = rng.random()
    if kind < 0.5:
        numbers = [_beyond(rng), rng.choice((_beyond(rng), rng.randint(0, LARGEST_OPERAND)))]
        rng.shuffle(numbers)
        exercise = Sum(numbers[0], rng.choice("+-"), numbers[1])
        return Turn(ask(rng, exercise), exercise.answer)
    n, m, k = (rng.choice((rng.randint(0, 12), _beyond(rng))) for _ in range(3))
    if kind < 0.75:
        exercise = Sum(n, "*", m)
        return Turn(ask(rng, exercise), exercise.answer)
    section, answer = ("divide", NO_PRODUCT) if kind < 0.82 else ("too hard", NO_MATHS)
    return Turn(sloppy(rng, fill(rng, lines("numbers", section), n=n, m=m, k=k)), answer)


def counting(rng: Random) -> Turn:
    """Return a request to count, forwards or backwards."""
    first, last = sorted(rng.sample(range(LARGEST_COUNT + 1), 2))
    kind = rng.random()
    if kind < 0.1:
        section, numbers = "count too far", []
        last = _beyond(rng) + 10
    elif kind < 0.5:
        section, numbers = "count to", list(range(1, last + 1))
    elif kind < 0.85:
        section, numbers = "count from", list(range(first, last + 1))
    else:
        section, numbers = "count back", list(range(last, first - 1, -1))
    prompt = sloppy(rng, fill(rng, lines("numbers", section), a=first, b=last), typos=0.02)
    return Turn(prompt, ", ".join(map(str, numbers)) or TOO_FAR)


def neighbour(rng: Random) -> Turn:
    """Return a request for the next number."""
    a = rng.randint(0, LARGEST_COUNT)
    return Turn(sloppy(rng, fill(rng, lines("numbers", "after"), a=a)), f"{a + 1} comes after {a}.")


def numbers(rng: Random) -> Turn:
    """Return any request about numbers."""
    kinds = (small_sum, big_sum, counting, neighbour)
    return rng.choices(kinds, (66, 22, 10, 2))[0](rng)


def _beyond(rng: Random) -> int:
    if rng.random() < 0.25:
        return rng.choice(
            (11, 12, 15, 20, 25, 30, 40, 50, 60, 80, 90, 99, 100, 101, 123, 200, 300, 456, 500, 1000, 1234)
        )
    digits = rng.choice(((LARGEST_OPERAND + 1, 20), (LARGEST_OPERAND + 1, 99), (100, 999), (1000, 99999)))
    return rng.randint(*digits)
