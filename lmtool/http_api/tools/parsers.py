"""How models write calls of tools, one reader for each form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.http_api.tools.call_reader import CallReader, Value
from lmtool.http_api.tools.deltas import Delta, Plain, Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Named:
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


class Listed:
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


class Marked:
    """Text with calls between two marks (Hermes, Qwen): `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

    opening, closing = "<tool_call>", "</tool_call>"

    def __init__(self) -> None:
        self._calls = Calls()
        self._held = ""
        self._closes = False

    def push(self, text: str) -> Sequence[Delta]:
        """What is certain: text that cannot be the beginning of a mark, and calls."""
        deltas: list[Delta] = []
        self._held += text
        while self._held:
            before = self._held
            deltas += self._step()
            if self._held == before:
                break
        return deltas

    def _step(self) -> list[Delta]:
        if self._calls.reading():
            text, self._held = self._held, ""
            deltas = self._calls.push(text)
            if not self._calls.reading():
                self._held, self._closes = self._calls.rest, not any(delta.text for delta in deltas)
            return deltas
        if self._closes:
            return self._close()
        return self._outside()

    def _close(self) -> list[Delta]:
        """Behind a call: blanks and the closing mark say nothing."""
        self._held = self._held.lstrip()
        if self._held.startswith(self.closing):
            self._held, self._closes = self._held[len(self.closing) :], False
        elif self._held and not self.closing.startswith(self._held):
            self._closes = False
        return []

    def _outside(self) -> list[Delta]:
        before, mark, behind = self._held.partition(self.opening)
        if mark:
            self._calls.begin(mark)
            self._held = behind
            said = before.rstrip()  # blanks before a call say nothing
        else:
            said = before[: len(before) - _overlap(before, self.opening)].rstrip()
            self._held = before[len(said) :]
        return [Delta(said)] if said else []

    def finish(self) -> Sequence[Delta]:
        """A call cut off, or text held back; blanks at the end of an answer with calls say nothing."""
        deltas = self._calls.finish()
        held, self._held = self._held, ""
        silent = self._closes or (self._calls.any and not held.strip())
        return [*deltas, Delta(held)] if held and not silent else deltas


class Bare:
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


class Announced:
    """Text, and behind a mark only calls (Mistral): `[TOOL_CALLS][{...}, ...]` or `[TOOL_CALLS]name[ARGS]{...}`."""

    mark = "[TOOL_CALLS]"

    def __init__(self) -> None:
        self._before: Marked | None = _UpTo(self.mark)
        self._behind: Reader | None = None

    def push(self, text: str) -> Sequence[Delta]:
        """Text up to the mark; calls behind it."""
        if self._behind is not None:
            return self._behind.push(text)
        assert isinstance(self._before, _UpTo)
        deltas, rest = self._before.until(text)
        if rest is None:
            return deltas
        rest = rest.lstrip()
        if not rest:
            return deltas
        self._behind = Listed() if rest[0] in "[{" else _NameFirst(self.mark)
        return [*deltas, *self._behind.push(rest)]

    def finish(self) -> Sequence[Delta]:
        """What was held back."""
        if self._behind is not None:
            return self._behind.finish()
        assert self._before is not None
        return self._before.finish()


class _UpTo(Marked):
    """The text before a mark."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.opening = mark
        self._found = False

    def until(self, text: str) -> tuple[list[Delta], str | None]:
        """Text that is certain, and what is behind the mark, once it was seen."""
        if self._found:
            return [], text
        self._held += text
        deltas = self._outside()
        self._found = self._calls.reading()
        behind, self._held = (self._held, "") if self._found else (None, self._held)
        return deltas, behind


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
class Form:
    """One way in which models write calls."""

    name: str
    reader: Callable[[], Reader]
    marks: tuple[str, ...] = ()
    """What may be special tokens, which do not show as text otherwise."""
    id_length: int | None = None
    """How long the ids of calls must be for its templates; None: any length."""


FORMS = {
    form.name: form
    for form in (
        Form("none", Plain),
        Form("hermes", Marked, (Marked.opening, Marked.closing)),
        Form("llama3_json", Bare, (Bare.tag,)),
        Form("mistral", Announced, (Announced.mark, "[ARGS]", "[CALL_ID]"), id_length=9),
    )
}
"""By the names that vLLM gives them."""


def form_of(template: str | None) -> Form:
    """The form that a chat template teaches; `none` where it knows no tools, or writes them in a way unknown here."""
    source = template or ""
    if "tools" not in source:
        return FORMS["none"]
    if Marked.opening in source:
        return FORMS["none" if "<function=" in source else "hermes"]
    if "[TOOL_CALLS]" in source:
        return FORMS["mistral"]
    if Bare.tag in source or ('"parameters"' in source and "ipython" in source):
        return FORMS["llama3_json"]
    return FORMS["none"]
