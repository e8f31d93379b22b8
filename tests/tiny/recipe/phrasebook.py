"""The pages of phrases that the corpus is made of, read from the text files in `phrases/`.

A page has sections, each under a line `== name`. What a section's lines mean is up to its theme: one phrase a line,
words with spaces between them, items with commas, a table of `left: right` items, or talks.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "phrases"


@dataclass(frozen=True, slots=True)
class Talk:
    """Ways to ask, and good answers to any of them."""

    asks: tuple[str, ...]
    answers: tuple[str, ...]


@cache
def page(name: str) -> dict[str, str]:
    """Return the sections of `phrases/<name>.txt` by name, each without its heading."""
    _, *sections = ("\n" + (FOLDER / f"{name}.txt").read_text(encoding="utf-8")).split("\n== ")
    return {heading: body.strip("\n") for heading, _, body in (section.partition("\n") for section in sections)}


def lines(page_name: str, section: str) -> tuple[str, ...]:
    """Return the lines of a section."""
    return tuple(page(page_name)[section].splitlines())


def words(page_name: str, section: str) -> tuple[str, ...]:
    """Return the words of a section; an underscore in the file stands for a space within a word."""
    return tuple(word.replace("_", " ") for word in page(page_name)[section].split())


def items(page_name: str, section: str) -> tuple[str, ...]:
    """Return the items of a section, which have commas between them."""
    return tuple(item.strip() for item in page(page_name)[section].replace("\n", " ").split(",") if item.strip())


def table(page_name: str, section: str) -> tuple[tuple[str, str], ...]:
    """Return the `left: right` items of a section."""
    return tuple((left, right) for left, _, right in (item.partition(": ") for item in items(page_name, section)))


def rows(page_name: str, section: str) -> tuple[tuple[str, str], ...]:
    """Return the lines of a section, each of them a `left: right`."""
    return tuple((left, right) for left, _, right in (line.partition(": ") for line in lines(page_name, section)))


def talks(page_name: str, section: str) -> tuple[Talk, ...]:
    """Return the talks of a section: lines `? ask` and `! answer`, with a blank line after each talk."""
    return tuple(_talk(block.splitlines()) for block in page(page_name)[section].split("\n\n"))


def _talk(block: list[str]) -> Talk:
    return Talk(
        tuple(line[2:] for line in block if line.startswith("? ")),
        tuple(line[2:] for line in block if line.startswith("! ")),
    )
