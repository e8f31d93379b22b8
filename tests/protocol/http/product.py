"""Random requests over the whole product: every finished answer is held to its form, and a thought is never part of it.

    python -m tests.protocol.http.product [ROUNDS] [SEED]

goes that often over 3 APIs x schema, regular expression, tool x streamed or not x speculation and jump-forward on, off
x thinking on, off, absent, up to the model, cut by the limit, cut by its budget, with another thought, wish, schema and
limit each time: 216 requests a round. Each runs through the real engine, text model and constraints; a script says what
the model would like to write.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from jsonschema import Draft202012Validator

from tests.protocol.http.thinking import READERS, SCHEMA, Found, Scripted, asked_to_think, body_of, scripted

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMS = ("schema", "regex", "tool")
THINKING = ("on", "off", "absent", "up to the model", "cut", "cut by its budget")
MARKER = "Zebra"
"""In every thought, and in no schema: an answer that has it has a piece of a thought."""
_PIECES = (
    "so, ",
    "<",
    "</",
    "think>",
    "<think>",
    "{",
    '"a":',
    "}",
    "[",
    "\n",
    "<tool_call>",
    " 🦉",
    '{"name": "f"',
    "no. ",
)
_WISHES = (
    "No! No form.",
    '{"a":"one","b":true}',
    '{"a":"three"',
    "[1, 2, 3]",
    '"ab-1"',
    '"zz-9" and more',
    "",
    "\n\n{}",
    "</think>",
)
_SCHEMAS: tuple[dict[str, Any], ...] = (
    SCHEMA,
    {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 17}},
        "required": ["n"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {"list": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 3}},
        "required": ["list"],
        "additionalProperties": False,
    },
)


class Case(NamedTuple):
    """One request of the product."""

    path: str
    form: str
    stream: bool
    fast: bool
    """Whether with speculation and jump-forward."""
    thinking: str


def cases() -> Iterator[Case]:
    """The whole product."""
    both = (False, True)
    for path, form, thinking, stream, fast in itertools.product(READERS, FORMS, THINKING, both, both):
        yield Case(path, form, stream, fast, thinking)


def thought_of(draw: random.Random) -> str:
    """A thought that does not end before it ends: with pieces of marks, calls and JSON."""
    pieces = [draw.choice(_PIECES) for _ in range(draw.randint(0, 8))]
    pieces.insert(draw.randint(0, len(pieces)), f"{MARKER} ")
    return f"So {''.join(pieces)}.".replace("</think>", "</thin>")


def check(server: Scripted, case: Case, draw: random.Random) -> str:
    """Send one request; return how its answer ended. Raises `AssertionError` where it is not held."""
    thought, wish, schema = thought_of(draw), draw.choice(_WISHES), draw.choice(_SCHEMAS)
    thinks = case.thinking not in {"off", "absent"}
    begun = "<think>\n" if case.thinking == "up to the model" else ""
    if case.thinking == "absent":  # what is no answer from the start may begin a thought
        listed = case.form == "tool" and case.path != "messages"
        wish = ('"' if case.form == "regex" else '[{"' if listed else '{"') + wish
    server.says(f"{begun}{thought}\n</think>\n\n{wish}" if thinks else wish)
    body = body_of(case.path, case.form, schema, stream=case.stream)
    body |= asked_to_think(case.path, {"up to the model": "absent"}.get(case.thinking, case.thinking))
    if case.thinking == "cut":
        body[{"responses": "max_output_tokens"}.get(case.path, "max_tokens")] = draw.randint(1, 20)
    if case.thinking == "cut by its budget":
        body.pop("thinking", None)
        body |= {"thinking_token_budget": draw.randint(1, 12), "chat_template_kwargs": {"enable_thinking": True}}
    found = READERS[case.path](server.post(case.path, body))
    about = (case, thought, wish, found)
    assert MARKER not in found.text + (found.arguments or ""), about
    if thinks and found.reason != "length":
        # A budget may end inside a character, and inside a mark of several tokens.
        begins = f"{thought}\n</think>".startswith(found.thought.rstrip("\ufffd"))
        assert found.thought == thought or (case.thinking == "cut by its budget" and begins), about
    if found.reason == "length":
        assert case.thinking == "cut", about
    else:
        assert _is_held(case.form, found, schema), about
    return found.reason


def _is_held(form: str, found: Found, schema: dict[str, Any]) -> bool:
    if (found.text == "") != (form == "tool") or (found.arguments is None) != (form != "tool"):
        return False
    value = json.loads(found.text if found.arguments is None else found.arguments)
    if form == "regex":
        return re.fullmatch("[a-c]{2}-[0-9]", value) is not None
    return bool(Draft202012Validator(schema).is_valid(value))


def run(rounds: int, seed: int = 0, sample: int | None = None) -> Counter[str]:
    """Go over the product so often, or over a sample of so many; count the answers by thinking and how they ended."""
    counts: Counter[str] = Counter()
    with ExitStack() as opened:
        servers = {fast: opened.enter_context(scripted(speculation=fast, jump_forward=fast)) for fast in (False, True)}
        for at in range(rounds):
            numbered = list(enumerate(cases()))
            if sample is not None:
                numbered = random.Random(f"{seed} {at}").sample(numbered, sample)
            for number, case in numbered:
                reason = check(servers[case.fast], case, random.Random(f"{seed} {at} {number}"))
                counts[f"{case.thinking}: {reason}"] += 1
    return counts


if __name__ == "__main__":
    sys.stdout.write(f"{dict(sorted(run(*map(int, sys.argv[1:] or ['10'])).items()))}\n")
