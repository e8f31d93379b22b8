"""What people type first, and whether an answer to it is good: prompts from `first_prompts.toml`, and their rules.

Rules of a prompt: `story` (words that stand in a whole story), `numbers` (these and no others, in order), `items`
different members of the group `among`, `json` (an object with these values), `echo` (this text and nothing else),
`number` (the last number is this one), `says` and `never` (patterns, searched without regard to case), `recalls` (what
the pattern finds in the answer before), `call` (one call of a tool). All of a prompt's rules must accept its last
answer. Where `refusal` is true, an honest refusal is good as well; if there is no other rule, nothing else is.
"""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

FILE = Path(__file__).parent / "first_prompts.toml"
KINDS = (
    *("stories", "counting", "lists", "json", "repeating", "feelings", "names", "sums", "invented", "languages"),
    *("typos", "follow_ups", "tools", "schemas", "systems"),
)
"""The kinds of first prompts, each a section of the file."""
STORY_WORDS = 25
"""Least number of words of a story."""
STORY_TOKENS, ANSWER_TOKENS = 80, 120
"""Most tokens that a story and any other answer may take until it ends by itself."""
HONEST = re.compile(
    r"\b(do not (know|understand)|cannot|too (small|big|long|hard)|not sure|no opinion|I (can )?only)\b", re.IGNORECASE
)
"""Matches every refusal in English."""
CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
SCHEMA_SYSTEM = (
    "You are a helpful assistant that answers in JSON. Here's the JSON schema you must adhere to:\n"
    "<schema>\n{schema}\n</schema>"
)
"""The system prompt with which models of the Hermes family are given a schema."""
_EQUATION = re.compile(r"(-?\d+(?: [-+x*] \d+)+) = (-?\d+)(?![\d.])(?! [-+x*] \d)")
_FILLER = re.compile(r"\b(and|here|are|is|some|sure|three|two|four|five|of|them|an?|the)\b")

Message = dict[str, Any]
"""A message as chat templates read it."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a model is to answer next."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    """Functions as chat templates read them."""
    limit: int = ANSWER_TOKENS
    """Most tokens of the answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer."""

    text: str
    ended: bool = True
    """Whether it ended by itself, before the limit."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A first prompt, or a short conversation of which the last answer is graded."""

    kind: str
    asks: tuple[str, ...]
    """What the user types, turn by turn."""
    rules: Mapping[str, Any] = field(default_factory=dict)
    """Each rule with what it wants, see the module."""
    system: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    call_result: Mapping[str, Any] | None = None
    """What the first of the tools has answered already."""

    @property
    def limit(self) -> int:
        """Most tokens of each answer."""
        return STORY_TOKENS if "story" in self.rules else ANSWER_TOKENS

    def conversation(self, answers: Sequence[Reply]) -> Conversation:
        """Return the conversation after these answers of the model, the next question at its end."""
        messages: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        for ask, answer in zip(self.asks, answers, strict=False):
            messages += [{"role": "user", "content": ask}, {"role": "assistant", "content": answer.text}]
        messages.append({"role": "user", "content": self.asks[len(answers)]})
        if self.call_result is not None:
            messages += self._called(self.call_result)
        return Conversation(messages, self.tools, self.limit)

    def _called(self, result: Mapping[str, Any]) -> list[Message]:
        city = self.asks[0].rstrip("?").split()[-1]
        call = {"name": self.tools[0]["function"]["name"], "arguments": {"city": city}}
        return [
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
            {"role": "tool", "content": json.dumps({"city": city, **result})},
        ]


Answer = Callable[[Sequence[Conversation]], list[Reply]]
"""From conversations to a model's greedy replies."""


@dataclass(frozen=True, slots=True)
class Graded:
    """A prompt with the model's answers to it."""

    prompt: Prompt
    answers: tuple[Reply, ...]

    @property
    def fault(self) -> str:
        """What is wrong with the last answer; empty if it is good."""
        return fault(self.prompt, self.answers)


