"""Options whose value may be left out: `--heat` alone means `--heat prob`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

OPTIONAL: Mapping[str, tuple[str, ...]] = {"--heat": ("prob", "surprisal", "entropy", "rank")}
"""Option to its possible values; the first one is meant where none is given."""
WHOLE = ("inspect", "tui")
"""Commands whose options always have their values."""


def complete(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with the values that were left out; nothing behind `--` changes.

    typer knows no option with an optional value. A next word that is no possible value is left alone: in `chat --heat
    "Hello there"` it is the prompt.
    """
    end = words.index("--") if "--" in words else len(words)
    completed = list(words)
    if next((word for word in words[:end] if word in (*WHOLE, "chat", "score")), None) in WHOLE:
        return completed
    for i in range(end):
        values = OPTIONAL.get(words[i])
        if values and (i + 1 == end or words[i + 1] not in values):
            completed[i] = f"{words[i]}={values[0]}"
    return completed
