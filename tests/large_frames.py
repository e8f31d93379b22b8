"""Requests at the byte limit that are refused or cost no step of the model, for each wire; made when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LIMIT = 4 << 20
"""Bytes of a frame, and of a body."""
LMTP = "lmtp"
WORDS = "the sun is a star "
BYTES = "prompt is too long: at least "
"""Of a text, by its bytes."""
TOKENS = " maximum; this model's maximum context length is "
ENDED = '"finish_reason":"length"'


@dataclass(frozen=True)
class Large:
    """One request."""

    wire: str
    """`lmtp`, or the path that the body is posted to."""
    told: str
    """What the answer says, on a server of the embedded model."""
    make: Callable[[], str]
    """The frame, or the body."""


def filled(front: str, unit: str, back: str) -> str:
    """As many units as fit between front and back below the limit."""
    room = LIMIT - len(front.encode()) - len(back.encode())
    return front + unit * (room // len(unit.encode())) + back


def listed(front: str, unit: str, back: str) -> str:
    """The same with commas between the units."""
    return filled(front + unit, "," + unit, back)


def _numbered(unit: str, count: int) -> str:
    return ",".join(unit.format(number) for number in range(count))


_GENERATE = 'GENERATE {"stream_id": 1, "max_tokens": 0, '
_FROM_ONE = _GENERATE + '"prompt": [1], '
_MASK = _FROM_ONE + '"logit_bias": {'
_FORM = _FROM_ONE + '"constraint": '
_SAYS = '{"role": "user", "content": "'
_TEXT = "/v1/completions"
_CHAT = "/v1/chat/completions"
_ASK = '{"max_tokens": 1, '
_ASK_CHAT = _ASK + '"messages": [{"role": "user", "content": "x"}], '
_SCHEMA = '"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"const": "'

_LMTP: dict[str, tuple[str, Callable[[], str]]] = {
    "text": (BYTES, lambda: filled(f'{_GENERATE}"prompt": "', WORDS, '"}')),
    "text of blanks": (BYTES, lambda: filled(f'{_GENERATE}"prompt": "', " ", '"}')),
    "text without blanks": (BYTES, lambda: filled(f'{_GENERATE}"prompt": "', "a", '"}')),
    "text of emoji": (BYTES, lambda: filled(f'{_GENERATE}"prompt": "', "\U0001f469\u200d\U0001f680", '"}')),
    "text of escapes": (BYTES, lambda: filled(f'{_GENERATE}"prompt": "', "\\u00e9", '"}')),
    "messages": (BYTES, lambda: filled(f'{_GENERATE}"messages": [{_SAYS}', WORDS, '"}]}')),
    "messages, many": ("an array of 1 to 10000", lambda: listed(f'{_GENERATE}"messages": [', _SAYS + '"}', "]}")),
    "messages, fewer": (
        "leave out the oldest of 9999 messages",
        lambda: f'{_GENERATE}"messages": [{",".join([_SAYS + "x" * 380 + chr(34) + "}"] * 9999)}]}}',
    ),
    "ids": (TOKENS, lambda: listed(f'{_GENERATE}"prompt": [', "1", "]}")),
    "ids that are none": ("has true at index 0", lambda: listed(f'{_GENERATE}"prompt": [', "true", "]}")),
    "texts in a row": (BYTES, lambda: listed(f'{_GENERATE}"prompt": [', '"a"', "]}")),
    "scored": (
        TOKENS,
        lambda: listed('SCORE {"stream_id": 1, "prompt": [1], "scored": [', "1", "]}"),
    ),
    "scored text": (
        BYTES,
        lambda: filled('SCORE {"stream_id": 1, "prompt": "Once", "scored": "', WORDS, '"}'),
    ),
    "mask of unknown ids": ("token id 1536 in logit_bias is not", lambda: _MASK + _numbered('"{}":1', 390_000) + "}}"),
    "mask of one id": (ENDED, lambda: listed(_MASK, '"7":-100.5', "}}")),
    "schema": ("expected at most 524288", lambda: filled(f'{_FORM}{{"json": {{"const": "', "x", '"}}}')),
    "schema as text": ("expected at most 524288", lambda: filled(f'{_FORM}{{"json": "', "x", '"}}')),
    "schema, nested": ("nested too deeply", lambda: f'{_FORM}{{"json": {"[" * 2_000_000}{"]" * 2_000_000}}}}}'),
    "schema, wide": ("expected at most 524288", lambda: listed(f'{_FORM}{{"json": {{"enum": [', "[]", "]}}}")),
    "regex": ("expected at most 20000", lambda: filled(f'{_FORM}{{"regex": "', "a?", '"}}')),
    "choice": ("expected at most 50000", lambda: listed(f'{_FORM}{{"choice": [', '"a"', "]}}")),
    "grammar": ("expected at most 131072", lambda: filled(f'{_FORM}{{"grammar": "', "a ", '"}}')),
    "stops": ("an array of at most 64", lambda: listed(f'{_FROM_ONE}"stop": [', '"a"', "]}")),
    "stop": ("a string of 1 to 1024 characters", lambda: filled(f'{_FROM_ONE}"stop": "', "a", '"}')),
    "processors": (
        "expected at most 65536",
        lambda: listed(f'{_FROM_ONE}"logits_processors": [{{"name": "x", "args": {{"a": [', "1", "]}}]}"),
    ),
    "unknown field": (ENDED, lambda: listed(f'{_FROM_ONE}"x": [', "[]", "]}")),
    "unknown fields": (ENDED, lambda: _FROM_ONE + _numbered('"f{}":1', 350_000) + "}"),
    "nesting": ("nested too deeply", lambda: f'{_FROM_ONE}"x": {"[" * 2_000_000}{"]" * 2_000_000}}}'),
    "broken": ("is not a JSON object", lambda: listed(f'{_GENERATE}"prompt": [', "1", "")),
    "infinity": ("temperature is NaN", lambda: listed(f'{_GENERATE}"temperature": NaN, "prompt": [', "1", "]}")),
    "stream_id": (
        "expected at most 1024",
        lambda: filled('GENERATE {"prompt": [1], "stream_id": "', "a", '"}'),
    ),
    "command": ("has no space", lambda: "A" * LIMIT),
    "model info": ('"model_info":', lambda: listed('MODEL_INFO {"stream_id": 1, "data": [', "[]", "]}")),
}
_HTTP: dict[str, tuple[str, str, Callable[[], str]]] = {
    "text": (_TEXT, BYTES, lambda: filled(f'{_ASK}"prompt": "', WORDS, '"}')),
    "texts": (_TEXT, "expected at most 128", lambda: listed(f'{_ASK}"prompt": [', '"a"', "]}")),
    "ids": (_TEXT, TOKENS, lambda: listed(f'{_ASK}"prompt": [', "1", "]}")),
    "lists of ids": (_TEXT, "expected at most 128", lambda: listed(f'{_ASK}"prompt": [', "[1]", "]}")),
    "echo": (_TEXT, BYTES, lambda: filled(f'{_ASK}"echo": true, "logprobs": 1, "prompt": "', WORDS, '"}')),
    "mask": (_TEXT, "token id 1536", lambda: f'{_ASK}"prompt": "x", "logit_bias": {{{_numbered(_BAR, 300_000)}}}}}'),
    "messages": (_CHAT, BYTES, lambda: filled(f'{_ASK}"messages": [{_SAYS}', WORDS, '"}]}')),
    "messages, many": (_CHAT, "a list of at most 10000", lambda: listed(f'{_ASK}"messages": [', f'{_SAYS}x"}}', "]}")),
    "tools": (
        _CHAT,
        "bytes; expected at most 524288",
        lambda: filled(
            f'{_ASK_CHAT}"tools": [{{"type": "function", "function": {{"name": "f", "description": "', WORDS, '"}}]}'
        ),
    ),
    "tools, wide": (
        _CHAT,
        "expected at most 524288",
        lambda: listed(
            f'{_ASK_CHAT}"tools": [{{"type": "function", "function": {{"name": "f", "parameters": {{"x": [',
            "[]",
            "]}}}]}",
        ),
    ),
    "schema": (_CHAT, "expected at most 524288", lambda: filled(_ASK_CHAT + _SCHEMA, "x", '"}}}}')),
    "unknown": (_CHAT, "x is not known here", lambda: listed(f'{_ASK_CHAT}"x": [', "[]", "]}")),
    "template options": (
        _CHAT,
        "expected at most 524288",
        lambda: filled(f'{_ASK_CHAT}"chat_template_kwargs": {{"x": "', WORDS, '"}}'),
    ),
    "stops": (_CHAT, "up to 16 of them", lambda: listed(f'{_ASK_CHAT}"stop": [', '"a"', "]}")),
    "broken": (_CHAT, "the request is not JSON", lambda: listed(f'{_ASK_CHAT}"x": [', "1", "")),
    "nesting": (_CHAT, "the request is not JSON", lambda: f'{_ASK_CHAT}"x": {"[" * 2_000_000}{"]" * 2_000_000}}}'),
    "responses": ("/v1/responses", BYTES, lambda: filled('{"input": "', WORDS, '"}')),
    "responses, instructed": (
        "/v1/responses",
        BYTES,
        lambda: filled('{"input": "x", "instructions": "', WORDS, '"}'),
    ),
    "responses, wide": (
        "/v1/responses",
        "expected at most 524288",
        lambda: listed('{"input": "x", "max_output_tokens": 1, "metadata": {"x": [', "[]", "]}}"),
    ),
    "anthropic": ("/v1/messages", BYTES, lambda: filled(f'{_ASK}"messages": [{_SAYS}', WORDS, '"}]}')),
    "anthropic, prefilled": (
        "/v1/messages",
        BYTES,
        lambda: filled(f'{_ASK}"messages": [{_SAYS}x"}}, {{"role": "assistant", "content": "', WORDS, '"}]}'),
    ),
    "count": ("/v1/messages/count_tokens", BYTES, lambda: filled(f'{{"messages": [{_SAYS}', WORDS, '"}]}')),
    "tokenize": ("/v1/tokenize", BYTES, lambda: filled('{"prompt": "', WORDS, '"}')),
    "tokenize messages": ("/tokenize", BYTES, lambda: filled(f'{{"messages": [{_SAYS}', WORDS, '"}]}')),
    "detokenize": (
        "/v1/detokenize",
        BYTES,
        lambda: listed('{"tokens": [', "7", "]}"),
    ),
    "embeddings": ("/v1/embeddings", "no embedding", lambda: filled('{"input": "', WORDS, '"}')),
}
_BAR = '"{}":-100'

CASES: dict[str, Large] = {
    **{f"lmtp {name}": Large(LMTP, told, make) for name, (told, make) in _LMTP.items()},
    **{f"http {name}": Large(path, told, make) for name, (path, told, make) in _HTTP.items()},
}
