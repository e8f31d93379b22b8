"""Each check of clients: what holds, and what it says of a client that does it wrong."""

from __future__ import annotations

from typing import Any

import pytest

from lmtool.conformance.client_checks import CLIENT_CHECKS
from lmtool.conformance.ran import Ran
from lmtool.conformance.seen import Message


def ran(*frames: str, **facts: Any) -> Ran:
    """A run in which these frames went by; those of the server begin with `TOKEN` or `MSG`."""
    made = Ran(**facts)
    for frame in frames:
        made.seen.add(Message.of(0.0, "1", "<" if frame.startswith(("TOKEN", "MSG")) else ">", frame))
    return made


ASKED = 'GENERATE {"prompt": [1], "stream_id": 1}'
ENDED = 'TOKEN [{"stream_id": 1, "finish_reason": "stop"}]'
GOOD = ran(ASKED, ENDED, ASKED)
TABLE: list[tuple[str, dict[str, Any], Ran, Ran, str]] = [
    ("asks", {}, GOOD, ran("SCORE {}"), "it sent no GENERATE"),
    ("dials", {"path": "/"}, ran(paths=["/"]), ran(paths=["/lmtp"]), "it connected to ['/lmtp']"),
    ("well_formed", {}, GOOD, ran("GENERATE"), "not a command"),
    ("well_formed", {}, GOOD, ran("generate {}"), "not a command"),
    ("well_formed", {}, GOOD, ran("GENERATE [1]"), "no object"),
    ("well_formed", {}, GOOD, ran('GENERATE {"temperature": NaN}'), "not valid JSON"),
    ("one_space", {}, GOOD, ran("GENERATE  {}"), "more than one space"),
    ("stream_ids", {}, GOOD, ran('GENERATE {"stream_id": null}'), "no stream_id"),
    ("stream_ids", {}, GOOD, ran(ASKED, ASKED), "is used again while its stream runs"),
    ("prompts", {}, GOOD, ran('GENERATE {"prompt": ["a"]}'), "expected a prompt of token ids"),
    ("prompts", {}, ran('GENERATE {"messages": []}'), ran('GENERATE {"prompt": "a", "messages": []}'), "expected"),
    ("cancels", {}, ran('CANCEL {"model": "m", "stream_id": 1}'), ran('CANCEL {"stream_id": 1}'), "without model"),
    ("usual_output", {}, ran(stdout="a", usual="a"), ran(stdout="b", usual="a"), "it printed 'b'"),
    ("usual_output", {}, ran(stdout="b"), ran(stdout="b", usual=""), "it printed 'b'"),
    ("tells", {"text": "moon"}, ran(stderr="the moon"), ran(stderr="oops"), "tells 'moon'"),
    ("answers_pings", {}, GOOD, ran(notes=["no pong"]), "no pong"),
]


@pytest.mark.parametrize(("name", "arguments", "good", "bad", "message"), TABLE, ids=[row[0] for row in TABLE])
def test_check(name: str, arguments: dict[str, Any], good: Ran, bad: Ran, message: str) -> None:
    """A check is silent where its rule is kept, and says what is wrong where it is not."""
    assert list(CLIENT_CHECKS[name](good, **arguments)) == []
    assert message in " · ".join(CLIENT_CHECKS[name](bad, **arguments))


def test_every_check_is_tested() -> None:
    """The table has each check."""
    assert {row[0] for row in TABLE} == set(CLIENT_CHECKS)
