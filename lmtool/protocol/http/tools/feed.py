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
    """One addition."""

    text: str = ""
    """To the answer's text."""
    call: int | None = None
    """Number of the call that the rest is about."""
    name: str | None = None
    """Of the tool: on the first delta of a call only."""
    arguments: str = ""
    """To the arguments of the call."""
    id: str | None = None
    """Of the call, where the model has one for it; on its first delta."""
    reasoning: str = ""
    """To the thought before the answer; then there is nothing else."""


class Reader(Protocol):
    """Tells text and calls apart in one answer, as it comes."""

    def push(self, text: str) -> Sequence[Delta]:
        """Take more of the answer; return what is certain by now."""

    def finish(self, *, cut: bool = False) -> Sequence[Delta]:
        """Return what was held back. Nothing may be pushed afterwards.

        cut: whether the answer was cut off in the middle, such as at its token limit: the beginning of a call is then
        no text.
        """


class Plain:
    """Reads every answer as text."""

    def push(self, text: str) -> Sequence[Delta]:
        """The text as it is."""
        return [Delta(text)] if text else []

    def finish(self, *, cut: bool = False) -> Sequence[Delta]:  # noqa: ARG002  # of `Reader`
        """Nothing is held back."""
        return []


class NamedToolReader:
    """The whole answer is the arguments of one tool: what a constraint to its schema makes."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def push(self, text: str) -> Sequence[Delta]:
        """More arguments; the first ones come with the name."""
        if not text:
            return []
        name, self._name = self._name, None
        return [Delta(call=0, name=name, arguments=text)]

    def finish(self, *, cut: bool = False) -> Sequence[Delta]:  # noqa: ARG002  # of `Reader`
        """Nothing is held back."""
        return []


_ARGUMENTS = frozenset({"arguments", "parameters", "args", "input"})
"""What models call them."""
_BEFORE_NAME = _ARGUMENTS | {"name", "type", "id"}


class Value:
    """Where a JSON value ends. Its first character is the first one taken."""

    __slots__ = ("_depth", "_escaped", "_string", "ended")

    def __init__(self) -> None:
        self._depth = 0
        self._string = False
        self._escaped = False
        self.ended = False

    def take(self, character: str) -> bool:
        """Whether the next character belongs to the value."""
        if self.ended:
            return False
        if self._string:
            self._in_string(character)
        elif character == '"':
            self._string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}],:" or character.isspace():
            return self._between(character)
        return True

    def _in_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._string = False
            self.ended = self._depth == 0

    def _between(self, character: str) -> bool:
        if self._depth == 0:  # a number or a word, ended by what follows it
            self.ended = True
            return False
        if character in "}]":
            self._depth -= 1
            self.ended = self._depth == 0
        return True


class CallReader:
    """One call. `push` its text; look at `name`, `done` and `failed` afterwards."""

    def __init__(self, *, marked: bool = True) -> None:
        """marked: whether a mark before it told that it is a call; otherwise its first names must be those of one."""
        self._marked = marked
        self.name: str | None = None
        """Known once its string was read."""
        self.done = False
        """Whether the object's last brace was read."""
        self.failed = False
        """Whether what was read is no such object."""
        self._expected = "{"
        self._key = ""
        self._text = ""
        self._value = Value()
        self._early = ""

    def push(self, text: str) -> tuple[str, str]:
        """Take more text; return what it adds to the arguments, once the name is known, and what is behind the call."""
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
        """Punctuation of the object itself."""
        following = {"{": "key", ":": "value", ",": "key"}
        if character == "}" and self._expected == ",":
            self.done = self.name is not None
            self.failed = not self.done
        elif character == self._expected:
            self._expected = following[character]
        else:
            self.failed = True

    def _take_value(self, character: str) -> str:
        """A character of a key or of a value."""
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
        """A character of the arguments, as soon as it may be shown: behind the name, and not the text of a text."""
        if self._expected != "value" or self._key not in _ARGUMENTS or self._text.startswith('"'):
            return ""
        if self.name is None:
            self._early += character
            return ""
        return character

    def _ended(self) -> str:
        """A key or a value is complete."""
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
            inner = str(_parse(text))  # some models write the text of an object in place of the object
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
"""Suspended while it needs more of the answer."""
BLANKS = " \n\r\t"


class AnswerEndedError(Exception):
    """The answer ended where a reader needs more of it. Raised inside the reader, which may complete a call."""

    def __init__(self, *, cut: bool) -> None:
        super().__init__("the answer ended")
        self.cut = cut
        """Whether it was cut off in the middle."""


class Ending(Protocol):
    """Tells where a value ends."""

    ended: bool

    def take(self, character: str) -> bool:
        """Whether the next character belongs to the value."""


