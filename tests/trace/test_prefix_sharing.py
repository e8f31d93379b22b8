"""What prompts of a trace have in common, why no more, and what the engine's own cache says of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.trace.events import Done, Frame, JsonText, Piece, Request, Response, Vocab
from lmtool.trace.prefix_sharing import SharedPrefix, as_json, sentences, shared_prefixes, summary
from tests.protocol.http.thinking import scripted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lmtool.trace.events import Event
    from tests.protocol.http.thinking import Scripted

SYSTEM = "You are an agent of many words. " * 8
WORDS = {1: "<|user|>", 2: "Hi", 3: "<|assistant|>", 4: "yes", 5: "no"}
CHUNK = 16
"""Tokens that the engine caches at once."""


def asked(path: str, body: dict[str, Any], usage: dict[str, Any] | None = None) -> list[Event]:
    """One request over HTTP, and an answer of nothing but its usage."""
    answer = JsonText("", {"object": "chat.completion", "choices": [], "usage": usage}, "py")
    return [
        Request(0.0, 1, "POST", path, {}, JsonText("", {"model": "m", **body}, "py")),
        Response(0.1, 1, 200, "OK", {"content-type": "application/json"}),
        *([] if usage is None else [Piece(0.2, "body", 1, answer)]),
        Done(0.3, 1),
    ]


def chat(*messages: object, usage: dict[str, Any] | None = None, **body: object) -> list[Event]:
    """One of chat completions; texts are the system's and then user's and assistant's in turn."""
    roles = ("system", *("user", "assistant") * 9)
    turns = [
        {"role": role, "content": one} if isinstance(one, str) else one
        for role, one in zip(roles, messages, strict=False)
    ]
    return asked("/v1/chat/completions", {"messages": turns, **body}, usage)


def found(*requests: Sequence[Event]) -> list[SharedPrefix]:
    """What a trace of these has."""
    return shared_prefixes([event for events in requests for event in events])[0]


def why(*requests: Sequence[Event]) -> tuple[str, str]:
    """Kind and part of the last one's difference."""
    difference = found(*requests)[-1].difference
    assert difference is not None
    return difference.kind, difference.part


def tool(name: str, **more: object) -> dict[str, object]:
    """A tool of chat completions."""
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}, **more}}


