"""Each check of servers: what holds, and what it says of a server that does it wrong."""

from __future__ import annotations

from typing import Any

import pytest

from lmtool.measure.conformance.checks import CHECKS
from lmtool.measure.conformance.transcript import ConnectionEnd, HttpAnswer, Transcript
from tests.measure.conformance.conftest import msg, said, token

LAST = token(finish_reason="length")
GOOD = said(token(), LAST)
QUEUED = {"kind": "queued", "message": "place 1", "place": 1, "seconds": 2}
RETRY = said(token(error="e", retryable=True, retry_after=2, hints=["wait"]))


def other(**facts: Any) -> Transcript:
    """A case with facts beside its messages."""
    transcript = said()
    for name, value in facts.items():
        setattr(transcript, name, value)
    return transcript


TABLE: list[tuple[str, dict[str, Any], Transcript, Transcript, str]] = [
    ("ending", {"of": 1, "reason": ["length"]}, GOOD, said(token()), "exactly one ending, got 0"),
    ("ending", {"of": 1}, GOOD, said(LAST, LAST), "got 2"),
    ("ending", {"of": 1}, GOOD, said(LAST, token()), "came after its end"),
    ("ending", {"of": 1}, GOOD, said(token(error="boom")), "failed: boom"),
    ("ending", {"of": 1, "reason": ["length"]}, GOOD, said(token(finish_reason="stop")), "finish_reason is 'stop'"),
    ("ending", {"of": 1}, GOOD, said(msg(error="no")), "a MSG refused it: no"),
    ("ending", {"of": 1, "token": True}, GOOD, said(token(None, finish_reason="stop")), "has no token"),
    ("failure", {"of": 1}, said(token(None, error="bad x")), said(msg(error="x")), "got 0 (a MSG refused it: x)"),
    ("failure", {"of": 1, "mentions": "X"}, said(token(error="bad x")), said(token(error="?")), "does not mention"),
    ("failure", {"of": 1}, said(token(error="bad")), said(token(error=7)), "expected a text"),
    ("failure", {"of": 1, "code": ["a"]}, said(token(error="e", error_code="a")), said(token(error="e")), "error_code"),
    ("failure", {"of": 1, "coded": False}, said(token(error="e")), said(token(error="e", error_code="a")), "unasked"),
    (
        "failure",
        {"of": 1, "coded": False},
        said(token(error="e")),
        said(token(error="e", hints=["a"])),
        "hints is there",
    ),
    ("failure", {"of": 1, "retryable": True}, RETRY, said(token(error="e")), "retryable is"),
    ("failure", {"of": 1, "retryable": True}, RETRY, said(token(error="e", retryable=False)), "expected true"),
    (
        "failure",
        {"of": 1, "retryable": True},
        RETRY,
        said(token(error="e", retryable=True, retry_after=0)),
        "retry_aft",
    ),
    ("failure", {"of": 1, "retryable": True}, RETRY, said(token(error="e", retryable=True, hints="wait")), "hints is"),
    ("system_messages", {"of": 1, "may": True}, said(msg(system=QUEUED)), said(msg(system=5)), "system is 5"),
    ("system_messages", {"of": 1, "may": True}, GOOD, said(msg(system={**QUEUED, "place": 0})), "a place from 1"),
    ("system_messages", {"of": 1, "may": True}, GOOD, said(msg(system={**QUEUED, "seconds": "a"})), "seconds"),
    ("system_messages", {"of": 1, "may": False}, GOOD, said(msg(system=QUEUED)), "told unasked"),
    ("refusal", {"of": None}, said(msg(None, error="no")), said(msg(1, error="no")), "got 0"),
    ("refusal", {"of": 1}, said(msg(error="no")), said(msg(error="no"), msg(error="no")), "got 2"),
    ("silence", {"of": 1}, said(token(of=2)), GOOD, "expected nothing for 1"),
    ("no_message", {"of": 1}, GOOD, said(msg(progress={})), "expected no MSG"),
    ("tokens", {"of": 1, "least": 2, "most": 2}, GOOD, said(token()), "1 tokens; expected 2"),
    ("tokens", {"of": 1, "most": 2}, GOOD, said(token(), token(), LAST), "3 tokens; expected 0 to 2"),
    ("token_ids", {"of": 1, "are": [5, 5]}, GOOD, said(token(6), LAST), "tokens [6, 5]; expected [5, 5]"),
    ("without", {"of": 1, "token": 6}, GOOD, said(token(6)), "and not 6"),
    ("without", {"of": 1, "token": 6}, GOOD, said(), "expected some"),
    ("same_tokens", {"of": 1, "as_": 2}, said(token(), token(of=2)), said(token(), token(6, 2)), "the same tokens"),
    ("continued", {"of": 1, "parts": [2]}, said(token(), token(of=2)), GOOD, "those of the streams [2] are []"),
    (
        "same_logprobs",
        {"of": 1, "as_": 2, "within": 0.1},
        said(token(), token(of=2, logprob=-0.55)),
        said(token(), token(of=2, logprob=-0.7)),
        "-0.5 and -0.7; expected the same within 0.1",
    ),
    ("fields", {"of": 1, "has": ["logprob"], "lacks": ["text"]}, GOOD, said(token(logprob=...)), "logprob missing"),
    ("fields", {"of": 1, "lacks": ["text"]}, GOOD, said(token(text="a")), "unasked: ['text']"),
    ("fields", {"of": 1}, GOOD, said(), "has no token"),
    ("integers", {"of": 1}, GOOD, said(token(logprob="high")), "expected an integer"),
    ("alternatives", {"of": 1, "least": 1, "most": 1}, GOOD, said(token(top_logprobs={})), "0 alternatives"),
    ("alternatives", {"of": 1, "least": 1, "most": 1}, GOOD, said(token(6)), "the chosen 6 is not in"),
    ("best_first", {"of": 1}, GOOD, said(token(top_logprobs={"1": -2.0, "2": -1.0})), "not in order"),
    ("normalised", {"of": 1}, GOOD, said(token(logprob=0.5)), "no logarithm of a probability"),
    ("normalised", {"of": 1}, GOOD, said(token(top_logprobs={"1": -0.1, "2": -0.1})), "sum to 1.810"),
    ("certain", {"of": 1}, said(token(logprob=0.0)), GOOD, "logprob -0.5; expected 0"),
    ("finite", {"of": 1}, GOOD, said(token(top_logprobs={"5": float("-inf")})), "not every logprob is a finite number"),
    ("strict_json", {}, GOOD, said(token(logprob=float("-inf"))), "not valid JSON"),
    ("lists", {}, GOOD, said('MSG {"stream_id": 1}'), "neither a TOKEN list nor a MSG list"),
    ("lists", {}, GOOD, said(b"TOKEN []"), "neither a TOKEN list nor a MSG list"),
    ("model_info", {"of": 1}, said(msg(model_info={})), said(msg(model_info="<unavailable>")), "expected an object"),
    ("model_info", {"of": 1}, said(msg(model_info={})), said(msg(error="no")), "got 0 (a MSG refused it: no)"),
    *[
        (
            "fingerprints",
            {"of": [2, 3], "without": 1},
            said(msg(model_info={}), *(msg(of=of, model_info={"fingerprint": "0" * 64}) for of in (2, 3))),
            said(*(msg(of=of, model_info=info) for of, info in enumerate(infos, start=1))),
            words,
        )
        for infos, words in (
            (({"fingerprint": "0" * 64}, {}, {}), "nothing has asked for extensions"),
            (({}, {"fingerprint": "0" * 64}, {}), "differ"),
            (({}, {"fingerprint": "0" * 63}, {"fingerprint": "0" * 63}), "expected 64 digits"),
        )
    ],
    *[
        (
            "key_limits",
            {"of": 2, "without": 1},
            said(msg(model_info={}), msg(of=2, model_info={"key_limits": {"streams": 4}})),
            said(*(msg(of=of, model_info=info) for of, info in enumerate(infos, start=1))),
            words,
        )
        for infos, words in (
            (({"key_limits": {}}, {}), "nothing has asked for extensions"),
            (({}, {"key_limits": {"streams": "4"}}), "expected an object of whole numbers"),
            (({}, {"key_limits": 4}), "expected an object of whole numbers"),
        )
    ],
    ("listed", {"of": 1}, said(msg(models=[{"name": "m", "phase": "ready"}])), said(msg(models={})), "got 1"),
    ("listed", {"of": 1}, said(msg(models=[])), said(msg(model_info={})), "expected one MSG entry with a list"),
    ("listed", {"of": 1}, said(msg(models=[])), said(msg(models=[{"name": "m"}])), "an object with name and phase"),
    ("buffered", {"of": 1, "name": "a"}, said(msg(buffer={"name": "a", "length": 3})), said(msg(error="no")), "it: no"),
    (
        "buffered",
        {"of": 1, "name": "a", "ids": [5, 6]},
        said(msg(buffer={"name": "a", "length": 2})),
        said(msg(buffer={"name": "a", "length": 3})),
        "expected one MSG entry about buffer 'a' of 2 ids, got",
    ),
    (
        "model_info",
        {"of": 1, "has": {"model": "text", "running": "integer"}},
        said(msg(model_info={"model": "m", "running": 0})),
        said(msg(model_info={"model": "m", "running": True})),
        "model_info.running is True; expected integer",
    ),
    (
        "closed",
        {"code": 1009},
        other(closed={"a": ConnectionEnd(0, 1009, "", "server")}),
        other(closed={"a": ConnectionEnd(0, 1000, "bye", "server")}),
        "it was closed with 1000 bye",
    ),
    ("closed", {"code": 1009}, other(closed={"a": ConnectionEnd(0, 1009, "", "server")}), GOOD, "it is open"),
    (
        "still_open",
        {},
        other(closed={"a": ConnectionEnd(0, 1000, "", "client")}),
        other(closed={"a": ConnectionEnd(0, 1000, "", "server")}),
        "connection a was closed with 1000",
    ),
    ("handshake", {"at": "a", "status": 403}, other(handshakes={"a": 403}), other(handshakes={"a": 101}), "with 101"),
    (
        "http",
        {"path": "/", "status": 200, "member": "lmtp"},
        other(http={"/": HttpAnswer(200, '{"lmtp": 1}')}),
        other(http={"/": HttpAnswer(200, "hello")}),
        "expected a JSON object with 'lmtp'",
    ),
    ("http", {"path": "/", "status": 200}, other(http={"/": HttpAnswer(200, "")}), GOOD, "answered with None"),
    (
        "ends_before",
        {"first": 1, "second": 2},
        said(LAST, token(of=2, finish_reason="stop")),
        said(token(of=2, finish_reason="stop"), LAST),
        "the other order",
    ),
    (
        "scored",
        {"of": 1, "ids": [5, 6]},
        said(token(5), token(6, finish_reason="stop")),
        said(token(6, finish_reason="stop"), token(5)),
        "expected null for all but the last",
    ),
    (
        "texts",
        {"of": 1},
        said(token(text="a"), token(text="")),
        said(token(text="a"), token(), token()),
        "text in every",
    ),
    ("texts", {"of": 1}, said(token(text="a")), said(token(text="\ufffd"), token(text="a")), "text in every"),
    ("texts", {"of": 1, "present": False}, GOOD, said(token(text="a")), "text came unasked"),
    ("no_text", {"of": 1}, said(token(text="")), said(token(text="a")), "expected none"),
    (
        "usage",
        {"of": 1, "prompt": 4},
        said(token(usage={"prompt_tokens": 4, "completion_tokens": 1})),
        said(token(usage={"prompt_tokens": 4, "completion_tokens": 2})),
        "usage is",
    ),
    ("usage", {"of": 1}, said(token(usage={"prompt_tokens": None, "completion_tokens": 1})), GOOD, "the last"),
    ("usage", {"of": 1, "present": False}, GOOD, said(token(usage={})), "expected none"),
    ("ignored", {"of": 1, "names": ["x"]}, said(msg(ignored=["x"]), LAST), said(LAST, msg(ignored=["x"])), "after its"),
    ("ignored", {"of": 1, "names": []}, GOOD, said(msg(ignored=["x"]), LAST), "told as [['x']]"),
    (
        "watched",
        {"of": 1},
        said(msg(watch={"time": 1.5, "events": [[1.0, "open", 2]], "lost": 0})),
        said(msg(watch={"time": 1.5, "events": ["open"], "lost": 0})),
        "expected a time, a list of events",
    ),
    (
        "watched",
        {"of": 1},
        said(msg(error="no", error_code="access_denied")),
        said(msg(error="no", error_code="server")),
        "refused with the code",
    ),
    ("watched", {"of": 1}, said(msg(watch={"time": 1, "events": [], "lost": 2})), GOOD, "no answer"),
    ("some_refused", {"streams": 2}, said(token(), token(of=2, error="full")), GOOD, "0 of 2 streams"),
    ("sampled_apart", {"of": [1, 2]}, said(token(5), token(6, 2)), said(token(5), token(5, 2)), "the same tokens"),
]


@pytest.mark.parametrize(("name", "arguments", "good", "bad", "message"), TABLE, ids=[f"{row[0]}" for row in TABLE])
def test_check(name: str, arguments: dict[str, Any], good: Transcript, bad: Transcript, message: str) -> None:
    """A check is silent where its rule is kept, and says what is wrong where it is not."""
    assert list(CHECKS[name](good, **arguments)) == []
    assert message in " · ".join(CHECKS[name](bad, **arguments))


def test_every_check_is_tested() -> None:
    """The table has each check."""
    assert {row[0] for row in TABLE} == set(CHECKS)
