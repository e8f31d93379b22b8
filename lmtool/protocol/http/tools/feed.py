"""Incremental readers that separate the text of an answer from its tool calls."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from lmtool.inference.text.thought_reader import overlap

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence


@dataclass(frozen=True, slots=True)
class Delta:
    """Text, reasoning or a piece of a call, added to an answer."""

    text: str = ""
    """Text added to the answer."""
    call: int | None = None
    """Index of the call that `name`, `arguments` and `id` belong to."""
    name: str | None = None
    """Name of the tool, on the first delta of a call only."""
    arguments: str = ""
    """JSON text added to the arguments of the call."""
    id: str | None = None
    """Id that the model gave the call, if any; on its first delta only."""
    reasoning: str = ""
    """Text added to the thought; the delta then has nothing else."""


class Reader(Protocol):
    """Incremental reader that separates text from calls in one answer."""

    def push(self, text: str) -> Sequence[Delta]:
        """Add text of the answer; return the deltas that are certain."""

    def finish(self, *, cut: bool = False) -> Sequence[Delta]:
        """Return the deltas held back. Do not call `push` afterwards.

        cut: whether the answer was cut off, for instance at its token limit; the start of a call is then not text.
        """


class Plain:
    """Reader for answers without calls."""

    def push(self, text: str) -> Sequence[Delta]:
        """The text unchanged."""
        return [Delta(text)] if text else []

    def finish(self, *, cut: bool = False) -> Sequence[Delta]:  # noqa: ARG002  # of `Reader`
        """Nothing is held back."""
        return []


class NamedToolReader:
    """Reader for an answer that consists of the arguments of one tool, as a constraint to its schema produces."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def push(self, text: str) -> Sequence[Delta]:
        """The text as arguments; the first delta also has the name."""
        if not text:
            return []
        name, self._name = self._name, None
        return [Delta(call=0, name=name, arguments=text)]

    def finish(self, *, cut: bool = False) -> Sequence[Delta]:  # noqa: ARG002  # of `Reader`
        """Nothing is held back."""
        return []


_ARGUMENTS = frozenset({"arguments", "parameters", "args", "input"})
"""Names that models use for the arguments."""
_BEFORE_NAME = _ARGUMENTS | {"name", "type", "id"}


class ValueEnd:
    """Finds the end of a value with quoted strings and brackets; the base of `Value` and of other notations."""

    __slots__ = ("_depth", "_escaped", "_quote", "ended")

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""
        """Quotation mark of the string that is being read; empty outside strings."""
        self._escaped = False
        self.ended = False

    def take(self, character: str) -> bool:
        """True if the next character belongs to the value."""
        raise NotImplementedError

    def _in_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == self._quote:
            self._quote = ""


class Value(ValueEnd):
    """Finds the end of a JSON value. Its first character is the first one passed to `take`."""

    __slots__ = ()

    def take(self, character: str) -> bool:
        """True if the next character belongs to the value."""
        if self.ended:
            return False
        if self._quote:
            self._in_string(character)
            self.ended = not (self._quote or self._depth)
        elif character == '"':
            self._quote = character
        elif character in "{[":
            self._depth += 1
        elif character in "}],:" or character.isspace():
            return self._between(character)
        return True

    def _between(self, character: str) -> bool:
        if self._depth == 0:  # a number or a word, which ends before the next token
            self.ended = True
            return False
        if character in "}]":
            self._depth -= 1
            self.ended = self._depth == 0
        return True