class TestDifferences:
    """The first part that is not the same."""

    @pytest.mark.parametrize(
        ("before", "now", "kind", "part"),
        [
            (chat("S", "a"), chat("S", "a", "b", "c"), "new", "message 2 (assistant)"),
            (chat("S", "a", "b", "c"), chat("S", "a"), "shorter", "message 2 (assistant)"),
            (chat("S", "a"), chat("S", "a"), "same", ""),
            (chat("S", "a", "b", "c"), chat("S", "a", "x", "c"), "text", "message 2 (assistant)"),
            (chat("It is 2026-11-23 22:14.", "a"), chat("It is 2026-11-23 22:15.", "a"), "date", "system"),
            (chat("Today: Monday.", "a"), chat("Today: Tuesday.", "a"), "date", "system"),
            (chat("On Nov 3, 2026", "a"), chat("On Dec 3, 2026", "a"), "date", "system"),
            (chat("Session 0123456789abcdef.", "a"), chat("Session 0123456789abcdee.", "a"), "id", "system"),
            (chat("S", "a", tools=[tool("f")]), chat("S", "a", tools=[tool("f", description="d")]), "text", "tool f"),
            (chat("S", tools=[tool("f"), tool("g")]), chat("S", tools=[tool("g"), tool("f")]), "order", "tools"),
            (chat("S", "a", tools=[tool("f")]), chat("S", "a"), "place", "system"),
            (chat("S", "a"), chat("S", "a", reasoning_effort="low"), "template", "reasoning_effort"),
        ],
    )  # fmt: skip
    def test_kinds(self, before: list[Event], now: list[Event], kind: str, part: str) -> None:
        """A date, a time or an id is called so; a goes-on is no difference; ids of calls are none of the prompt."""
        assert why(before, now) == (kind, part)

    def test_the_longest_beginning_counts(self) -> None:
        """Of all earlier requests of the model; another model's, or another salt's, share nothing."""
        requests = (chat("S", "a"), chat("S", "a", "b", "c"), chat("S", "x"), chat("S", "a", "b", "d"))
        last = found(*requests)[-1]
        assert last.earlier is not None
        assert last.earlier.label == "1/2"
        assert last.common == len("S" + "user: a" + "assistant: b" + "user: ")
        other = found(chat("S", "a"), chat("S", "a", model="n"), chat("S", "a", cache_salt="x"))
        assert [one.earlier for one in other] == [None] * 3

    def test_what_was_repeated(self) -> None:
        """Behind an early difference everything that stands there as before is computed again."""
        usage = {"prompt_tokens": 100, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 16}}
        first, last = (f"It is {hour}:00 now. {SYSTEM}" for hour in (10, 11))
        requests = chat(first, "hello", usage=usage | {"prompt_tokens_details": {"cached_tokens": 0}})
        again = found(requests, chat(last, "hello", "yes", "more", usage=usage))[-1]
        assert again.repeated == len(f":00 now. {SYSTEM}") + len("user: hello") - len(":00") + len(":00")
        words = " ".join(sentences(again))
        assert "a date or time: '10:00' before, '11:00' now" in words
        assert "cached 16, computed 84" in words
        assert "computed again: " in words

    def test_all_apis_alike(self) -> None:
        """Chat completions, responses and messages with the same texts and tools have the same prompt."""
        schema = {"type": "object"}
        requests = (
            chat("S", "a", tools=[tool("f")]),
            asked("/v1/responses", {"instructions": "S", "input": "a", "tools": [{"name": "f", "parameters": schema}]}),
            asked(
                "/v1/messages",
                {
                    "system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
                    "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
                    "tools": [{"name": "f", "input_schema": schema}],
                },
            ),
        )
        assert [one.difference and one.difference.kind for one in found(*requests)] == [None, "same", "same"]

    def test_what_is_not_in_the_trace(self) -> None:
        """A prompt that was left out, or that the server keeps, is said to be."""
        redacted = chat("S", messages={"$redacted": "prompt", "n": 2, "sha256": "x"})
        kept = asked("/v1/responses", {"input": "a", "previous_response_id": "resp_1"})
        assert "no prompt in the trace" in sentences(found(redacted)[0])[0]
        assert "previous_response_id" in sentences(found(kept)[0])[-1]

    def test_many_prompts_that_grow(self) -> None:
        """A long conversation is compared in time that its length asks for, not the square of that."""
        texts = [f"{SYSTEM}{i}" for i in range(60)]
        requests = [
            asked("/v1/messages", {"messages": [{"role": "user", "content": text} for text in texts[:n]]})
            for n in range(1, 61)
        ]
        shared = found(*requests)
        assert all(one.difference is not None and one.difference.kind == "new" for one in shared[1:])
        assert shared[-1].common == shared[-2].total