class Feed:
    """The text of one answer that was not read yet, and the deltas that were told.

    A reader is in its text, in the head of a call (whose mark was read and whose name was not), in a call, or between
    two calls. What was read of a head is text again where no call comes of it.
    """

    def __init__(self) -> None:
        self._text = ""
        self._deltas: list[Delta] = []
        self._place: Literal["text", "head", "call", "between"] = "text"
        self._head: list[str] = []
        self._blanks = ""
        """Read at the end of the text so far: before a call they say nothing."""
        self._count = 0

    def push(self, text: str) -> None:
        """More of the answer has come."""
        self._text += text

    def drain(self) -> list[Delta]:
        """What was told since the last time."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def end(self, *, cut: bool) -> None:
        """Tell as text what was held back. cut: the beginning of a call, or of a mark before one, is no text then."""
        if self._place == "head" and not cut:
            self._place = "text"
            self.say("".join([*self._head, self._text]).rstrip())
            self._text = ""
        if self._place == "text":
            held = self._blanks + ("" if cut else self._text)
            if held.strip() or not self._count:
                self._add(Delta(held))

    # What a reader tells.

    def say(self, text: str) -> None:
        """Text of the answer; blanks at its end are held back."""
        text = self._blanks + text
        said = text.rstrip()
        self._blanks = text[len(said) :]
        self._add(Delta(said))

    def begin_head(self, read: str = "") -> None:
        """A call may begin here, unless one may already. read: its mark."""
        if self._place != "head":
            self._place, self._head = "head", [read]

    def give_back(self) -> None:
        """No call has begun: what was read since `begin_head` is text."""
        self._place, head = "text", "".join(self._head)
        self.say(head)

    def leave_out(self) -> None:
        """What was read since `begin_head`, and what is read from now on, is neither text nor a call."""
        self._place = "between"

    def begin_call(self, name: str, call_id: str | None = None) -> None:
        """A call begins here, of the tool of this name."""
        self._place, self._blanks = "call", ""
        self._add(Delta(call=self._count, name=name, id=call_id))

    def arguments(self, text: str) -> None:
        """More of the call's arguments."""
        self._add(Delta(call=self._count, arguments=text))

    def end_call(self) -> None:
        """The call is whole."""
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

    # What a reader reads.

    def text_before(self, mark: str) -> Reading:
        """Tell text up to a mark, behind which the head of a call begins."""
        yield from self.text_before_any(mark)

    def text_before_any(self, *marks: str) -> Generator[None, None, str]:
        """As `text_before`, for the first of some marks, which is returned."""
        self._place = "text"
        mark = yield from self.until(*marks, emit=self.say)
        self._blanks = ""
        self.begin_head(mark)
        return mark

    def rest(self) -> Reading:
        """Tell all that comes as text."""
        self._place = "text"
        while True:
            self._read(len(self._text), self.say)
            yield

    def until(self, *marks: str, emit: Callable[[str], None], keep: bool = False) -> Generator[None, None, str]:
        """Read up to the first of some marks, which is read, too, unless `keep`; return it.

        emit: called with what stands before it, as soon as that is certain.
        """
        while True:
            places = ((self._text.find(mark), -len(mark), mark) for mark in marks)
            if found := min((place for place in places if place[0] >= 0), default=None):
                at, _, mark = found
                self._read(at, emit)
                self._read(0 if keep else len(mark))
                return mark
            held = max(overlap(self._text, mark) for mark in marks)
            self._read(len(self._text) - held, emit)
            yield

    def word(self, *marks: str, keep: bool = False) -> Generator[None, None, tuple[str, str]]:
        """What stands before the first of some marks, without blanks around it, and the mark; both are read."""
        pieces: list[str] = []
        mark = yield from self.until(*marks, emit=pieces.append, keep=keep)
        return "".join(pieces).strip(), mark

    def ahead(self, *options: str, skip: str = BLANKS) -> Generator[None, None, str]:
        """Which of some texts comes next, behind blanks; "" for none of them. Reads nothing."""
        while True:
            text = self._text.lstrip(skip)
            if not any(len(text) < len(option) and option.startswith(text) for option in options):
                return max((option for option in options if text.startswith(option)), key=len, default="")
            yield

    def option(self, *options: str, skip: str = BLANKS) -> Generator[None, None, str]:
        """As `ahead`, and reads the text and the blanks before it."""
        found = yield from self.ahead(*options, skip=skip)
        if found:
            self._read(len(self._text) - len(self._text.lstrip(skip)) + len(found))
        return found

    def skip(self, characters: str = BLANKS) -> Reading:
        """Read these characters, up to another one."""
        while not (rest := self._text.lstrip(characters)):
            self._read(len(self._text))
            yield
        self._read(len(self._text) - len(rest))

    def run(self, characters: str) -> Generator[None, None, str]:
        """Read a run of these characters, up to another one."""
        pieces: list[str] = []
        while not (rest := self._text.lstrip(characters)):
            self._read(len(self._text), pieces.append)
            yield
        self._read(len(self._text) - len(rest), pieces.append)
        return "".join(pieces)

    def json_arguments(self) -> Reading:
        """Read a JSON object as the call's arguments; what is none is no argument."""
        if (yield from self.ahead("{")):
            yield from self.skip()
            yield from self.value(Value(), self.arguments)
        else:
            self.arguments("{}")

    def value(self, value: Ending, emit: Callable[[str], None]) -> Reading:
        """Read one value. emit: called with its text, as it comes."""
        while not value.ended:
            taken = next((at for at, one in enumerate(self._text) if not value.take(one)), len(self._text))
            self._read(taken, emit)
            if not value.ended:
                yield

    def json_call(self, *, marked: bool = True) -> Generator[None, None, bool]:
        """Read `{"name": ..., "arguments": {...}}`; whether it was one. What is none is text again.

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
        """Take the next characters off the text."""
        read, self._text = self._text[:count], self._text[count:]
        if self._place == "head" and read:
            self._head.append(read)
        if emit is not None and read:
            emit(read)


class ScriptedReader:
    """A `Reader` whose way through an answer is one generator."""

    def __init__(self, script: Callable[[Feed], Reading]) -> None:
        self._feed = Feed()
        self._script = script(self._feed)
        next(self._script)

    def push(self, text: str) -> Sequence[Delta]:
        """What is certain by now."""
        self._feed.push(text)
        next(self._script)
        return self._feed.drain()

    def finish(self, *, cut: bool = False) -> Sequence[Delta]:
        """What was held back."""
        try:
            self._script.throw(AnswerEndedError(cut=cut))
        except AnswerEndedError:
            self._feed.end(cut=cut)
        return self._feed.drain()
