"""Options whose value may be left out: `--heat` alone means `--heat prob`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from lmtool.errors import UsageError

OPTIONAL: Mapping[str, tuple[str, ...]] = {"--heat": ("prob", "surprisal", "entropy", "rank")}
"""Option to its possible values; the first one is meant where none is given."""
_WORD = re.compile(r"\w+")
WHOLE = ("inspect", "tui")
"""Commands whose options always have their values."""


def complete(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with the values that were left out; nothing behind `--` changes.

    typer knows no option with an optional value. A next word that cannot be meant as one is left alone: in `chat --heat
    "Hello there"` it is the prompt. Raises `UsageError` for a single word that is no possible value.
    """
    end = words.index("--") if "--" in words else len(words)
    completed = list(words)
    if next((word for word in words[:end] if word in (*WHOLE, "chat", "score")), None) in WHOLE:
        return completed
    for i in range(end):
        values = OPTIONAL.get(words[i])
        if values and (i + 1 == end or words[i + 1] not in values):
            if i + 1 < end and _WORD.fullmatch(words[i + 1]):
                raise UsageError(
                    f"{words[i]} {words[i + 1]}: expected one of {', '.join(values)}",
                    f"a prompt of one word stands in front of it, or:  {words[i]} {values[0]} {words[i + 1]}",
                )
            completed[i] = f"{words[i]}={values[0]}"
    return completed
