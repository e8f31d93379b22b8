"""Runs one verb of `lmtool trace`, as the whole program would."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from lmtool.cli.app import build


def trace(*words: object) -> Result:
    """Run `lmtool trace WORDS...`."""
    return CliRunner().invoke(build(), ["trace", *map(str, words)])


CONVERSATION = """{"lmtp_trace": 1, "at": "proxy", "title": "one stream"}
[0.000000, "open", 1, {"peer": "client", "agent": "lmql/0.7.3"}]
[0.001000, ">", 1, "GENERATE", {"model": "m", "prompt": [5, 6], "stream_id": 1, "max_tokens": 3}]
[0.001000, "vocab", 0, {"5": "Hello", "6": " secret"}]
[0.010000, "<", 1, "TOKEN", [{"token": 11, "stream_id": 1, "logprob": -0.5, "finish_reason": null}]]
[0.010000, "vocab", 0, {"11": " there", "12": {"hex": "f09f"}, "13": {"hex": "9982"}}]
[0.020000, "<", 1, null, "TOKEN [{\\"token\\": 12, \\"stream_id\\": 1, \\"logprob\\": -Infinity}]"]
[0.040000, "<", 1, "TOKEN", [{"token": 13, "stream_id": 1, "logprob": -1.5, "finish_reason": "length"}]]
[0.050000, "close", 1, {"by": "client", "code": 1000, "reason": ""}]
"""
"""A cut trace of one stream; its second token has no finite logprob."""
