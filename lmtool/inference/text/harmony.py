"""Harmony, the format of GPT-OSS: an answer is a sequence of messages, each on a channel, some to a tool.

    <|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|return|>

Source: OpenAI, "OpenAI Harmony response format" (its cookbook). What is on `analysis` is the thought; `final` is for
the user, and so is `commentary` without a recipient; a message with a recipient (`to=functions.NAME`) is a call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lmtool.core.reasoning import ThoughtMarks
from lmtool.inference.text.reasoning_parser import Piece
from lmtool.inference.text.thought_reader import overlap

if TYPE_CHECKING:
    from lmtool.inference.text.reasoning_parser import Beginning, Encode

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
_CLOSINGS = (END, CALL, RETURN)
_FINAL = f"{CHANNEL}final{MESSAGE}"
_ANSWERS = (_FINAL, f"{CHANNEL}final {CONSTRAIN}json{MESSAGE}", f"{CHANNEL}final{CONSTRAIN}json{MESSAGE}")
"""Header endings after which a constrained answer begins."""
_HEADS = (*MARKS, "to=")
"""Possible starts of a header after `<|start|>assistant`, which the prompt contains."""
_CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_ENDS = (*_CLOSINGS, START, CHANNEL)
"""Ends of a message's text: its closing mark, or the next header if the model omits the mark."""
_END = re.compile("|".join(map(re.escape, _ENDS)))
_HEADER_CHARACTERS = 512
"""Longest header; longer text is not a header."""


class ChannelText(NamedTuple):
    """A piece of one message."""

    channel: str | None
    """`analysis`, `commentary` or `final`; None: the message has no header that names one."""
    recipient: str | None
    """Recipient of a tool call, such as `functions.NAME`."""
    header: str
    """Header before `<|message|>`, with its marks."""
    text: str
    begins: bool = False
    """First piece of the message."""
    closing: str = ""
    """Closing mark; empty if the message continues or was cut."""


class ChannelReader:
    """Incremental parser of the messages of one answer, with special tokens by name. Pure."""

    __slots__ = ("_begins", "_channel", "_header", "_in_body", "_pending", "_recipient")

    def __init__(self) -> None:
        self._pending = ""
        self._header = ""
        self._channel: str | None = None
        self._recipient: str | None = None
        self._in_body = False
        self._begins = False

    @property
    def channel(self) -> str | None:
        """Channel of the current message; None between messages."""
        return self._channel if self._in_body else None

    @property
    def header(self) -> str:
        """Header of the current or last message."""
        return self._header

    @property
    def in_body(self) -> bool:
        """True inside a message's text."""
        return self._in_body

    @property
    def recipient(self) -> str | None:
        """Recipient of the current message; None between messages."""
        return self._recipient if self._in_body else None

    def push(self, text: str) -> list[ChannelText]:
        """Take more of the answer; return the pieces that are certain."""
        self._pending += text
        found: list[ChannelText] = []
        while self._read_body(found) if self._in_body else self._read_header():
            pass
        return found

    def finish(self) -> list[ChannelText]:
        """Return the rest of a message's text; an incomplete header is dropped."""
        rest, self._pending = self._pending, ""
        return [self._piece(rest)] if self._in_body and (rest or self._begins) else []

    def _read_header(self) -> bool:
        header, mark, behind = self._pending.partition(MESSAGE)
        if _is_plain(header):
            self._open("", self._pending)
        elif mark:
            self._open(header, behind)
        return self._in_body

    def _open(self, header: str, behind: str) -> None:
        channel, recipient = _CHANNEL_NAME.search(header), _RECIPIENT.search(header)
        self._header = header
        self._channel = None if channel is None else channel[1]
        self._recipient = None if recipient is None else recipient[1]
        self._pending, self._in_body, self._begins = behind, True, True

    def _read_body(self, found: list[ChannelText]) -> bool:
        """Read text of a message; return True if the message ends."""
        plain = self._begins and not self._header  # what opens it, such as a header that is too long, does not end it
        ending = _END.search(self._pending, 1 if plain else 0)
        if ending is not None:
            closing = ending[0] if ending[0] in _CLOSINGS else ""
            before = self._pending[: ending.start()]
            self._pending = self._pending[ending.start() + len(closing) :]
            if before or closing or self._begins:
                found.append(self._piece(before, closing))
            self._in_body = False
            return True
        held = max(overlap(self._pending, mark) for mark in _ENDS)
        shown = self._pending[: len(self._pending) - held]
        self._pending = self._pending[len(shown) :]
        if shown:
            found.append(self._piece(shown))
        return False

    def _piece(self, text: str, closing: str = "") -> ChannelText:
        begins, self._begins = self._begins, False
        return ChannelText(self._channel, self._recipient, self._header, text, begins, closing)