def grade(prompts: Sequence[Prompt], answer: Answer) -> list[Graded]:
    """Return the prompts with a model's answers; all first questions go into one call of `answer`, and so on."""
    answers: list[list[Reply]] = [[] for _ in prompts]
    for turn in range(max(len(prompt.asks) for prompt in prompts)):
        there = [at for at, prompt in enumerate(prompts) if turn < len(prompt.asks)]
        replies = answer([prompts[at].conversation(answers[at]) for at in there])
        for at, reply in zip(there, replies, strict=True):
            answers[at].append(reply)
    return [Graded(prompt, tuple(own)) for prompt, own in zip(prompts, answers, strict=True)]


def shares(graded: Sequence[Graded]) -> dict[str, float]:
    """Return the share of good answers, 0 to 1, by kind and for `all`."""
    count, good = (
        Counter(one.prompt.kind for one in graded),
        Counter(one.prompt.kind for one in graded if not one.fault),
    )
    by_kind = {kind: good[kind] / count[kind] for kind in count}
    return by_kind | {"all": good.total() / len(graded)}


def fault(prompt: Prompt, answers: Sequence[Reply]) -> str:
    """Return what is wrong with the last of the answers, in a few words; empty if it is good."""
    reply = answers[-1]
    if not reply.ended:
        return "unfinished"
    if loops(reply.text):
        return "loop"
    if any(not is_true(*equation) for equation in _EQUATION.findall(reply.text)):
        return "wrong sum"
    rules = {name: wanted for name, wanted in prompt.rules.items() if name in RULES}
    refused = HONEST.search(reply.text) is not None
    if prompt.rules.get("refusal") and refused:
        return ""
    before = answers[-2].text if len(answers) > 1 else ""
    broken = [name for name, wanted in rules.items() if not RULES[name](wanted, reply.text, before)]
    if not rules:
        return "invented fact"
    if broken and "number" in rules and not refused:
        return "wrong sum"
    return ", ".join(broken)


def loops(text: str) -> bool:
    """Return whether the text says four words in a row three times, or one word four times on end."""
    words = re.findall(r"\w+", text.lower())
    fours = Counter(zip(words, words[1:], words[2:], words[3:], strict=False))
    return any(count >= 3 or len(set(four)) == 1 for four, count in fours.items() if not all(w.isdigit() for w in four))


def is_true(left: str, right: str) -> bool:
    """Return whether the two sides of an equation are equal; `left` has + - * or x between numbers."""
    first, *rest = re.sub(r"^-", "~", left.replace("x", "*")).split()
    terms = [int(first.replace("~", "-"))]
    for sign, number in zip(rest[::2], map(int, rest[1::2]), strict=True):
        if sign == "*":
            terms[-1] *= number
        else:
            terms.append(number if sign == "+" else -number)
    return sum(terms) == int(right)


def _story(words: Sequence[str], text: str, _: str) -> bool:
    whole = len(text.split()) >= STORY_WORDS and text.rstrip().endswith((".", "!", '"'))
    return whole and all(re.search(rf"\b{re.escape(word)}", text, re.IGNORECASE) for word in words)


def _numbers(numbers: Sequence[int], text: str, _: str) -> bool:
    return [int(number) for number in re.findall(r"\d+", text)] == numbers


def _items(group: tuple[int, frozenset[str]], text: str, _: str) -> bool:
    count, members = group
    words = re.findall(r"[a-z]+", _FILLER.sub(" ", text.lower()))
    named = [word for word in words if word in members]
    return len(named) == len(set(named)) == count and len(words) <= 2 * count


def _json(wanted: Mapping[str, Any], text: str, _: str) -> bool:
    return _loads(text) == wanted


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _echo(wanted: str, text: str, _: str) -> bool:
    return text.strip().strip("\"'.!").casefold() == wanted.casefold()


def _number(wanted: int, text: str, _: str) -> bool:
    numbers = re.findall(r"(?<!\d)(?<!\d )-?\d+", text)
    return bool(numbers) and int(numbers[-1]) == wanted


def _says(pattern: str, text: str, _: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE | re.DOTALL) is not None


def _never(pattern: str, text: str, _: str) -> bool:
    return not _says(pattern, text, _)


def _recalls(pattern: str, text: str, before: str) -> bool:
    match = re.search(pattern, before)
    return match is not None and re.search(rf"\b{re.escape(match[1])}\b", text, re.IGNORECASE) is not None


