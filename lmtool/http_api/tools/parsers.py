"""How models write calls of tools, one reader for each form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.http_api.tools.call_reader import CallReader, Value
from lmtool.http_api.tools.deltas import Delta, Plain, Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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

    def finish(self) -> Sequence[Delta]:
        """Nothing is held back."""
        return []


class Calls:
    """Reads calls one after the other, counts them, and gives back as text what is none."""

    def __init__(self) -> None:
        self._count = 0
        self._reader: CallReader | None = None
        self._seen = ""
        self._named = False
        self.rest = ""
        """What came behind the last call."""

    def reading(self) -> bool:
        """Whether a call has begun that has not ended."""
        return self._reader is not None

    @property
    def any(self) -> bool:
        """Whether there was a call so far."""
        return self._count > 0

    def begin(self, mark: str = "") -> None:
        """Read a call from now on. mark: what told that one begins; text again if none does."""
        self._reader, self._seen, self._named, self.rest = CallReader(), mark, False, ""

    def push(self, text: str) -> list[Delta]:
        """Take more of the call; once `reading` is over, `rest` is what was not taken."""
        assert self._reader is not None
        arguments, self.rest = self._reader.push(text)
        self._seen += text[: len(text) - len(self.rest)]
        deltas = []
        if self._reader.name is not None and (arguments or not self._named):
            name = None if self._named else self._reader.name
            self._named = True
            deltas.append(Delta(call=self._count, name=name, arguments=arguments))
        if self._reader.done or self._reader.failed:
            deltas += self._end()
        return deltas

    def finish(self) -> list[Delta]:
        """The answer ends here; what had no name yet was no call."""
        return self._end() if self.reading() else []

    def _end(self) -> list[Delta]:
        self._reader = None
        self._count += self._named
        return [] if self._named else [Delta(self._seen)]


class CallListReader:
    """`[{"name": ..., "parameters": {...}}, ...]` and nothing else: what a constraint makes where a call must be."""

    def __init__(self) -> None:
        self._calls = Calls()

    def push(self, text: str) -> Sequence[Delta]:
        """More calls; brackets and commas between them say nothing."""
        deltas: list[Delta] = []
        while text:
            if not self._calls.reading():
                text = text.lstrip("[], \n\r\t")
                if not text:
                    break
                self._calls.begin()
            deltas += self._calls.push(text)
            text = self._calls.rest
        return deltas

    def finish(self) -> Sequence[Delta]:
        """What was cut off."""
        return self._calls.finish()


class TextBefore:
    """Reads text up to a mark; what may be the beginning of the mark is held back, and blanks before it."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self.held = ""

    def push(self, text: str) -> tuple[list[Delta], str | None]:
        """Text that is certain, and what is behind the mark, None before it has come."""
        before, mark, behind = (self.held + text).partition(self._mark)
        said = before[: len(before) - _overlap(before, self._mark)].rstrip()
        self.held = "" if mark else before[len(said) :]
        said = before.rstrip() if mark else said  # blanks before a call say nothing
        return [Delta(said)] if said else [], behind if mark else None


