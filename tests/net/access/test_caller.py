"""Keys and addresses in use: what is counted, what a change of the file does, and what is forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmtool.core.errors import AccessDeniedError, RateLimitError
from lmtool.core.types import TokenOutput, Usage
from lmtool.net.access.caller import (
    MAX_ADDRESSES,
    Callers,
    caller_name,
    counted_stream,
    current_caller,
    may_use,
    salted,
)
from lmtool.net.access.keys import Key, KeyRing, Limits, digest_of

ALICE = Key("alice", digest_of("a"), Limits(tokens_per_minute=100, streams=1))
BOB = Key("bob", digest_of("b"), models=("small",))


def callers(*keys: Key, address: Limits | None = None) -> Callers:
    """With a clock that stands still."""
    return Callers(KeyRing(keys or (ALICE, BOB), address or Limits()), lambda: 5.0)


def test_tokens_of_a_stream() -> None:
    """Each token as it comes; what only the end tells then; nothing twice."""
    known = callers()
    use = known.caller(ALICE, None).begin_stream(3)
    own = known._by_key["alice"]
    use.note(TokenOutput("a", token=1))
    assert own.tokens.used == 3 + 1
    use.note(TokenOutput("a", text="x", finish_reason="stop", usage=Usage(7, 4)))
    use.end()
    assert (own.tokens.used, own.streams, own.waiting) == (7 + 4, 0, 0)


def test_prefill_beside_a_stream() -> None:
    """It takes no place of a stream, and needs none."""
    known = callers()
    caller = known.caller(ALICE, None)
    caller.begin_stream()
    caller.begin_stream(prefill_only=True).end()
    assert known._by_key["alice"].streams == 1
    with pytest.raises(RateLimitError):
        caller.begin_stream()


def test_http_requests() -> None:
    """One counts once, however many streams it has, and is refused before the first of them."""
    key = replace(ALICE, limits=Limits(requests_per_minute=1))
    known = callers(key)
    caller = known.caller(key, None)
    with caller.connected(as_request=True):
        for _ in range(3):
            caller.begin_stream().end()
        assert known._by_key["alice"].connections == 1
    assert known._by_key["alice"].idle
    with pytest.raises(RateLimitError), known.caller(key, None).connected(as_request=True):
        pass
    assert known._by_key["alice"].connections == 0


def test_addresses() -> None:
    """Both the key's and the address's limits hold; addresses of one network count together."""
    known = callers(address=Limits(connections=1))
    with known.caller(ALICE, "2001:db8::1").connected():
        for address in ("2001:db8::2", "2001:db8:0:0:ffff::"):
            with pytest.raises(RateLimitError, match="address 2001:db8::/64"), known.caller(BOB, address).connected():
                pass
        with known.caller(BOB, "2001:db8:0:1::").connected(), known.caller(BOB, None).connected():
            pass


def test_addresses_are_forgotten() -> None:
    """As many as fit are remembered, and those in use always."""
    known = callers(address=Limits(connections=2))
    with known.caller(ALICE, "10.0.0.1").connected():
        for number in range(MAX_ADDRESSES + 10):
            known.caller(ALICE, f"10.1.{number // 250}.{number % 250}")
        assert len(known._by_address) <= MAX_ADDRESSES
        assert known._by_address["10.0.0.1"].connections == 1


def test_another_file() -> None:
    """Limits change at once, also of what is open; a key that is gone, or has another secret, is no longer valid."""
    known = callers(address=Limits(streams=9))
    caller = known.caller(ALICE, "10.0.0.1")
    caller.begin_stream()
    with pytest.raises(RateLimitError):
        caller.begin_stream()
    known.replace(KeyRing((replace(ALICE, limits=Limits(streams=2)),), Limits(streams=2)))
    caller.begin_stream()
    with pytest.raises(RateLimitError):
        known.caller(BOB, "10.0.0.1").begin_stream()
    assert caller.key.limits.streams == 2
    known.replace(KeyRing((replace(ALICE, digest=digest_of("c")),)))
    with pytest.raises(AccessDeniedError, match="no longer valid"):
        _ = caller.key


def test_salts() -> None:
    """A key's is its own, as is each that it chooses; another server has others; without keys the client's stays."""
    known = callers()
    alice, bob = known.caller(ALICE, None), known.caller(BOB, None)
    found = {alice.salted(""), alice.salted("x"), bob.salted(""), callers().caller(ALICE, None).salted("")}
    assert len(found) == 4
    assert alice.salted("x") == known.caller(ALICE, "10.0.0.1").salted("x")
    assert (salted("x"), caller_name(), may_use("anything")) == ("x", "", True)
    token = current_caller.set(bob)
    try:
        assert (salted("x"), caller_name()) == (bob.salted("x"), "bob")
        assert (may_use("small"), may_use("large")) == (True, False)
    finally:
        current_caller.reset(token)


def test_streams_of_no_model() -> None:
    """They count while a block runs, however it ends."""
    with counted_stream() as use:
        assert use is None
    known = callers()
    token = current_caller.set(known.caller(ALICE, None))
    try:
        with counted_stream(), pytest.raises(RateLimitError), counted_stream():
            pass
        assert known._by_key["alice"].idle
        with pytest.raises(ValueError, match="broken"), counted_stream():
            raise ValueError("broken")
        assert known._by_key["alice"].idle
    finally:
        current_caller.reset(token)