class CallReader:
    """Incremental reader for a call `{"name": ..., "arguments": {...}}`. After `push`, see `name`, `done`, `failed`."""

    def __init__(self, *, marked: bool = True) -> None:
        """marked: whether a mark announced the call; otherwise its first member must be one that calls have."""
        self._marked = marked
        self.name: str | None = None
        """Name of the tool, once it is complete."""
        self.done = False
        """True if the closing brace was read."""
        self.failed = False
        """True if the text is not a call."""
        self._expected = "{"
        self._key = ""
        self._text = ""
        self._value = Value()
        self._early = ""

    def push(self, text: str) -> tuple[str, str]:
        """Add text; return what it adds to the arguments, empty until the name is known, and text after the call."""
        added: list[str] = []
        for at, character in enumerate(text):
            if self.done or self.failed:
                return "".join(added), text[at:]
            added.append(self._take(character))
        return "".join(added), ""

    def _take(self, character: str) -> str:
        if self._expected in {"key", "value"}:
            if self._text or not character.isspace():
                return self._take_value(character)
            return ""
        if not character.isspace():
            self._between(character)
        return ""

    def _between(self, character: str) -> None:
        """Process punctuation of the object."""
        following = {"{": "key", ":": "value", ",": "key"}
        if character == "}" and self._expected == ",":
            self.done = self.name is not None
            self.failed = not self.done
        elif character == self._expected:
            self._expected = following[character]
        else:
            self.failed = True

    def _take_value(self, character: str) -> str:
        """Process a character of a key or a value; return the text it adds to the arguments."""
        if self._expected == "key" and not self._text and character != '"':
            self.failed = True
            return ""
        arguments = ""
        if belongs := self._value.take(character):
            self._text += character
            arguments = self._streamed(character)
        if self._value.ended:
            arguments += self._ended()
            if not belongs:
                self._between(character)
        return arguments

    def _streamed(self, character: str) -> str:
        """The character if it belongs to the arguments, is not in a string form of them, and the name is known."""
        if self._expected != "value" or self._key not in _ARGUMENTS or self._text.startswith('"'):
            return ""
        if self.name is None:
            self._early += character
            return ""
        return character

    def _ended(self) -> str:
        """Process a complete key or value; return the text it adds to the arguments."""
        text, self._text, self._value = self._text, "", Value()
        if self._expected == "key":
            self._key, self._expected = str(_parse(text)), ":"
            self.failed = not self._marked and self.name is None and self._key not in _BEFORE_NAME
            return ""
        self._expected = ","
        if self._key == "name":
            name = _parse(text)
            self.failed = not isinstance(name, str) or not name
            self.name = None if self.failed else str(name)
            early, self._early = self._early, ""
            return early
        if self._key in _ARGUMENTS and text.startswith('"'):
            inner = str(_parse(text))  # some models write the arguments as a JSON string
            if self.name is not None:
                return inner
            self._early = inner
        return ""


