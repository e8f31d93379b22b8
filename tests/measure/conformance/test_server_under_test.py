"""What is known of a server under test."""

from __future__ import annotations

import json

from lmtool.measure.conformance.case import cases, read
from lmtool.measure.conformance.server_under_test import ServerUnderTest

LIMITS = {"vocab_size": 20, "context_length": 64}
INFO = {"model": "m", "eos_token_ids": [6, 2], "lmtp": 1, "extensions": ["text"], **LIMITS}


def test_a_server_that_tells() -> None:
    """Name, eos, and a prompt without it come from MODEL_INFO."""
    server = ServerUnderTest.of(INFO)
    assert (server.model, server.eos, server.prompt) == ("m", 6, (5, 7, 8, 9))
    assert server.value("no_eos") == {"6": -100, "2": -100}
    assert server.long == 58
    assert len(server.value("all_but_forced")) == 19
    assert len(server.value("overlong")) == 65


def test_a_server_that_tells_nothing() -> None:
    """What the caller says is used; the rest has values that fit any model."""
    server = ServerUnderTest.of("<unavailable>", model="x", prompt=(1, 2, 3, 4), eos=0)
    assert (server.model, server.eos, server.prompt, server.long) == ("x", 0, (1, 2, 3, 4), 120)
    assert ServerUnderTest().value("no_eos") == {}
    assert ServerUnderTest().value("outside") == 100_000_000


def test_needs() -> None:
    """A case is skipped with a reason where the server does not announce what it needs."""
    case = {"id": "a", "title": "A holds", "rules": ["GEN-3"], "script": "fence"}
    reasons = {
        need: ServerUnderTest.of(INFO).missing(read({**case, "needs": [need]}, "server"))
        for need in ("lmtp", "eos", "context", "text", "running", "chat", "cancel")
    }
    assert [need for need, reason in reasons.items() if reason] == ["running", "chat", "cancel"]
    assert "the extension 'cancel'" in reasons["cancel"]
    bare = ServerUnderTest(model="x")
    assert "--eos" in bare.missing(read({**case, "needs": ["eos"]}, "server"))
    assert "context_length" in bare.missing(read({**case, "needs": ["context"]}, "server"))
    assert "lmtool's document" in bare.missing(read({**case, "needs": ["lmtp"]}, "server"))
    (mask,) = [case for case in cases("server") if case.id == "large-mask"]
    assert bare.missing(mask) == "the server tells no vocab_size"


def test_every_variable_of_the_cases_is_known() -> None:
    """No case uses a name that has no value."""
    dynamic = {"pad", "newline", "n", "tokens", "after", "first", "begins", "seed", "key_protocol"}
    for case in cases("server"):
        for name in {name for step in case.script for name in step.variables} - dynamic:
            json.dumps(ServerUnderTest.of(INFO).value(name))
