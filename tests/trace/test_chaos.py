"""Difficult answers: repeatable, and within what they promise."""

from __future__ import annotations

import pytest

from lmtool.core.errors import UsageError
from lmtool.trace.events import Event, Frame, JsonText, Request
from lmtool.trace.exchanges import Exchange, LmtpExchange, Part, Reply, exchanges
from lmtool.trace.matching import TROUBLES, Chaos, Trouble, parse_chaos
from tests.trace.conftest import generate, token, tokens

MSG = Frame(0.03, "<", 1, JsonText("MSG", {"stream_id": 1, "model_info": "m"}, "py"))
EVENTS: list[Event] = [generate(0), *(tokens(i / 100, token(i)) for i in range(20)), MSG]


def made(*troubles: Trouble, seed: int = 0) -> tuple[list[Reply], bool]:
    """Replies after these troubles."""
    (exchange,) = exchanges(EVENTS)
    assert isinstance(exchange, LmtpExchange)
    return Chaos(troubles, seed).replies(exchange, exchange.replies)


def ids(replies: list[Reply]) -> list[object]:
    """All tokens in order."""
    return [entry["token"] for reply in replies for entry in reply.entries if "token" in entry]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_same_seed_does_the_same(trouble: Trouble) -> None:
    """Each trouble is repeatable, and another seed gives another one."""
    assert made(trouble, seed=1) == made(trouble, seed=1)
    assert len({str(made(trouble, seed=seed)) for seed in range(20)}) > 1


def test_batches_keep_the_order() -> None:
    """Tokens are split otherwise over frames; none is lost, none is early; a bare MSG stays as it is."""
    replies, cut = made("batch")
    assert not cut
    assert ids(replies) == list(range(20))
    assert {len(reply.entries) for reply in replies} > {1}
    for reply in replies:
        last = reply.entries[-1].get("token")
        assert not isinstance(last, int) or reply.offset == last / 100
    assert replies[-1].wire(1, 1) == 'MSG {"stream_id": 1, "model_info": "m"}'


def test_unknown_fields_and_commands_are_added() -> None:
    """Every entry keeps what it had; unknown commands stand between the frames."""
    replies, _ = made("fields", "commands")
    known = [reply for reply in replies if reply.command in ("TOKEN", "MSG")]
    assert ids(known) == list(range(20))
    assert all(any(name.startswith("x_unknown") for name in entry) for reply in known for entry in reply.entries)
    assert len(replies) > len(known)
    assert '"x_unknown' in known[0].wire(1, 1)


def test_delays_only_add() -> None:
    """No piece is earlier than recorded, and their order stays."""
    replies, _ = made("delay")
    offsets = [reply.offset for reply in replies]
    assert all(late > i / 100 for i, late in enumerate(offsets[:20]))
    assert offsets[:20] == sorted(offsets[:20])


def test_some_answers_are_cut() -> None:
    """With some seeds the connection is lost in the middle of an answer, with others nothing happens."""
    outcomes = [made("cut", seed=seed) for seed in range(20)]
    assert {cut for _, cut in outcomes} == {True, False}
    assert all((len(replies) < 21) == cut for replies, cut in outcomes)


def test_bytes_of_bodies_are_cut_elsewhere() -> None:
    """The bytes of a body stay the same, however they are divided."""
    http: list[Exchange] = exchanges([Request(0, 1, "GET", "/", {})])
    parts = [Part(0.1, "data: é🙂\n\n".encode()), Part(0.2, b"data: [DONE]\n\n")]
    changed, _ = Chaos(("batch", "delay"), 3).parts(http[0], parts)
    assert b"".join(part.data for part in changed) == b"".join(part.data for part in parts)
    assert len(changed) > 2


def test_troubles_are_named() -> None:
    """Names with commas, or all; an unknown one is refused."""
    assert parse_chaos("cut, batch") == ("batch", "cut")
    assert parse_chaos("all") == TROUBLES
    with pytest.raises(UsageError, match="unknown fault 'fire'"):
        parse_chaos("fire")