class TestIds:
    """Prompts of ids."""

    @staticmethod
    def generate(number: int, *ids: int, cached: int | None = None) -> list[Event]:
        """A GENERATE and its last token."""
        usage = (
            {}
            if cached is None
            else {"usage": {"prompt_tokens": len(ids), "completion_tokens": 1, "cached_tokens": cached}}
        )
        payload = {"model": "m", "prompt": list(ids), "stream_id": number}
        entry = {"token": 4, "stream_id": number, "logprob": -0.1, "finish_reason": "stop", **usage}
        return [
            Frame(0.0, ">", 1, JsonText("GENERATE", payload, "py")),
            Frame(0.1, "<", 1, JsonText("TOKEN", [entry], "py")),
        ]

    def test_tokens_are_counted(self) -> None:
        """In tokens, with the texts that the trace has for ids, and the turn they are in."""
        events = [Vocab(0.0, 0, WORDS), *self.generate(1, 1, 2, 3, 4), *self.generate(2, 1, 2, 3, 5, cached=0)]
        shared, vocabulary = shared_prefixes(events)
        assert (shared[1].content.unit, shared[1].common, shared[1].total) == ("tokens", 3, 4)
        assert sentences(shared[1], vocabulary.get) == [
            "4 tokens; 3 tokens (75 %) in common with 1/1; cached 0, computed 4",
            "message 2 (assistant) differs from token 4: 'yes' before, 'no' now",
        ]
        assert "the prompt differs from token 4: 4 before, 5 now" in sentences(shared[1])

    def test_going_on(self) -> None:
        """A prompt that begins with all of another goes on with it, wherever chunks are cut."""
        for length in (5, 63, 64, 65, 130):
            ids = list(range(10, 10 + length))
            events = [*self.generate(1, *ids), *self.generate(2, *ids, 1, 2), *self.generate(3, *ids[:-1])]
            kinds = [one.difference.kind for one in shared_prefixes(events)[0] if one.difference is not None]
            assert kinds == ["new", "shorter"]
            assert [one.common for one in shared_prefixes(events)[0]] == [0, length, length - 1]

    def test_shifted_ids(self) -> None:
        """What stands behind another id at the beginning, as before, is computed again."""
        ids = list(range(100, 400))
        events = [*self.generate(1, 7, *ids), *self.generate(2, 8, 9, *ids, cached=0)]
        assert shared_prefixes(events)[0][1].repeated == 300

    @pytest.mark.parametrize(
        ("cached", "words"),
        [
            (0, "200 tokens less than is in common: evicted, never cached, or in another replica"),
            (192, ""),
            (
                256,
                "56 tokens more than is in common: it caches answers too, or had the prompt from other traffic",
            ),
        ],
    )
    def test_another_count_of_the_server(self, cached: int, words: str) -> None:
        """Where it is far from what is in common, that is said, with what may be the cause."""
        events = [*self.generate(1, *range(200)), *self.generate(2, *range(200), *range(500, 600), cached=cached)]
        said = sentences(shared_prefixes(events)[0][1])
        expected = [f"the server had {words}"] if words else []
        assert [line for line in said if line.startswith("the server had")] == expected

    def test_json(self) -> None:
        """All of it for programs."""
        events = [*self.generate(1, *range(100), cached=0), *self.generate(2, *range(90), 7, cached=80)]
        shared, vocabulary = shared_prefixes(events)
        value = json.loads(json.dumps(as_json(shared[1], vocabulary.get)))
        assert value["tokens"] == {"prompt": 91, "common": 90, "again": 0, "cached": 80, "computed": 11, "exact": True}
        assert (value["with"], value["differs"]["kind"], value["differs"]["now"]) == ("1/1", "text", [7])
        assert summary(shared) == {"requests": 2, "prompt_tokens": 191, "cached_tokens": 80, "computed_again": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    """The engine with its prefix cache, and its HTTP API."""
    with scripted() as running:
        yield running


async def test_ids_against_the_engine(server: Scripted) -> None:
    """What the engine had cached is the common beginning, in whole chunks, without the last token of the prompt."""
    base = list(range(300, 400))
    prompts = [base, base, [*base[:50], 7, *base], base[:33], [*base, *base], [9, *base], [*base[:50], 7, 8]]
    events: list[Event] = []
    for number, prompt in enumerate(prompts):
        request = GenerateRequest("r", tuple(prompt), SamplingParams(max_tokens=1))
        outputs = [output async for output in stream(server.engine, request)]
        usage = outputs[-1].usage
        assert usage is not None
        events += TestIds.generate(number, *prompt, cached=usage.cached_tokens)
    for shared in shared_prefixes(events)[0]:
        assert shared.cached_tokens == min(shared.common, shared.total - 1) // CHUNK * CHUNK, shared.label


def test_conversations_against_the_engine(server: Scripted) -> None:
    """Of messages the estimate in tokens is within a chunk of what the engine had; a date in front costs nearly all."""
    server.says("Yes, that is so.")
    events: list[Event] = []
    for clock in ("10:00", "10:01"):
        turns = [{"role": "system", "content": f"It is {clock}. {SYSTEM}"}, {"role": "user", "content": "Is it so?"}]
        for more in ([], [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And then?"}]):
            turns = turns + more
            body = {"model": "scripted", "messages": turns, "max_tokens": 2}
            answer = server.post("chat/completions", body)
            events += chat(*turns, usage=answer["usage"])
    first, goes_on, dated, last = shared_prefixes(events)[0]
    assert first.earlier is None
    for one in (goes_on, last):
        assert one.difference is not None
        assert one.difference.kind == "new"
        assert one.common_tokens is not None
        assert one.cached_tokens is not None
        assert abs(one.common_tokens - one.cached_tokens) <= CHUNK
    assert dated.difference is not None
    assert (dated.difference.kind, dated.difference.part) == ("date", "system")
    assert dated.prompt_tokens is not None
    assert dated.cached_tokens is not None
    again = as_json(dated)["tokens"]["again"]  # type: ignore[index] # an object
    assert dated.cached_tokens <= CHUNK
    assert abs(again - (dated.prompt_tokens - dated.cached_tokens)) <= 2 * CHUNK
