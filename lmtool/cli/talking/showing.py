"""Which form the answer to a prompt takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from lmtool.cli.talking.heat import HeatMode
from lmtool.errors import UsageError

Form: TypeAlias = Literal["text", "table", "json", "jsonl", "raw"]
"""Text; one row a token; one JSON object; one JSON object a token; the server's frames as they are."""


@dataclass(frozen=True, slots=True)
class Showing:
    """What stdout and stderr get, the same for every prompt of a session."""

    form: Form = "text"
    heat: HeatMode | None = None
    """What tokens are coloured by; None: they are not."""
    stats: bool = False
    """Whether stderr gets timings and perplexity."""
    stream: bool = True
    """Whether tokens are shown as they come, or all at the end."""
    echo: bool = False
    """Whether the prompt stands in front of the text."""


def form_of(*, table: bool = False, json: bool = False, jsonl: bool = False, raw: bool = False) -> Form:
    """Return the one form that was chosen, text where none was. Raises `UsageError` for two."""
    options: dict[Form, bool] = {"table": table, "json": json, "jsonl": jsonl, "raw": raw}
    chosen = [form for form, on in options.items() if on]
    if len(chosen) > 1:
        raise UsageError(f"--{chosen[0]} and --{chosen[1]} are two forms of the same output", "choose one")
    return chosen[0] if chosen else "text"
