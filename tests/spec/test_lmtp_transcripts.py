"""The transcripts of the specification, each sent to a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.spec.document import SPEC
from tests.spec.rewrite import renewed, written
from tests.spec.transcripts import ANY_TOKENS, TRANSCRIPT, Answers, expected, matches

TRANSCRIPTS = TRANSCRIPT.findall(SPEC)
COMMANDS = ("GENERATE", "SCORE", "MODEL_INFO", "MODELS", "BUFFER", "CANCEL", "WATCH")


async def test_transcripts(start_server: Any) -> None:
    """GEN-1, SCO-1, INF-1, INF-6, MOD-2, MOD-3, CAN-1, TXT-2, ERR-1, ERR-2, ERR-3, EXT-5: as the document shows."""
    with start_server("lmtool-tiny") as server:
        server.expect("ready")
        for transcript in TRANSCRIPTS:
            async with asyncio.timeout(60), connect(server.url, compression=None) as connection:
                answers, skipping = Answers(connection), False
                for line in transcript.splitlines():
                    if line.startswith("> "):
                        await connection.send(line[2:])
                    elif line == ANY_TOKENS:
                        skipping = True
                    else:
                        await answers.expect(line.removeprefix("< "), skipping=skipping)
                        skipping = False


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_transcript(command: str) -> None:
    """GEN-1, SCO-1, INF-1, CAN-1: the document shows each command at work."""
    assert any(f"> {command} " in transcript for transcript in TRANSCRIPTS)


def test_a_transcript_can_fail() -> None:
    """GEN-1: another token, number or field is not what the document shows."""
    (wanted,) = expected('[{"token":5,"logprob":-0.59,"usage":{...},"error":...,"list":[1]}]')
    found = {"token": 5, "logprob": -0.5874, "usage": {"a": 1}, "error": "x", "list": [1]}
    assert matches(wanted, found)
    for other in ({"token": 6}, {"logprob": -0.7}, {"usage": 3}, {"list": [1, 2]}, {"list": [True]}, {"more": 1}):
        assert not matches(wanted, {**found, **other})
    assert matches(expected('{"a":1,...}'), {"a": 1, "b": 2})
    assert not matches(expected('{"a":1,...}'), {"b": 2})


def test_a_transcript_is_rewritten() -> None:
    """GEN-1: what is no longer true is replaced, and what stays, wildcards too, is written as before."""
    shown = '[{"token":5,"logprob":-0.59,"top_logprobs":{"5":-0.59,"264":-1.48},"text":...,"usage":{"a":1,...}}]'
    assert written(expected(shown)) == shown
    found = {"token": 6, "logprob": -0.591, "top_logprobs": {"6": -0.5, "3": -2.0}, "text": "x", "usage": {"a": 2}}
    (new,) = [renewed(one, found) for one in expected(shown)]
    assert written([new]) == (
        '[{"token":6,"logprob":-0.59,"top_logprobs":{"6":-0.50,"3":-2.00},"text":...,"usage":{"a":2,...}}]'
    )
