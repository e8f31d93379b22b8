"""What each field of a request may hold, and the sentence for one that does not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec

from lmtool.errors import RequestError
from lmtool.types import ChatMessage, LogprobsMode, Prompt

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TOKEN_ID = 2**31 - 1
"""Larger ids exist in no vocabulary, and would not fit the engine's integers."""
MAX_STREAM_ID_BYTES = 1024
"""A stream_id is echoed with every token, so a long one would multiply."""
MAX_STOP_ENTRIES = 64
MAX_NAME_CHARACTERS = 4096
MAX_MESSAGES = 10_000
"""As many as the HTTP APIs take."""
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

    def _at_fault(self, text: bytes, error: Exception) -> str:
        """`is -1`, or of an array `has -1 at index 5`, or of an object `has {"-1":3}`."""
        index = re.match(r".* - at `\$\[(\d+)\]", str(error))
        if index is not None:
            element = msgspec.json.decode(text, type=list[msgspec.Raw])[int(index[1])]
            return f"has {shown(bytes(element))} at index {index[1]}"
        member = self._member_at_fault(text) if text.startswith(b"{") else None
        return f"has {shown(member)}" if member else f"is {shown(text)}"

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


_TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
_StopText = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
_FewTokenIds = Annotated[tuple[_TokenId, ...], msgspec.Meta(max_length=MAX_STOP_ENTRIES)]
_FewStops = Annotated[tuple[_StopText | _TokenId, ...], msgspec.Meta(max_length=MAX_STOP_ENTRIES)]

_COUNT: Field[int] = Field(Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)], "an integer, 0 or more")
_NUMBER: Field[float] = Field(float, "a finite number")
TOP_LOGPROBS: Field[int] = Field(Annotated[int, msgspec.Meta(ge=0, le=256)], "an integer from 0 to 256")
SWITCH: Field[bool] = Field(bool, "true or false")
PROMPT: Field[tuple[int, ...] | str] = Field(
    str | tuple[_TokenId, ...], "an array of token ids (integers, 0 or more) or a string"
)
SCORED = PROMPT
MESSAGES: Field[Prompt] = Field(
    Annotated[tuple[ChatMessage, ...], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)],
    f'an array of 1 to {MAX_MESSAGES} {{"role": string, "content": string}}',
)
STOP: Field[str | int | tuple[str | int, ...]] = Field(
    _StopText | _TokenId | _FewStops,
    f"a string of 1 to 1024 characters, a token id, or an array of at most {MAX_STOP_ENTRIES} of them",
)
MODEL: Field[str] = Field(
    Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARACTERS)],
    f"a string of at most {MAX_NAME_CHARACTERS} characters",
)
PROCESSORS: Field[list[Any]] = Field(list[Any], 'a list of {"name": ..., "args": {...}}')
CONSTRAINT: Field[dict[str, object]] = Field(dict[str, object], "an object with one constraint")
PRIORITY: Field[int] = Field(Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)], "an integer of at most 32 bits")
LMTP: Field[int] = Field(Annotated[int, msgspec.Meta(ge=1)], "an integer, 1 or more")

SAMPLING: Mapping[str, Field[Any]] = {
    "max_tokens": _COUNT,
    "temperature": _NUMBER,
    "top_k": _COUNT,
    "top_p": Field(Annotated[float, msgspec.Meta(gt=0, le=1)], "a number above 0, at most 1"),
    "min_p": Field(Annotated[float, msgspec.Meta(ge=0, le=1)], "a number from 0 to 1"),
    "repetition_penalty": Field(Annotated[float, msgspec.Meta(gt=0)], "a number above 0"),
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "seed": Field(Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)], "an integer of at most 64 bits"),
    "logit_bias": Field(dict[_TokenId, float], 'an object of token ids and finite numbers, such as {"50256": -100}'),
    "stop_token_ids": Field(_FewTokenIds, f"an array of at most {MAX_STOP_ENTRIES} token ids"),
    "min_tokens": _COUNT,
    "ignore_eos": SWITCH,
    "top_logprobs": TOP_LOGPROBS,
    "logprobs_mode": Field(LogprobsMode, '"raw", "biased" or "processed"'),
}
"""Fields of GENERATE that bear the names of `SamplingParams`, but for `stop`."""

_REQUEST = frozenset({"stream_id", "model", "lmtp"})
KNOWN: Mapping[str, frozenset[str]] = {
    "GENERATE": _REQUEST
    | {"prompt", "messages", "text", "progress", "stop", "constraint", "priority", "logits_processors"}
    | SAMPLING.keys(),
    "SCORE": _REQUEST | {"prompt", "messages", "scored", "text", "progress", "top_logprobs"},
    "MODEL_INFO": _REQUEST | {"data", "progress"},
    "CANCEL": _REQUEST,
}
"""Every field that has a meaning, per command; the others are ignored and told to a client that asks."""


def shown(text: bytes) -> str:
    """A JSON text short enough for a sentence."""
    whole = text.decode("utf-8", "replace")
    return whole if len(whole) <= _SHOWN_CHARACTERS else whole[:_SHOWN_CHARACTERS] + "…"
