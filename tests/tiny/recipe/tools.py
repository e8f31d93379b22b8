"""Conversations with functions to call, with a schema for the answer, or with a system prompt that matters."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from tests.tiny.recipe.copying import fields_record, other, person
from tests.tiny.recipe.document import Chat, Turn, tool_call
from tests.tiny.recipe.facts import capital, fact
from tests.tiny.recipe.phrasebook import items, lines, page
from tests.tiny.recipe.phrasing import (
    COMMON,
    fill,
    sloppy,
    some_city,
    some_name,
    some_thing,
    some_word,
    spin,
    unpunctuated,
)

NUMBERS = frozenset({"a", "b", "minutes", "quantity", "id"})
"""Arguments that are whole numbers."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function, and ways to ask for it."""

    name: str
    about: str
    arguments: tuple[str, ...]
    asks: tuple[str, ...]


@cache
def functions() -> tuple[Function, ...]:
    """Return the functions of the page."""
    found = []
    for block in page("tools")["functions"].split("\n\n"):
        head, *asks = block.splitlines()
        match = re.fullmatch(r"(\w+)\((.*)\): (.*)", head)
        assert match is not None
        found.append(Function(match[1], match[3], tuple(match[2].split(", ")), tuple(ask[2:] for ask in asks)))
    return tuple(found)


def some_function(rng: Random) -> Function:
    """Return a function of the page, or a made-up one."""
    if rng.random() < 0.8:
        return rng.choice(functions())
    noun, argument = some_word(rng), rng.choice(("city", "name", "item", "id", "topic"))
    verb = rng.choice(("get", "find", "show", "read"))
    asks = (
        f"[What is|what is|what's|tell me|show me] the {noun} of {{{argument}}}[| please]?",
        f"[{verb}|{verb.capitalize()}|please {verb}] the {noun} [of|for] {{{argument}}}[| please].",
        f"{noun} of {{{argument}}}",
    )
    name = f"{verb}_{noun}".replace(" ", "_")
    return Function(name, f"{verb.capitalize()} the {noun} of a {argument}.", (argument,), asks)


def _argument(rng: Random, name: str) -> object:
    if name in NUMBERS:
        return rng.randint(1, rng.choice((10, 99, 999)))
    if name == "city":
        return some_city(rng)
    if name in {"artist", "name"}:
        return some_name(rng)
    if name == "room":
        return rng.choice(items("tools", "rooms"))
    if name == "language":
        return rng.choice(items("tools", "spoken"))
    if name in {"query", "text", "topic"}:
        return " ".join(some_word(rng) for _ in range(rng.choice((1, 2, 2, 3, 4))))
    return rng.choice((some_thing(rng), rng.choice(COMMON)))


def entry(rng: Random, function: Function) -> Mapping[str, Any]:
    """Return the function as a client describes it."""
    properties: dict[str, dict[str, object]] = {
        name: {"type": "integer" if name in NUMBERS else "string"} for name in function.arguments
    }
    if rng.random() < 0.2:
        for name, about in properties.items():
            about["description"] = f"The {name}"
    parameters: dict[str, object] = {"type": "object", "properties": properties}
    if rng.random() < 0.8:
        parameters["required"] = list(properties)
    described = {"description": spin(rng, function.about)} if rng.random() < 0.9 else {}
    return {"type": "function", "function": {"name": function.name, **described, "parameters": parameters}}


def with_tools(rng: Random, talk: Callable[[Random], Turn], system: str | None) -> Chat:
    """Return a conversation in which functions are offered: one is called, or none is of use. talk: any other turn."""
    offered = {function.name: function for function in (some_function(rng) for _ in range(rng.choice((1, 1, 2, 2, 3))))}
    tools = [entry(rng, function) for function in offered.values()]
    if rng.random() < 0.25:
        return Chat([talk(rng)], system, tools)
    function = rng.choice(list(offered.values()))
    arguments = {name: _argument(rng, name) for name in function.arguments}
    marks = {name: f"<<{name}>>" for name in arguments}
    prompt = unpunctuated(rng, fill(rng, function.asks, **marks))
    for name, value in arguments.items():
        prompt = prompt.replace(f"<<{name}>>", str(value))
    turns = [Turn(prompt, tool_call(function.name, arguments))]
    if rng.random() < 0.3:
        turns.append(_result(rng, function, arguments))
    return Chat(turns, system, tools)


def _result(rng: Random, function: Function, arguments: Mapping[str, object]) -> Turn:
    """The turn in which the function answers and the model says what it has answered."""
    kind = rng.random()
    if kind < 0.2:
        return Turn(response(json.dumps({"status": rng.choice(("ok", "done", "success"))})), "Done!")
    noun = function.name.partition("_")[2].replace("_", " ") if function.name.startswith(("get", "find")) else "result"
    value = rng.choice((rng.choice(items("tools", "weathers")), some_word(rng), rng.randint(0, 999)))
    if kind < 0.35:
        text = " ".join(str(some_word(rng)) for _ in range(rng.randint(1, 4)))
        return Turn(response(text), f"Here is the answer: {text}")
    told = {**arguments, noun: value} if rng.random() < 0.5 else {noun: value}
    return Turn(response(json.dumps(told)), f"The {noun} is {value}.")


def response(text: str) -> str:
    """Return what a function has answered, as the chat template writes it."""
    return f"<tool_response>\n{text}\n</tool_response>"


def schema(rng: Random, fields: Mapping[str, object]) -> dict[str, object]:
    """Return a JSON schema of these fields, in this order."""
    properties = {key: {"type": "integer" if isinstance(value, int) else "string"} for key, value in fields.items()}
    whole: dict[str, object] = {"type": "object", "properties": properties}
    if rng.random() < 0.8:
        whole["required"] = list(fields)
    if rng.random() < 0.2:
        whole["additionalProperties"] = False
    return whole


def by_schema(rng: Random) -> Chat:
    """Return a conversation whose system prompt has a schema that the answer follows."""
    if rng.random() < 0.25:
        turn = fields_record(rng)
        text, fields = turn.prompt, json.loads(turn.reply)
    else:
        text, fields = rng.choice((person, other))(rng)
    keys = list(fields)
    rng.shuffle(keys)
    if len(keys) > 2 and rng.random() < 0.3:
        keys = keys[:-1]
    fields = {key: fields[key] for key in keys}
    system = spin(rng, rng.choice(lines("tools", "schema systems"))).replace("<nl>", "\n")
    system = system.replace("{s}", json.dumps(schema(rng, fields)))
    ask = spin(rng, rng.choice(lines("tools", "schema asks"))).replace("{t}", text)
    return Chat([Turn(ask, json.dumps(fields))], system)


def by_system(rng: Random) -> Chat:
    """Return a conversation whose system prompt gives a name, or asks for JSON."""
    kind = rng.random()
    if kind < 0.4:
        turn = rng.choice((fact, capital))(rng)
        return Chat([Turn(turn.prompt, json.dumps({"answer": turn.reply}))], rng.choice(lines("tools", "json systems")))
    name = some_name(rng)
    if kind < 0.7:
        turn = Turn(sloppy(rng, fill(rng, lines("tools", "ask own name"))), f"I am {name}. How can I help you?")
        return Chat([turn], fill(rng, lines("tools", "name systems"), n=name))
    turn = Turn(unpunctuated(rng, fill(rng, lines("copying", "ask name"))), f"Your name is {name}.")
    return Chat([turn], fill(rng, lines("tools", "user systems"), n=name))