def _is_plain(text: str) -> bool:
    """True if the text in the place of a header is not a header."""
    text = text.lstrip()
    begun = text.startswith(_HEADS) or any(mark.startswith(text) for mark in _HEADS)
    return not begun or len(text) > _HEADER_CHARACTERS


@dataclass(frozen=True, slots=True)
class HarmonyChannels:
    """A `reasoning_parser.ReasoningParser` of GPT-OSS."""

    name: str = "openai_gptoss"

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks of the format."""
        return MARKS

    def beginning(self, tail: str, prefill: str = "") -> Beginning:  # noqa: ARG002  # the last header tells
        """See `ReasoningParser`: after `<|start|>assistant` the model chooses the channel."""
        return "closed" if tail.rstrip().endswith(f"{CHANNEL}final{MESSAGE}") else "undecided"

    def reader(self, beginning: Beginning, *, constrained: bool) -> HarmonyReader:
        """See `reasoning_parser.ReasoningParser`."""
        return HarmonyReader(in_final=beginning == "closed", constrained=constrained)

    def thought_marks(
        self, beginning: Beginning, encode: Encode, budget: int | None, *, constrained: bool
    ) -> ThoughtMarks | None:
        """Everything before the message on `final` is thought; without a constraint, only up to one on `commentary`.

        That channel has tool calls, which a budget must not cut.
        """
        if beginning == "closed":
            return None
        return ThoughtMarks(
            opening="",
            closings=_ANSWERS if constrained else (*_ANSWERS, f"{CHANNEL}commentary"),
            ending=tuple(encode(f"{END}{START}assistant{_FINAL}")),
            budget=budget,
            empty=tuple(encode(_FINAL)),
        )


class HarmonyReader:
    """A `reasoning_parser.ThoughtReader` of GPT-OSS. Calls stay part of the answer, with header and marks.

    A constrained answer is the text on `final`; everything before it is thought.
    """

    __slots__ = ("_answered", "_behind_thought", "_channels", "_constrained", "_thought")

    def __init__(self, *, in_final: bool = False, constrained: bool = False) -> None:
        """in_final: the stream begins after the header of its answer."""
        self._channels = ChannelReader()
        self._constrained = constrained
        self._thought = False
        """A thought was read."""
        self._behind_thought = False
        """The last message was a thought."""
        self._answered = False
        """A constrained answer has begun."""
        if in_final:
            self._channels.push(_FINAL)

    @property
    def thinking(self) -> bool:
        """See `reasoning_parser.ThoughtReader`."""
        channels = self._channels
        if channels.in_body:
            return self._is_thought(channels.header, channels.channel, channels.recipient)
        return self._behind_thought

    def push(self, text: str) -> Piece:
        """See `reasoning_parser.ThoughtReader`."""
        return self._sorted(self._channels.push(text))

    def push_special(self) -> None:
        """See `reasoning_parser.ThoughtReader`: it says nothing here."""

    def finish(self) -> Piece:
        """See `reasoning_parser.ThoughtReader`."""
        return self._sorted(self._channels.finish())

    def _is_thought(self, header: str, channel: str | None, recipient: str | None) -> bool:
        if self._constrained:
            return not (self._answered or f"{header}{MESSAGE}".endswith(_ANSWERS))
        return channel == "analysis" and recipient is None

    def _sorted(self, texts: list[ChannelText]) -> Piece:
        thought, answer = [], []
        for one in texts:
            self._behind_thought = self._is_thought(one.header, one.channel, one.recipient)
            if self._behind_thought:
                thought.append("\n" if one.begins and self._thought else "")
                thought.append(one.text)
                self._thought = True
            elif self._constrained:
                self._answered = True
                answer.append(one.text)
            else:
                answer.append(_as_written(one) if one.recipient is not None else one.text)
        return Piece("".join(thought), "".join(answer))


def _as_written(one: ChannelText) -> str:
    """Piece of a message with its marks, for the parser of tool calls."""
    return (f"{one.header}{MESSAGE}" if one.begins else "") + one.text + one.closing
