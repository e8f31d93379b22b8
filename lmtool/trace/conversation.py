"""What the events of a trace mean: requests that begin streams, outputs that belong to them; whatever the protocol."""

from __future__ import annotations

import codecs
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from lmtool.lmtp import json_text
from lmtool.lmtp.json_text import JsonTextError
from lmtool.trace.blobs import reference
from lmtool.trace.events import Done, Drop, Frame, Parsed, Piece, Request, Vocab, token_entries
from lmtool.types import TokenOutput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lmtool.trace.events import Event
    from lmtool.types import FinishReason

_COMMANDS = ("GENERATE", "SCORE", "MODEL_INFO")


@dataclass(frozen=True, slots=True)
class Began:
    """A request."""

    time: float
    stream: str
    """Connection and stream id, such as `1/3`; for HTTP the number of the request on its connection."""
    kind: str
    """`GENERATE`, `SCORE`, `MODEL_INFO`, or an HTTP method and path."""
    payload: Mapping[str, object]
    """Fields of the request; empty where they cannot be read."""

    @property
    def model(self) -> str | None:
        """The model asked for."""
        model = self.payload.get("model")
        return model if isinstance(model, str) else None

    @property
    def prompt_length(self) -> int | None:
        """Ids or messages of the prompt; None for a text, and where it is not in the trace."""
        prompt = self.payload.get("prompt", self.payload.get("messages"))
        if isinstance(prompt, dict):
            n = prompt.get("n")
            return n if isinstance(n, int) else None
        return len(prompt) if isinstance(prompt, list) else None


@dataclass(frozen=True, slots=True)
class Produced:
    """One output of a stream: a token, a piece of text, an ending or a failure."""

    time: float
    stream: str
    output: TokenOutput


Step: TypeAlias = Began | Produced


class Conversation:
    """Follows the events of one trace; call `follow` with each in order. Knows the vocabulary seen so far."""

    def __init__(self) -> None:
        self.vocab: dict[int, str | bytes] = {}
        self._requests: dict[int, int] = {}
        self._answered: dict[int, int] = {}

    def follow(self, event: Event) -> list[Step]:
        """What the event means."""
        if isinstance(event, Vocab):
            self.vocab.update(event.tokens)
        elif isinstance(event, Frame):
            return _asked(event) if event.direction == ">" else _answered(event)
        elif isinstance(event, Request):
            number = self._requests[event.connection] = self._requests.get(event.connection, 0) + 1
            payload = event.body.value if isinstance(event.body, Parsed) else {}
            began = Began(event.time, f"{event.connection}/{number}", f"{event.method} {event.path}", _object(payload))
            return [began]
        elif isinstance(event, Piece):
            number = self._answered.get(event.connection, 0) + 1
            return _chunk(event, f"{event.connection}/{number}")
        elif isinstance(event, Done):
            self._answered[event.connection] = self._answered.get(event.connection, 0) + 1
        elif isinstance(event, Drop):
            self._requests.pop(event.connection, None)
        return []

    def text_of(self, token: int) -> str | None:
        """What an id means, for people: bytes inside a character as `⟨f0 9f⟩`; None where the trace does not tell."""
        text = self.vocab.get(token)
        return f"⟨{text.hex(' ')}⟩" if isinstance(text, bytes) else text


class StreamText:
    """The text of one stream, from tokens and vocabulary; a character is shown once it is whole."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, output: TokenOutput) -> str:
        """The text that an output completes; `⟨#7⟩` for an id whose text the trace does not tell."""
        if output.text is not None:
            return output.text
        if output.token is None:
            return self._decoder.decode(b"", final=True) if output.last else ""
        piece = self._conversation.vocab.get(output.token, f"⟨#{output.token}⟩")
        data = piece if isinstance(piece, bytes) else piece.encode()
        return self._decoder.decode(data, final=output.last)


def _asked(frame: Frame) -> list[Step]:
    if frame.command not in _COMMANDS:
        return []
    assert isinstance(frame.content, Parsed)
    payload = _object(frame.content.value)
    label = f"{frame.connection}/{_id(payload.get('stream_id'))}"
    return [Began(frame.time, label, frame.command, payload)]


def _answered(frame: Frame) -> list[Step]:
    if isinstance(frame.content, Parsed):
        entries: Sequence[Mapping[str, object]] = token_entries(frame)
    elif isinstance(frame.content, str) and frame.content.startswith("TOKEN "):
        entries = _loaded(frame.content[6:])
    else:
        return []
    return [
        Produced(frame.time, f"{frame.connection}/{_id(entry.get('stream_id'))}", _output(entry)) for entry in entries
    ]


def _loaded(payload: str) -> Sequence[Mapping[str, object]]:
    """The entries of a payload that is not JSON as it should be, such as one with `-Infinity`."""
    try:
        value = json_text.load(payload)
    except JsonTextError:
        return []
    return [one for one in (value if isinstance(value, list) else [value]) if json_text.is_object(one)]


def _output(entry: Mapping[str, object]) -> TokenOutput:
    """The output of an entry of a TOKEN; what makes no sense in it is passed over."""
    token, text, reason, error = (entry.get(name) for name in ("token", "text", "finish_reason", "error"))
    alternatives = entry.get("top_logprobs")
    return TokenOutput(
        "",
        token if type(token) is int else None,
        _number(entry.get("logprob")),
        tuple(_alternatives(alternatives)) if isinstance(alternatives, dict) else None,
        text if isinstance(text, str) else None,
        None
        if reason is None
        else "length"
        if reason == "length"
        else "cancelled"
        if reason == "cancelled"
        else "stop",
        None,
        None if error is None else str(error),
    )


def _reason(value: object) -> FinishReason | None:
    """Whatever else a server calls it, the stream is over."""
    if value is None:
        return None
    return "length" if value == "length" else "cancelled" if value == "cancelled" else "stop"


def _alternatives(alternatives: Mapping[str, object]) -> Iterator[tuple[int, float]]:
    for name, logprob in alternatives.items():
        number = _number(logprob)
        if number is not None and name.isascii() and name.isdigit() and len(name) < 20:
            yield int(name), number


def _number(value: object) -> float | None:
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None  # type: ignore[arg-type]


def _id(stream_id: object) -> str:
    if type(stream_id) is int:
        return str(stream_id)
    return json.dumps(stream_id, separators=(",", ":"), ensure_ascii=False)


def _chunk(piece: Piece, stream: str) -> list[Step]:
    """The outputs of an OpenAI-compatible chunk, or of a whole response."""
    value = _object(piece.content.value if isinstance(piece.content, Parsed) else None)
    choices = value.get("choices")
    outputs = [_choice(one) for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    error = value.get("error")
    if error is not None:
        outputs.append(TokenOutput(stream, error=str(_object(error).get("message", error)), error_code="server"))
    return [Produced(piece.time, stream, output) for output in outputs]


def _choice(choice: Mapping[str, object]) -> TokenOutput:
    message = _object(choice.get("delta", choice.get("message")))
    text = choice.get("text", message.get("content"))
    content = _object(choice.get("logprobs")).get("content")
    first = _object(content[0]) if isinstance(content, list) and content else {}
    return TokenOutput(
        "",
        logprob=_number(first.get("logprob")),
        text=text if isinstance(text, str) else "",
        finish_reason=_reason(choice.get("finish_reason")),
    )


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) and reference(value) is None else {}