class HermesReader:
    """Text with calls between two marks (Hermes, Qwen): `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

    opening, closing = "<tool_call>", "</tool_call>"

    def __init__(self) -> None:
        self._text = TextBefore(self.opening)
        self._calls = Calls()
        self._behind: str | None = None
        """Behind a call, until something else than blanks and the closing mark has come."""

    def push(self, text: str) -> Sequence[Delta]:
        """What is certain: text that cannot be the beginning of a mark, and calls."""
        deltas: list[Delta] = []
        while text:
            if self._calls.reading():
                added = self._calls.push(text)
                deltas += added
                text = self._calls.rest
                if not self._calls.reading() and not any(delta.text for delta in added):
                    self._behind = ""
            elif self._behind is not None:
                text = self._close((self._behind + text).lstrip())
            else:
                said, behind = self._text.push(text)
                deltas += said
                text = behind or ""
                if behind is not None:
                    self._calls.begin(self.opening)
        return deltas

    def _close(self, text: str) -> str:
        """Behind a call: blanks and the closing mark say nothing. Returns what is behind them."""
        certain = not self.closing.startswith(text)
        self._behind = None if certain or text == self.closing else text
        return text.removeprefix(self.closing) if certain else ""

    def finish(self) -> Sequence[Delta]:
        """A call cut off, or text held back; blanks at the end of an answer with calls say nothing."""
        deltas, held = self._calls.finish(), self._text.held
        return [*deltas, Delta(held)] if held and (held.strip() or not self._calls.any) else deltas


class Llama3Reader:
    """The answer is a call, or several with `;` between, or it is text (Llama 3): `{"name": ..., "parameters": {}}`."""

    tag = "<|python_tag|>"

    def __init__(self) -> None:
        self._calls = Calls()
        self._start: str | None = ""
        self._text = False

    def push(self, text: str) -> Sequence[Delta]:
        """Calls, or text once that is certain."""
        if self._text:
            return [Delta(text)] if text else []
        if self._start is not None:
            self._start += text
            seen = self._start.lstrip().removeprefix(self.tag).lstrip()
            if not seen or self.tag.startswith(seen):
                return []
            if not seen.startswith("{"):
                said, self._text, self._start = self._start, True, None
                return [Delta(said)]
            text, self._start = seen, None
        return self._read(text)

    def _read(self, text: str) -> list[Delta]:
        deltas: list[Delta] = []
        while text and not self._text:
            if not self._calls.reading():
                text = text.lstrip("; \n\r\t")
                if not text:
                    break
                self._calls.begin()
            deltas += self._calls.push(text)
            text = self._calls.rest
            self._text = any(delta.text for delta in deltas)
        return [*deltas, Delta(text)] if text else deltas

    def finish(self) -> Sequence[Delta]:
        """What was cut off, or so short that it could have become anything."""
        return self._calls.finish() or ([Delta(self._start)] if self._start else [])


class MistralReader:
    """Text, and behind a mark only calls (Mistral): `[TOOL_CALLS][{...}, ...]` or `[TOOL_CALLS]name[ARGS]{...}`."""

    mark = "[TOOL_CALLS]"

    def __init__(self) -> None:
        self._before: TextBefore | None = TextBefore(self.mark)
        self._behind: Reader | None = None

    def push(self, text: str) -> Sequence[Delta]:
        """Text up to the mark; calls behind it."""
        deltas: list[Delta] = []
        if self._before is not None:
            deltas, behind = self._before.push(text)
            if behind is None:
                return deltas
            self._before, text = None, behind
        if self._behind is None and (text := text.lstrip()):
            self._behind = CallListReader() if text[0] in "[{" else _NameFirst(self.mark)
        return [*deltas, *self._behind.push(text)] if self._behind is not None else deltas

    def finish(self) -> Sequence[Delta]:
        """What was held back."""
        if self._before is not None:
            return [Delta(self._before.held)] if self._before.held else []
        return [Delta(self.mark)] if self._behind is None else self._behind.finish()


class _NameFirst:
    """`name[ARGS]{...}`, again behind each further mark."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._count = 0
        self._name = ""
        self._value: Value | None = None

    def push(self, text: str) -> Sequence[Delta]:
        deltas: list[Delta] = []
        while text:
            if self._value is None:
                head, brace, text = text.partition("{")
                self._name += head
                if not brace:
                    break
                name = self._name.strip().removeprefix(self._mark).partition("[")[0].strip()
                self._value, self._name, text = Value(), "", brace + text
                deltas.append(Delta(call=self._count, name=name))
            taken = next((at for at, character in enumerate(text) if not self._value.take(character)), len(text))
            deltas += [Delta(call=self._count, arguments=text[:taken])] if taken else []
            text = text[taken:]
            if self._value.ended:
                self._value = None
                self._count += 1
        return deltas

    def finish(self) -> Sequence[Delta]:
        return [Delta(self._name)] if self._name.strip() else []


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of a text are the beginning of a mark."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-size:])), 0)


@dataclass(frozen=True, slots=True)
class ToolCallParser:
    """One way in which models write calls."""

    name: str
    reader: Callable[[], Reader]
    marks: tuple[str, ...] = ()
    """What may be special tokens, which do not show as text otherwise."""
    id_length: int | None = None
    """How long the ids of calls must be for its templates; None: any length."""


TOOL_CALL_PARSERS = {
    form.name: form
    for form in (
        ToolCallParser("none", Plain),
        ToolCallParser("hermes", HermesReader, (HermesReader.opening, HermesReader.closing)),
        ToolCallParser("llama3_json", Llama3Reader, (Llama3Reader.tag,)),
        ToolCallParser("mistral", MistralReader, (MistralReader.mark, "[ARGS]", "[CALL_ID]"), id_length=9),
    )
}
"""By the names that vLLM gives them."""
