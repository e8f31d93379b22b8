"""Which recorded answer a request gets."""

from __future__ import annotations

import pytest

from lmtool.core.errors import UsageError
from lmtool.trace.events import Event, Frame, JsonText, Request
from lmtool.trace.exchanges import Exchange, LmtpExchange, Part, Reply, exchanges
from lmtool.trace.matching import TROUBLES, Chaos, IncomingRequest, Matcher, Miss, Trouble, parse_chaos
from tests.trace.conftest import generate, token, tokens

RECORDED = exchanges([generate(1, 1), generate(2, 2, temperature=0.7), generate(3, 3, prompt=[5, 6, 8])])


def ask(**fields: object) -> IncomingRequest:
    """A GENERATE that comes in."""
    return IncomingRequest("GENERATE", {"model": "m", "prompt": [5, 6, 7], "stream_id": 99, **fields}, "")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0},
        {"temperature": -0.0},
        {"max_tokens": 32.0, "top_logprobs": 1, "logit_bias": {}},
    ],
)
def test_equal_in_meaning_is_equal(fields: dict[str, object]) -> None:
    """1 and 1.0, 0.0 and -0.0 are equal, a missing field has its default, the id does not count."""
    assert Matcher(RECORDED).match(ask(**fields)) is RECORDED[0]


def test_recordings_answer_again() -> None:
    """When all that match are used, they answer again in their order; with `once`, an equal request is then a miss."""
    matcher = Matcher(RECORDED, once=True)
    assert matcher.unused == RECORDED
    assert matcher.match(ask()) is RECORDED[0]
    again = matcher.match(ask())
    assert isinstance(again, Miss)
    assert again.differences == ("all recorded answers to this request were used",)
    assert matcher.unused == RECORDED[1:]
    twice = exchanges([generate(1, 1), generate(2, 2)])
    matcher = Matcher(twice)
    assert [matcher.match(ask()) for _ in range(4)] == [twice[0], twice[1], twice[0], twice[1]]


class Counted(str):
    """A text that counts how often it is compared with another."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        """Count, then compare."""
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def comparisons_for(count: int, **fields: object) -> float:
    """Comparisons of a value for each request, where `count` requests meet as many recorded ones."""
    recorded = exchanges([generate(i, i, prompt=[i], user=Counted("u")) for i in range(count)])
    matcher = Matcher(recorded, once=True)
    Counted.compared = 0
    for i in range(count):
        matcher.match(ask(**{"prompt": [i], "user": Counted("u"), **fields}))
    return Counted.compared / count


@pytest.mark.parametrize("fields", [{}, {"prompt": [-1]}, {"model": "other"}, {"seed": 1}])
def test_time_does_not_grow_with_the_recording(fields: dict[str, object]) -> None:
    """A request is compared with as many recorded ones among 2,000 as among 200, also where none matches."""
    few, many = comparisons_for(200, **fields), comparisons_for(2000, **fields)
    assert many <= few * 1.2


def test_a_miss_names_the_nearest_and_what_differs() -> None:
    """The recorded request with the fewest differing fields, each field with both values."""
    miss = Matcher(RECORDED).match(ask(temperature=0.7, max_tokens=5))
    assert isinstance(miss, Miss)
    assert miss.nearest is RECORDED[1]
    assert miss.differences == ("max_tokens: recorded 32, got 5",)
    miss = Matcher(RECORDED[2:]).match(ask())
    assert isinstance(miss, Miss)
    assert miss.differences == ("prompt differs at 2: recorded [8] of 3, got [7] of 3",)
    assert Matcher(RECORDED).match(IncomingRequest("SCORE", {}, "")) == Miss(None, ())


def test_fields_may_be_ignored() -> None:
    """`--ignore`: a field that may differ."""
    assert Matcher(RECORDED, ignore=["max_tokens", "temperature"]).match(ask(max_tokens=5)) is RECORDED[0]


def test_only_the_prompt() -> None:
    """`--match prompt`: kind, model and prompt."""
    matcher = Matcher(RECORDED, "prompt")
    assert matcher.match(ask(max_tokens=5, seed=7)) is RECORDED[0]
    assert isinstance(matcher.match(ask(model="other")), Miss)


def test_only_the_order() -> None:
    """`--match order`: the n-th request gets the n-th answer, whatever it asks; after the last the first again."""
    matcher = Matcher(RECORDED, "order", once=True)
    assert [matcher.match(IncomingRequest("SCORE", {}, "")) for _ in range(3)] == RECORDED
    assert isinstance(matcher.match(ask()), Miss)
    matcher = Matcher(RECORDED, "order")
    assert [matcher.match(ask(seed=i)) for i in range(4)] == [*RECORDED, RECORDED[0]]


def test_a_redacted_prompt_matches_by_length() -> None:
    """Of a prompt that was left out only the length is known."""
    recorded = exchanges([generate(1, prompt={"$redacted": "prompt", "n": 3, "sha256": ""})])
    assert Matcher(recorded).match(ask()) is recorded[0]
    assert isinstance(Matcher(recorded).match(ask(prompt=[1])), Miss)
    assert Matcher(recorded).match(recorded[0]) is recorded[0]
    assert Matcher(RECORDED).match(recorded[0]) is RECORDED[0]


def test_frames_that_are_no_requests_match_by_text() -> None:
    """Anything that is not a command and a JSON object must be the same text."""
    recorded = exchanges([Frame(1, ">", 1, "GENERATE {")])
    assert isinstance(Matcher(recorded).match(IncomingRequest("", {}, "GENERATE [")), Miss)
    assert Matcher(recorded).match(IncomingRequest("", {}, "GENERATE {")) is recorded[0]


def test_http_requests_match_by_method_path_and_body() -> None:
    """Bodies are compared as values; a body that is no JSON object as bytes."""
    body = JsonText("", {"model": "m", "messages": []}, "py")
    recorded = exchanges([Request(1, 1, "POST", "/v1/x", {}, body), Request(2, 1, "GET", "/v1/models", {})])
    matcher = Matcher(recorded)
    assert matcher.match(IncomingRequest("POST /v1/x", {"messages": [], "model": "m"}, b"", "http")) is recorded[0]
    assert matcher.match(IncomingRequest("GET /v1/models", {}, b"", "http")) is recorded[1]
    assert isinstance(matcher.match(IncomingRequest("GET /v1/other", {}, b"", "http")), Miss)
    assert recorded[0].kind == "POST /v1/x"
    assert recorded[1].text == b""


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
