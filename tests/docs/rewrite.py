"""Puts what the examples of README and manual print today in place of what they show.

`python -m tests.docs.rewrite URL [PAGE...]`, of a server of the included model. Only examples that print something else
than their page shows are rewritten: read the difference before you commit it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from tests.docs.examples import BY_CI, PAGES, Example, examples, steady
from tests.docs.reader import Reader

LEFT_OUT = "..."
"""A line that stands for lines that are not shown."""
WIDEST = 110
"""Characters of the longest line that is shown whole."""


def rewritten(example: Example, printed: str) -> str:
    """Return the output to show: as many lines before and after those left out as the page shows now.

    What is printed on standard error, such as a model's loading, comes last and is not shown where it was not.
    A line that differs only in times stays as it is; a long one is cut behind its first sentence.
    """
    shown = example.output.rstrip("\n").splitlines()
    lines = printed.strip("\n").splitlines()
    if LEFT_OUT in shown:
        first, last = shown.index(LEFT_OUT), len(shown) - 1 - shown[::-1].index(LEFT_OUT)
        after = len(shown) - 1 - last
        lines = [*lines[:first], LEFT_OUT, *(lines[-after:] if after else [])]
    else:
        lines = lines[: len(shown)]
    true = {steady(line): line for line in shown}
    return "".join(
        f"{true.get(steady(line), line if len(line) <= WIDEST else _first_sentence(line))}\n" for line in lines
    )


def _first_sentence(line: str) -> str:
    sentence, stop, _ = line.partition(". ")
    return sentence + stop.strip()


def rewrite(page: Path, address: str) -> list[str]:
    """Rewrite a page's outputs that are no longer true; return the commands that they belong to."""
    changed = []
    with tempfile.TemporaryDirectory() as folder:
        reader = Reader(Path(folder), address)
        for example in examples(page):
            if example.skip or example.source.startswith(BY_CI):
                continue
            printed = reader.run(example)
            if not example.output.strip() or printed is None or not example.missing_from(printed):
                continue
            for port, named in ((str(urlsplit(address).port), "8080"), *((own, n) for n, own in reader.ports.items())):
                printed = printed.replace(f":{port}", f":{named}")
            text = page.read_text(encoding="utf-8")
            old = f"$ {example.source}\n{example.output}"
            trailing = "\n" if example.output.endswith("\n\n") else ""
            new = f"$ {example.source}\n{rewritten(example, printed)}{trailing}"
            assert old in text, old
            page.write_text(text.replace(old, new, 1), encoding="utf-8")
            changed.append(example.source)
    return changed


if __name__ == "__main__":
    for one in [Path(name).resolve() for name in sys.argv[2:]] or PAGES:
        for command in rewrite(one, sys.argv[1]):
            sys.stdout.write(f"{one.name}: {command}\n")
