"""Recordings that are written by hand: what the LMTP document shows, and what a later server may say."""

from __future__ import annotations

from lmtool.trace.events import Close, Event, Frame, Open, Vocab
from lmtool.trace.header import Header
from lmtool.trace.observing import content_of


def _conversation(*frames: str, vocab: dict[int, str] | None = None) -> list[Event]:
    """One connection of these frames, marked `> ` and `< `."""
    events: list[Event] = [Open(0.0, 1, {"peer": "client"})]
    if vocab:
        events.append(Vocab(0.0, 0, dict(vocab)))
    said = [Frame(0.0, ">" if frame[0] == ">" else "<", 1, content_of(frame[2:], "py")) for frame in frames]
    return [*events, *said, Close(0.0, 1, "client", 1000)]


def _header(title: str, covers: str, why: str) -> Header:
    return Header(
        by="hand",
        title=title,
        transport={"kind": "websocket", "path": "/"},
        times="numbered",
        verify={"directions": ["mock"], "why": why},
        covers=tuple(covers.split()),
    )


_EXAMPLE = (
    (10185, -42.2973747253418, "null"),
    (198, -49.23591613769531, "null"),
    (198, 21.557533264160156, "null"),
    (40, -91.37769317626953, "null"),
    (1101, -131.75880432128906, '"length"'),
)

WRITTEN: dict[str, tuple[Header, list[Event]]] = {
    "lmtp_document_example": (
        _header(
            "the example conversation of the LMTP document: Hello there max_tokens=5",
            "FRM-1 FRM-3 GEN-1 STR-1 STR-7 TOK-1",
            "it is of gpt2-medium, and its logprobs are raw logits",
        ),
        _conversation(
            '> GENERATE {"model": "gpt2-medium", "prompt": [15496, 612, 220], "max_tokens": 5, "stream_id": 2}',
            *(
                f'< TOKEN [{{"token": {token}, "stream_id": 2, "logprob": {logprob}, "finish_reason": {reason}, '
                f'"top_logprobs": {{"{token}": {logprob}}}}}]'
                for token, logprob, reason in _EXAMPLE
            ),
            vocab={15496: "Hello", 612: " there", 220: " ", 10185: "!!!", 198: "\n", 40: "I", 1101: "'m"},
        ),
    ),
    "lmtp_document_messages": (
        _header(
            "the messages of the LMTP document: MSG is a bare object there",
            "FRM-4 INF-1 INF-2",
            "servers of today send a list",
        ),
        _conversation(
            '> MODEL_INFO {"stream_id": 1, "model": "gpt2-medium", "data": {}}',
            '< MSG {"stream_id": 1, "model_info": {"model": "gpt2-medium", '
            '"constructor": "AutoModelForCausalLM.from_pretrained(\'gpt2-medium\')"}}',
        ),
    ),
    "from_a_later_server": (
        _header(
            "a server that says what this client does not know yet",
            "FRM-4 FRM-8 FRM-7 LOG-5 ERR-6",
            "no server here says such things",
        ),
        _conversation(
            '> GENERATE {"model": "m", "prompt": [1, 2], "stream_id": 1, "max_tokens": 3, "top_logprobs": 2}',
            '< WEATHER {"sun": true}',
            '< MSG [{"stream_id": 1, "weather": "rain"}]',
            '< TOKEN [{"token": 7, "stream_id": 1, "logprob": -0.5, "finish_reason": null, "mood": "good", '
            '"top_logprobs": {"7": -0.5, "8": -Infinity}}]',
            '< TOKEN {"token": 8, "stream_id": 1, "logprob": -0.25, "finish_reason": null, '
            '"top_logprobs": {"8": -0.25}}',
            '< TOKEN [{"token": 9, "stream_id": 1, "logprob": -0.125, "finish_reason": "stop", '
            '"top_logprobs": {"9": -0.125}}]',
            '> GENERATE {"model": "m", "prompt": [3], "stream_id": 2}',
            '< MSG [{"stream_id": 2, "error": "not today"}]',
        ),
    ),
}
"""Name, header and events."""
