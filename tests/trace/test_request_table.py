"""Whose an entry is, on one connection."""

from __future__ import annotations

import pytest

from lmtool.trace import request_table
from lmtool.trace.request_table import RequestTable

TOKEN = {"stream_id": 1, "token": 5}
REFUSAL = {"stream_id": 1, "error": "it runs"}
INFO = {"stream_id": 1, "model_info": {}}


def table(*requests: tuple[str, str]) -> RequestTable[str]:
    """A table of requests with id 1: commands and names."""
    made: RequestTable[str] = RequestTable()
    for command, name in requests:
        made.add(command, 1, name)
    return made


def test_the_latest_request_has_the_id() -> None:
    """Once the stream before has ended; what comes after an end is the ended stream's until then."""
    made = table(("GENERATE", "a"))
    made.end(1)
    assert made.owner("TOKEN", TOKEN) == "a"
    made.add("GENERATE", 1, "b")
    assert made.owner("TOKEN", TOKEN) == "b"
    assert made.owner("TOKEN", {"stream_id": "1"}) is None


def test_an_id_that_runs() -> None:
    """LMTP, STR-5: a MSG error refuses the request that came later; the stream that runs keeps the id."""
    made = table(("GENERATE", "a"), ("SCORE", "b"))
    assert made.any_queued
    assert made.owner("MSG", REFUSAL) == "b"
    assert (made.owner("TOKEN", TOKEN), made.any_queued) == ("a", False)
    assert made.owner("MSG", REFUSAL) == "a"  # ERR-6: a request of its own that failed


def test_a_server_that_queues() -> None:
    """The second request gets the id when the first stream has ended."""
    made = table(("GENERATE", "a"), ("GENERATE", "b"))
    made.end(1)
    assert made.owner("TOKEN", TOKEN) == "b"


def test_questions_do_not_disturb_streams() -> None:
    """A MODEL_INFO may bear the id of a stream; each answer finds its own, in order."""
    made = table(("GENERATE", "a"), ("MODEL_INFO", "x"), ("MODEL_INFO", "y"))
    assert [made.owner("MSG", INFO), made.owner("TOKEN", TOKEN), made.owner("MSG", INFO)] == ["x", "a", "y"]
    assert made.owner("MSG", INFO) == "y"  # an answer too many
    made.add("MODEL_INFO", 1, "z")
    assert made.owner("MSG", {"stream_id": 1, "error": "no"}) == "z"
    assert made.owner("MSG", {"stream_id": 1, "progress": {}}) == "a"
    assert table(("MODEL_INFO", "x")).owner("MSG", {"stream_id": 1, "progress": {}}) == "x"


def test_what_is_open() -> None:
    """Streams without an end, requests that wait, questions without an answer."""
    made = table(("GENERATE", "a"), ("GENERATE", "b"), ("MODEL_INFO", "x"))
    made.add("GENERATE", 2, "c")
    made.end(2)
    assert made.open_requests() == ["a", "b", "x"]
    made.owner("MSG", INFO)
    assert made.open_requests() == ["a", "b"]


def test_what_has_ended_is_forgotten_some_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection of very many streams does not fill the memory."""
    monkeypatch.setattr(request_table, "ENDED_KEPT", 2)
    made: RequestTable[int] = RequestTable()
    for key in range(5):
        made.add("GENERATE", key, key)
        made.end(key)
    assert made.holders == {3: 3, 4: 4}