def _parse(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


Reading: TypeAlias = "Generator[None, None, None]"
"""A reader as a generator, suspended while it needs more text of the answer."""
BLANKS = " \n\r\t"


class AnswerEndedError(Exception):
    """The answer ended while a reader needed more text. Raised inside the reader, which may complete a call."""

    def __init__(self, *, cut: bool) -> None:
        super().__init__("the answer ended")
        self.cut = cut
        """True if the answer was cut off."""


class Feed:
    """Unread text of one answer, and the deltas that its reader has produced.

    A reader is in text, in the head of a call (mark read, name not yet read), in a call, or between two calls. The head
    becomes text again if no call follows.
    """

    def __init__(self) -> None:
        self._text = ""
        self._deltas: list[Delta] = []
        self._place: Literal["text", "head", "call", "between"] = "text"
        self._head: list[str] = []
        self._blanks = ""
        """White space at the end of the text so far; dropped before a call."""
        self._count = 0

    def push(self, text: str) -> None:
        """Add text of the answer."""
        self._text += text

    def drain(self) -> list[Delta]:
        """Deltas since the last call of this method."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def end(self, *, cut: bool) -> None:
        """Release the text held back. cut: whether to drop the start of a call, or of a mark before one."""
        if self._place == "head" and not cut:
            self._place = "text"
            self.say("".join([*self._head, self._text]).rstrip())
            self._text = ""
        if self._place == "text":
            held = self._blanks + ("" if cut else self._text)
            if held.strip() or not self._count:
                self._add(Delta(held))

    # Output of a reader.

    def say(self, text: str) -> None:
        """Add text to the answer; white space at its end is held back."""
        text = self._blanks + text
        said = text.rstrip()
        self._blanks = text[len(said) :]
        self._add(Delta(said))

    def begin_head(self, read: str = "") -> None:
        """Start the head of a call, if not in one already. read: mark of the call, already read."""
        if self._place != "head":
            self._place, self._head = "head", [read]

    def give_back(self) -> None:
        """End the head without a call: everything read since `begin_head` is text."""
        self._place, head = "text", "".join(self._head)
        self.say(head)

    def leave_out(self) -> None:
        """Discard everything read since `begin_head` and from now on: neither text nor a call."""
        self._place = "between"

    def begin_call(self, name: str, call_id: str | None = None) -> None:
        """Begin a call of the tool with this name."""
        self._place, self._blanks = "call", ""
        self._add(Delta(call=self._count, name=name, id=call_id))

    def arguments(self, text: str) -> None:
        """Add to the arguments of the call."""
        self._add(Delta(call=self._count, arguments=text))

    def end_call(self) -> None:
        """End the call."""
        self._place = "between"
        self._count += 1

    def _add(self, delta: Delta) -> None:
        if delta.name is None and not delta.text and not delta.arguments:
            return
        last = self._deltas[-1] if self._deltas else None
        if last is not None and last.call == delta.call and delta.name is None:
            together = replace(last, text=last.text + delta.text, arguments=last.arguments + delta.arguments)
            self._deltas[-1] = together
            return
        self._deltas.append(delta)

    # Input of a reader.

    def text_before(self, *marks: str) -> Generator[None, None, str]:
        """Emit text up to the first of these marks, which is returned and starts the head of a call."""
        self._place = "text"
        mark = yield from self.until(*marks, emit=self.say)
        self._blanks = ""
        self.begin_head(mark)
        return mark

    def rest(self) -> Reading:
        """Emit everything that follows as text."""
        self._place = "text"
        while True:
            self._read(len(self._text), self.say)
            yield

    def until(self, *marks: str, emit: Callable[[str], None], keep: bool = False) -> Generator[None, None, str]:
        """Read up to the first of these marks and return it. keep: whether to leave the mark unread.

        emit: called with the text before the mark, as soon as it is certain.
        """
        while True:
            places = ((self._text.find(mark), -len(mark), mark) for mark in marks)
            if first := min((place for place in places if place[0] >= 0), default=None):
                at, _, mark = first
                self._read(at, emit)
                self._read(0 if keep else len(mark))
                return mark
            held = max(overlap(self._text, mark) for mark in marks)
            self._read(len(self._text) - held, emit)
            yield

    def word(self, *marks: str, keep: bool = False) -> Generator[None, None, tuple[str, str]]:
        """Read and return the stripped text before the first of these marks, and the mark."""
        pieces: list[str] = []
        mark = yield from self.until(*marks, emit=pieces.append, keep=keep)
        return "".join(pieces).strip(), mark

    def ahead(self, *options: str, skip: str = BLANKS) -> Generator[None, None, str]:
        """The option that comes next, after white space; "" for none of them. Reads nothing."""
        while True:
            text = self._text.lstrip(skip)
            if not any(len(text) < len(option) and option.startswith(text) for option in options):
                return max((option for option in options if text.startswith(option)), key=len, default="")
            yield

    def option(self, *options: str, skip: str = BLANKS) -> Generator[None, None, str]:
        """Like `ahead`, but also reads the option and the white space before it."""
        option = yield from self.ahead(*options, skip=skip)
        if option:
            self._read(len(self._text) - len(self._text.lstrip(skip)) + len(option))
        return option

    def skip(self, characters: str = BLANKS) -> Reading:
        """Read up to the first character that is not one of these."""
        yield from self.run(characters)

    def run(self, characters: str) -> Generator[None, None, str]:
        """Read and return a run of these characters."""
        pieces: list[str] = []
        while not (rest := self._text.lstrip(characters)):
            self._read(len(self._text), pieces.append)
            yield
        self._read(len(self._text) - len(rest), pieces.append)
        return "".join(pieces)

    def json_arguments(self) -> Reading:
        """Read a JSON object as the call's arguments; anything else counts as no arguments."""
        if (yield from self.ahead("{")):
            yield from self.skip()
            yield from self.value(Value(), self.arguments)
        else:
            self.arguments("{}")

    def value(self, value: ValueEnd, emit: Callable[[str], None]) -> Reading:
        """Read one value. emit: called with its text as it arrives."""
        while not value.ended:
            taken = next((at for at, one in enumerate(self._text) if not value.take(one)), len(self._text))
            self._read(taken, emit)
            if not value.ended:
                yield

    def json_call(self, *, marked: bool = True) -> Generator[None, None, bool]:
        """Read `{"name": ..., "arguments": {...}}`; return whether it was a call. If not, it becomes text.

        marked: see `CallReader`.
        """
        reader = CallReader(marked=marked)
        while True:
            arguments, rest = reader.push(self._text)
            self._read(len(self._text) - len(rest))
            if reader.name is not None and self._place != "call":
                self.begin_call(reader.name)
            if self._place == "call":
                self.arguments(arguments)
            if reader.done or reader.failed:
                break
            yield
        if self._place == "call":
            self.end_call()
            return True
        self.give_back()
        return False

    def _read(self, count: int, emit: Callable[[str], None] | None = None) -> None:
        """Remove characters from the unread text and pass them to `emit`."""
        read, self._text = self._text[:count], self._text[count:]
        if self._place == "head" and read:
            self._head.append(read)
        if emit is not None and read:
            emit(read)


class ScriptedReader:
    """A `Reader` implemented by one generator over a feed."""

    def __init__(self, script: Callable[[Feed], Reading]) -> None:
        self._feed = Feed()
        self._script = script(self._feed)
        next(self._script)

    def push(self, text: str) -> Sequence[Delta]:
        """Add text; return the deltas that are certain."""
        self._feed.push(text)
        next(self._script)
        return self._feed.drain()

    def finish(self, *, cut: bool = False) -> Sequence[Delta]:
        """Return the deltas held back."""
        try:
            self._script.throw(AnswerEndedError(cut=cut))
        except AnswerEndedError:
            self._feed.end(cut=cut)
        return self._feed.drain()
