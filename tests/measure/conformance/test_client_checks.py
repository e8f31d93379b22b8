"""Each check of clients: what holds, and what it says of a client that does it wrong."""

from __future__ import annotations

from typing import Any

import pytest

from lmtool.measure.conformance.client_checks import CLIENT_CHECKS
from lmtool.measure.conformance.transcript import ClientRun, Message


def run(*frames: str, **facts: Any) -> ClientRun:
    """A run in which these frames went by; those of the server begin with `TOKEN` or `MSG`."""
    made = ClientRun(**facts)
    for frame in frames:
        made.transcript.add(Message.of(0.0, "1", "<" if frame.startswith(("TOKEN", "MSG")) else ">", frame))
    return made


ASKED = 'GENERATE {"prompt": [1], "stream_id": 1}'
ENDED = 'TOKEN [{"stream_id": 1, "finish_reason": "stop"}]'
GOOD = run(ASKED, ENDED, ASKED)
TABLE: list[tuple[str, dict[str, Any], ClientRun, ClientRun, str]] = [
    ("asks", {}, GOOD, run("SCORE {}"), "it sent no GENERATE"),
    ("dials", {"path": "/"}, run(paths=["/"]), run(paths=["/lmtp"]), "it connected to ['/lmtp']"),
    ("well_formed", {}, GOOD, run("GENERATE"), "not a command"),
    ("well_formed", {}, GOOD, run("generate {}"), "not a command"),
    ("well_formed", {}, GOOD, run("GENERATE [1]"), "no object"),
    ("well_formed", {}, GOOD, run('GENERATE {"temperature": NaN}'), "not valid JSON"),
    ("one_space", {}, GOOD, run("GENERATE  {}"), "more than one space"),
    ("stream_ids", {}, GOOD, run('GENERATE {"stream_id": null}'), "no stream_id"),
    ("stream_ids", {}, GOOD, run(ASKED, ASKED), "is used again while its stream runs"),
    ("prompts", {}, GOOD, run('GENERATE {"prompt": ["a"]}'), "expected a prompt of token ids"),
    ("buffers", {}, GOOD, run('BUFFER {"name": "a", "append": [1]}'), "does not announce it"),
    ("buffers", {}, GOOD, run('GENERATE {"prompt": [{"buffer": "a"}]}'), "does not announce them"),
    ("buffers", {}, GOOD, run('GENERATE {"prompt": [1], "into": "a"}'), "does not announce them"),
    ("prompts", {}, run('GENERATE {"messages": []}'), run('GENERATE {"prompt": "a", "messages": []}'), "expected"),
    ("cancels", {}, run('CANCEL {"model": "m", "stream_id": 1}'), run('CANCEL {"stream_id": 1}'), "without model"),
    ("usual_output", {}, run(stdout="a", usual="a"), run(stdout="b", usual="a"), "it printed 'b'"),
    ("usual_output", {}, run(stdout="b"), run(stdout="b", usual=""), "it printed 'b'"),
    ("tells", {"text": "moon"}, run(stderr="the moon"), run(stderr="oops"), "tells 'moon'"),
    ("answers_pings", {}, GOOD, run(notes=["no pong"]), "no pong"),
]


@pytest.mark.parametrize(("name", "arguments", "good", "bad", "message"), TABLE, ids=[row[0] for row in TABLE])
def test_check(name: str, arguments: dict[str, Any], good: ClientRun, bad: ClientRun, message: str) -> None:
    """A check is silent where its rule is kept, and says what is wrong where it is not."""
    assert list(CLIENT_CHECKS[name](good, **arguments)) == []
    assert message in " · ".join(CLIENT_CHECKS[name](bad, **arguments))


def test_every_check_is_tested() -> None:
    """The table has each check."""
    assert {row[0] for row in TABLE} == set(CLIENT_CHECKS)