def _call(wanted: Mapping[str, Any], text: str, _: str) -> bool:
    calls = CALL.findall(text)
    return len(calls) == 1 and _loads(calls[0]) == wanted


RULES: Mapping[str, Callable[[Any, str, str], bool]] = {
    "story": _story,
    "numbers": _numbers,
    "items": _items,
    "json": _json,
    "echo": _echo,
    "number": _number,
    "says": _says,
    "never": _never,
    "recalls": _recalls,
    "call": _call,
}
"""From what a rule wants, the answer, and the answer before, to whether the answer is good."""


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@cache
def first_prompts() -> tuple[Prompt, ...]:
    """Return the first prompts, in the order of the file."""
    return tuple(_prompt(kind, entry) for kind in KINDS for entry in _file()[kind])


@cache
def two_hundred_stories() -> tuple[Prompt, ...]:
    """Return 200 requests for stories about given heroes, things and names."""
    part = _file()["two_hundred_stories"]
    heroes, things, names = (part[name].split() for name in ("heroes", "things", "names"))
    found = []
    for ask in part["asks"]:
        for hero, thing, name in zip(heroes, things, names, strict=True):
            wanted = [word for slot, word in (("$hero", hero), ("$thing", thing), ("$name", name)) if slot in ask]
            text = Template(ask).substitute(hero=hero, thing=thing, name=name)
            found.append(Prompt("200 stories", (text,), {"story": wanted}))
    return tuple(found)


@cache
def two_hundred_records() -> tuple[Prompt, ...]:
    """Return 200 requests for JSON with given values."""
    part = _file()["two_hundred_records"]
    found = []
    for number, (ask, keys) in enumerate(zip(part["asks"], part["fields"], strict=True)):
        for at, (name, city) in enumerate(zip(part["names"].split(), part["cities"].split(), strict=True)):
            values = {"name": name, "age": 1 + (at * 37 + number * 11) % 99, "city": city}
            text = Template(ask).substitute(values)
            found.append(Prompt("200 records", (text,), {"json": {key: values[key] for key in keys}}))
    return tuple(found)


def shipped_scores() -> dict[str, float]:
    """Return the recorded scores of the committed weights, 0 to 1, by kind."""
    scores: dict[str, float] = _file()["shipped"]
    return scores


def reserved(texts: Sequence[str]) -> bool:
    """Return whether a user's texts, turn by turn, have in them what the model is graded by: not to be trained on.

    Of a graded conversation all texts in a row are reserved, not each by itself.
    """
    plain = [plain_words(text) for text in texts]
    spans = (tuple(plain[at:end]) for end in range(len(plain) + 1) for at in range(max(0, end - 3), end))
    return any(span in _reserved_texts() for span in spans)


def plain_words(text: str) -> str:
    """Return the words of the text, without regard to case and punctuation."""
    return " ".join(re.findall(r"\w+", text.casefold()))


@cache
def _reserved_texts() -> frozenset[tuple[str, ...]]:
    graded = (*first_prompts(), *two_hundred_stories(), *two_hundred_records())
    return frozenset(tuple(plain_words(ask) for ask in prompt.asks) for prompt in graded)


def _prompt(kind: str, entry: Mapping[str, Any]) -> Prompt:
    rules = {name: wanted for name, wanted in entry.items() if name in RULES or name == "refusal"}
    if "items" in rules:
        rules["items"] = (entry["items"], frozenset(_file()["members"][entry["among"]].split()))
    system = entry.get("system")
    if "schema" in entry:
        system = SCHEMA_SYSTEM.format(schema=json.dumps(_object_schema(entry["schema"])))
    asks = entry["ask"] if isinstance(entry["ask"], list) else [entry["ask"]]
    return Prompt(kind, tuple(asks), rules, system, tuple(_functions(entry.get("tools", ()))), entry.get("call_result"))


def _object_schema(fields: Mapping[str, str]) -> dict[str, Any]:
    properties = {name: {"type": kind} for name, kind in fields.items()}
    return {"type": "object", "properties": properties, "required": list(fields)}


def _functions(names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    for name in names:
        about = _file()["functions"][name]
        function = {
            "name": name,
            "description": about["description"],
            "parameters": _object_schema(about["parameters"]),
        }
        yield {"type": "function", "function": function}
