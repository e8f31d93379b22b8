"""What each field of a request may hold, and the sentence for one that does not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec

from lmtool.core.errors import RequestError
from lmtool.core.logits_processors import MOST as MAX_PROCESSORS
from lmtool.core.sampling_parameters import DEADLINE, NUMERIC_PARAMETERS, Range
from lmtool.core.types import ChatMessage, LogprobsMode

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TOKEN_ID = 2**31 - 1
"""Larger ids exist in no vocabulary, and would not fit the engine's integers."""
MAX_STREAM_ID_BYTES = 1024
"""A stream_id is echoed with every token, so a long one would multiply."""
MAX_STOP_ENTRIES = 64
MAX_NAME_CHARACTERS = 4096
MAX_SALT_CHARACTERS = 256
MAX_LOGPROB_IDS = 128
MAX_BUFFER_NAME = 256
"""Characters of a buffer's name."""
MAX_TTL = 7 * 24 * 3600.0
"""Seconds."""
MAX_MESSAGES = 10_000
MAX_TOOLS = 128
"""Messages and tools: as many as the HTTP APIs take."""
LIMITS = {
    "stream_id_bytes": MAX_STREAM_ID_BYTES,
    "stop": MAX_STOP_ENTRIES,
    "messages": MAX_MESSAGES,
    "tools": MAX_TOOLS,
    "logits_processors": MAX_PROCESSORS,
}
"""Of a request's fields, by their names in MODEL_INFO (INF-7)."""
_SHOWN_CHARACTERS = 60

T = TypeVar("T")


class Field(Generic[T]):
    """One field's type and range. `expected` is what a sentence says was expected."""

    __slots__ = ("_decoder", "expected")

    def __init__(self, kind: Any, expected: str) -> None:  # noqa: ANN401  # msgspec takes any type form, typing has no name for it
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        self.expected = expected

    def read(self, name: str, text: bytes) -> T:
        """The field's value from its JSON text. Raises `RequestError` that names field, value and expectation."""
        try:
            return self._decoder.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"{name} {self._at_fault(text, error)}; expected {self.expected}") from None

    def read_optional(self, name: str, members: Mapping[str, bytes]) -> T | None:
        """The field's value where the request has it. Raises as `read`."""
        return self.read(name, members[name]) if name in members else None

    def _at_fault(self, text: bytes, error: Exception) -> str:
        """`is -1`, or of an array `has -1 at index 5`, or of an object `has {"-1":3}`."""
        index = re.match(r".* - at `\$\[(\d+)\]", str(error))
        if index is not None:
            element = msgspec.json.decode(text, type=list[msgspec.Raw])[int(index[1])]
            return f"has {excerpt(bytes(element))} at index {index[1]}"
        member = self._member_at_fault(text) if text.startswith(b"{") else None
        return f"has {excerpt(member)}" if member else f"is {excerpt(text)}"

    def _member_at_fault(self, text: bytes) -> bytes | None:
        """The first member of an object that this field cannot read, as an object of its own."""
        try:
            members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            return None
        for name, value in members.items():
            member = msgspec.json.encode({name: value})
            try:
                self._decoder.decode(member)
            except (msgspec.DecodeError, RecursionError):
                return member
        return None


_BufferName = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_BUFFER_NAME)]


class BufferEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A buffer in a prompt."""

    buffer: _BufferName
    length: Annotated[int, msgspec.Meta(ge=0)] | None = None


class ReasoningFields(msgspec.Struct, forbid_unknown_fields=True):
    """What `reasoning` says of a thought (TXT-7)."""

    budget: Annotated[int, msgspec.Meta(ge=0)] | None = None
    prefill: str = ""


_TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
_StopText = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
_FewTokenIds = Annotated[tuple[_TokenId, ...], msgspec.Meta(max_length=MAX_STOP_ENTRIES)]
_LogprobIds = Annotated[tuple[_TokenId, ...], msgspec.Meta(max_length=MAX_LOGPROB_IDS)]
_FewStops = Annotated[tuple[_StopText | _TokenId, ...], msgspec.Meta(max_length=MAX_STOP_ENTRIES)]


def _number(allowed: Range) -> Field[Any]:
    return Field(Annotated[int if allowed.integer else float, allowed.meta], str(allowed))


TOP_LOGPROBS: Field[int] = _number(NUMERIC_PARAMETERS["top_logprobs"].lmtp)
SWITCH: Field[bool] = Field(bool, "true or false")
PROMPT: Field[tuple[int, ...] | str] = Field(
    str | tuple[_TokenId, ...], "an array of token ids (integers, 0 or more) or a string"
)
SCORED = PROMPT
MIXED: Field[tuple[str | int | BufferEntry, ...]] = Field(
    tuple[str | _TokenId | BufferEntry, ...],
    'an array of token ids (integers, 0 or more), strings and {"buffer": name, "length": integer, 0 or more}',
)
BUFFER_NAME: Field[str] = Field(_BufferName, f"a string of 1 to {MAX_BUFFER_NAME} characters")
APPEND: Field[str | tuple[str | int, ...]] = Field(
    str | tuple[str | _TokenId, ...], "a string, or an array of token ids (integers, 0 or more) and strings"
)
TTL: Field[float] = Field(
    Annotated[float, msgspec.Meta(gt=0, le=MAX_TTL)], f"a number of seconds above 0, at most {MAX_TTL:g}"
)
MESSAGES: Field[tuple[ChatMessage, ...]] = Field(
    Annotated[tuple[ChatMessage, ...], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)],
    f'an array of 1 to {MAX_MESSAGES} {{"role": string, "content": string}}',
)
TOOLS: Field[tuple[Mapping[str, object], ...]] = Field(
    Annotated[tuple[dict[str, object], ...], msgspec.Meta(max_length=MAX_TOOLS)],
    f"an array of at most {MAX_TOOLS} objects",
)
TEMPLATE_KWARGS: Field[Mapping[str, object]] = Field(dict[str, object], "an object")
PREFILL: Field[str] = Field(str, "a string")
STOP: Field[str | int | tuple[str | int, ...]] = Field(
    _StopText | _TokenId | _FewStops,
    f"a string of 1 to 1024 characters, a token id, or an array of at most {MAX_STOP_ENTRIES} of them",
)
MODEL: Field[str] = Field(
    Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARACTERS)],
    f"a string of at most {MAX_NAME_CHARACTERS} characters",
)
PROCESSORS: Field[list[Any]] = Field(list[Any], 'a list of {"name": ..., "args": {...}}')
GENERATED: Field[tuple[int, ...]] = Field(tuple[_TokenId, ...], "an array of token ids (integers, 0 or more)")
CONSTRAINT: Field[dict[str, object]] = Field(dict[str, object], "an object with one constraint")
REASONING: Field[bool | ReasoningFields] = Field(
    bool | ReasoningFields, 'true or false, or {"budget": integer, 0 or more, "prefill": string}'
)
PRIORITY: Field[int] = Field(Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)], "an integer of at most 32 bits")
DEADLINE_SECONDS: Field[float] = _number(DEADLINE)
CACHE_SALT: Field[str] = Field(
    Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SALT_CHARACTERS)],
    f"a text of 1 to {MAX_SALT_CHARACTERS} characters",
)
CLIENT: Field[str] = Field(
    Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SALT_CHARACTERS)],
    f"a text of 1 to {MAX_SALT_CHARACTERS} characters",
)
LOGPROB_TOKEN_IDS: Field[tuple[int, ...]] = Field(_LogprobIds, f"an array of at most {MAX_LOGPROB_IDS} token ids")
LMTP: Field[int] = Field(Annotated[int, msgspec.Meta(ge=1)], "an integer, 1 or more")

SAMPLING: Mapping[str, Field[Any]] = {
    **{name: _number(parameter.lmtp) for name, parameter in NUMERIC_PARAMETERS.items()},
    "logit_bias": Field(dict[_TokenId, float], 'an object of token ids and finite numbers, such as {"50256": -100}'),
    "stop_token_ids": Field(_FewTokenIds, f"an array of at most {MAX_STOP_ENTRIES} token ids"),
    "ignore_eos": SWITCH,
    "logprobs_mode": Field(LogprobsMode, '"raw", "biased" or "processed"'),
}
"""Fields of GENERATE that bear the names of `SamplingParams`, but for `stop`."""

_REQUEST = frozenset({"stream_id", "model", "lmtp"})
_PROMPT = frozenset({"prompt", "messages", "tools", "chat_template_kwargs", "prefill", "text", "progress"}) | {
    "deadline",
    "cache_salt",
    "client",
}
_GENERATE = frozenset(
    {
        "stop",
        "constraint",
        "priority",
        "logits_processors",
        "prefill_only",
        "generated",
        "resumable",
        "into",
        "logprob_token_ids",
        "reasoning",
    }
)
KNOWN: Mapping[str, frozenset[str]] = {
    "GENERATE": _REQUEST | _PROMPT | _GENERATE | SAMPLING.keys(),
    "SCORE": _REQUEST | _PROMPT | {"scored", "top_logprobs"},
    "MODEL_INFO": _REQUEST | {"data", "progress", "list"},
    "CANCEL": _REQUEST,
    "MODELS": _REQUEST | {"load", "unload", "progress"},
    "BUFFER": _REQUEST | {"name", "append", "drop", "ttl"},
    "WATCH": _REQUEST,
}
"""Every field that has a meaning, per command; the others are ignored and told to a client that asks."""


def excerpt(text: bytes) -> str:
    """A JSON text short enough for a sentence."""
    whole = text.decode("utf-8", "replace")
    return whole if len(whole) <= _SHOWN_CHARACTERS else whole[:_SHOWN_CHARACTERS] + "…"
