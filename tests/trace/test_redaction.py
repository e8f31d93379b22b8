"""What a redacted trace still tells."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args
from urllib.parse import quote, quote_plus

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import connect

import lmtool
from lmtool.cli.trace.files import write_trace
from lmtool.core.errors import UsageError
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.trace.answers import Answers
from lmtool.trace.codec import Header, write_event
from lmtool.trace.editing import redacted
from lmtool.trace.events import (
    Close,
    Drop,
    Event,
    Frame,
    JsonText,
    Message,
    Open,
    Piece,
    Request,
    Response,
    Turn,
    Vocab,
)
from lmtool.trace.reader import TraceReader
from lmtool.trace.recorder import Recorder, TokenSpelling
from lmtool.trace.redaction import RedactedPart, Redaction, likely_keys, parse, without_keys
from lmtool.trace.stream_events import OutputEvent, stream_of
from lmtool.trace.writer import TraceWriter
from tests.cli.test_gateway import program
from tests.fake_upstream import HELLO, Behaviour, FakeUpstream
from tests.gateway.pools.running import member, pool
from tests.trace.conftest import generate, token, tokens
from tests.trace.strategies import events
from tests.trace.test_proxy import proxy_to


def test_prompts_are_replaced() -> None:
    """Length and a salted hash stay, so that equal prompts are seen to be equal; everything else is as it was."""
    redaction = Redaction(("prompt",), b"salt")
    first, again, other = (redaction.apply(e) for e in (generate(1, 1), generate(2, 2), generate(3, 3, prompt=[9])))
    values = [
        e.content.value for e in (first, again, other) if isinstance(e, Frame) and isinstance(e.content, JsonText)
    ]
    prompts = [value["prompt"] for value in values if isinstance(value, dict)]
    assert prompts[0]["$redacted"] == "prompt"
    assert prompts[0]["n"] == 3
    assert prompts[0] == prompts[1]
    assert prompts[0]["sha256"] != prompts[2]["sha256"]
    assert isinstance(values[0], dict)
    assert values[0]["model"] == "m"


def test_another_salt_gives_another_hash() -> None:
    """A prompt cannot be found by hashing guesses, since the salt is thrown away."""
    assert Redaction(("prompt",), b"1").apply(generate(1)) != Redaction(("prompt",), b"2").apply(generate(1))


def test_vocabulary_of_prompts_goes() -> None:
    """Whoever writes explains the ids that are left: an event of vocabulary may be of a prompt."""
    for part in get_args(RedactedPart):
        redaction = Redaction((part,), b"")
        assert (redaction.apply(Vocab(1, 0, {5: "secret"})) is None) == (part != "headers")
        assert redaction.explains == (part != "text")


def test_http_prompts_and_headers_go() -> None:
    """`messages`, `prompt` and `input` of bodies; headers that are not known to be harmless; the query of a path."""
    body = JsonText(
        "", {"model": "m", "messages": [{"content": "secret"}], "system": "secret", "input": "secret"}, "py"
    )
    headers = {"authorization": "Bearer x", "content-type": "application/json"}
    told = Redaction(("headers", "prompt"), b"").apply(Request(0, 1, "POST", "/v1?key=secret", headers, body))
    assert isinstance(told, Request)
    assert told.headers == {"content-type": "application/json"}
    assert b"secret" not in told.wire_body()
    assert told.path == "/v1"
    response = Redaction(("headers",), b"").apply(Response(0, 1, 200, "OK", {"set-cookie": "a", "server": "b"}))
    assert response == Response(0, 1, 200, "OK", {"server": "b"})
    opened = Redaction(("headers",), b"").apply(Open(0, 1, {"path": "/?key=secret", "agent": "a"}))
    assert opened == Open(0, 1, {"path": "/", "agent": "a"})


@pytest.mark.parametrize(
    "body",
    [
        {"message": "secret", "chat_history": ["secret"], "preamble": "secret", "tool_results": ["secret"]},
        {"message": {"role": "user", "content": "secret"}, "messageHistory": ["secret"], "message_history": ["secret"]},
        {"message": {}, "override_params": {"a": {"message": "secret"}}},
        {"model": {"name": "a", "messages": ["secret"]}},
        {"texts": ["secret"], "documents": ["secret"]},
        {"prompt": "a", "suffix": "secret"},
    ],
)
def test_prompts_of_every_api_go(body: dict[str, object]) -> None:
    """Cohere's, the unified API's in each of its forms, and what follows a gap; the rest of the body stays."""
    event = Request(0, 1, "POST", "/v1/chat", {}, JsonText("", {**body, "temperature": 0.5}, "py"))
    redacted = Redaction(("prompt",), b"").apply(event)
    assert isinstance(redacted, Request)
    assert b"secret" not in redacted.wire_body()
    assert b'"temperature": 0.5' in redacted.wire_body()


def test_text_that_was_not_taken_apart_may_hold_a_prompt() -> None:
    """An exact text of a client goes wholly."""
    told = Redaction(("prompt",), b"").apply(Frame(0, ">", 1, 'GENERATE {"prompt": [5], "temperature": Infinity}'))
    assert isinstance(told, Frame)
    assert "[5]" not in str(told.wire())


@given(events)
def test_nothing_asked_nothing_changed(event: Event) -> None:
    """Without a kind to redact every event stays as it is."""
    assert Redaction((), b"").apply(event) == event


@given(st.lists(events, max_size=4), st.sets(st.sampled_from(get_args(RedactedPart))))
def test_any_event_can_be_redacted(some: list[Event], what: set[RedactedPart]) -> None:
    """What is left can be written."""
    redaction = Redaction(tuple(what), b"")
    for event in some:
        if (left := redaction.apply(event)) is not None:
            write_event(left, "py")


@given(events)
def test_redacting_twice_changes_nothing_more(event: Event) -> None:
    """A mark is not redacted again."""
    redaction = Redaction(("headers", "prompt"), b"")
    once = redaction.apply(event)
    if isinstance(event, Frame) and isinstance(event.content, JsonText) and isinstance(event.content.value, dict):
        assert once is not None
        assert redaction.apply(once) == once


def test_kinds_are_checked() -> None:
    """Names with commas, in any order; an unknown one is refused with the known ones."""
    assert parse("prompt, headers") == ("headers", "prompt")
    assert parse("") == ()
    with pytest.raises(UsageError, match="cannot redact 'promt'"):
        parse("promt")


def test_keys_are_found() -> None:
    """What looks like a key is named without telling it; ordinary text is not suspected."""
    key = "sk-" + "a1" * 20
    body = JsonText("", {"messages": f"my key is {key}"}, "py")
    (shown,) = likely_keys(Request(0, 1, "POST", "/", {}, body))
    assert key not in shown
    assert likely_keys(Frame(0, ">", 1, f"GENERATE {key}")) == [shown]
    assert likely_keys(generate(0)) == []
    assert likely_keys(Vocab(0, 0, {1: key})) == []


def test_keys_are_left_out() -> None:
    """`***` stands for what looks like a key, for a private key to its end; other text is the same object."""
    key = "sk-" + "a1" * 20
    pem = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----"
    assert without_keys(f"my key is {key}, and\n{pem}\nbye") == "my key is ***, and\n***\nbye"
    assert without_keys("-----BEGIN EC PRIVATE KEY-----\nMIIE") == "***"
    text = "nothing to hide"
    assert without_keys(text) is text


@pytest.mark.parametrize("part", ["prompt", "text"])
def test_turns_go(part: RedactedPart) -> None:
    """The turns of a conversation hold prompts and answers: they go with either."""
    event = Turn(0, 0, {"number": 1, "prompt": "a", "answer": "b"})
    assert Redaction((part,), b"").apply(event) is None
    assert Redaction(("headers",), b"").apply(event) == event


@pytest.mark.parametrize(("direction", "part"), [(">", "prompt"), ("<", "text")])
def test_messages_of_sessions(direction, part):
    """Payloads of an Evergreen session go with the prompts where the client sent them, with the texts else."""
    chunk = {"metadata": {"mimetype": "text/plain"}, "data": "SGk="}
    value = {
        "actions": [{"name": "X"}],
        "nodeFragments": [{"id": "a", "chunkFragment": chunk}, {"id": "b", "chunkFragment": {"ref": "file:secret"}}],
    }
    event = Message(0.0, direction, 1, value)
    outputs = [{"name": "response", "id": "a"}, {"name": "reasoning", "id": "b"}]
    asked = Message(0.0, ">", 1, {"actions": [{"name": "GENERATE", "outputs": outputs}]})

    def after_request(*what):
        redaction = Redaction(what, b"salt")
        redaction.apply(asked)
        return redaction.apply(event)

    assert after_request(*({"prompt", "text", "headers"} - {part})) == event
    redacted = after_request(part)
    text = json.dumps(redacted.value)
    assert "SGk=" not in text
    assert "secret" not in text
    [data, ref] = [each["chunkFragment"] for each in redacted.fragments()]
    marks = (data["data"], ref["ref"]) if part == "text" else (data["data"]["$redacted"], ref["ref"]["n"])
    assert marks == (("Kioq", "***") if part == "text" else ("prompt", 11))
    assert data["metadata"] == chunk["metadata"]
    assert redacted.value["actions"] == value["actions"]
    hidden = Redaction((part,), b"salt").apply(Message(0.0, direction, 1, {"hex": "00ff"}))
    assert "00ff" not in json.dumps(hidden.value)


def test_keys_in_messages_of_sessions():
    """What looks like a key is found in a payload's base64."""
    data = base64.b64encode(b"my key is sk-abcdefghijklmnopqrstuv").decode()
    event = Message(0.0, ">", 1, {"nodeFragments": [{"id": "a", "chunkFragment": {"data": data}}]})
    assert likely_keys(event) == ["sk-abc…uv"]


def test_tokens_of_a_score_are_the_clients():
    """They go with prompts, where a model's stay; with texts all ids of answers go."""
    score = Frame(0, ">", 1, JsonText("SCORE", {"scored": [8], "stream_id": 2}, "py"))
    for part in ("prompt", "text"):
        redaction = Redaction((part,), b"")
        for event in (generate(0, 1), score):
            redaction.apply(event)
        for stream in (1, 2):
            event = redaction.apply(tokens(1, token(8, stream, top_logprobs={"8": -0.5})))
            [entry] = event.content.value
            assert entry["token"] == (None if stream == 2 or part == "text" else 8)


@pytest.mark.parametrize(
    "message", ['{"id": "x", "chunk": {"text": 1}}', '{"id":"x"}', '{"id": "x", "error": {"message": "secret"}}']
)
def test_messages_of_the_unified_socket(message):
    """They are JSON objects without a command: what a model said stays where prompts go, errors and requests do not."""
    redaction = Redaction(("prompt",), b"")
    chunk = {"provider_response": {"message": {"content": "said"}}, "finish_reason": None}
    answer = redaction.apply(Frame(0, "<", 1, json.dumps({"id": "x", "chunk": chunk})))
    assert "said" in answer.content
    assert "secret" not in redaction.apply(Frame(0, "<", 1, message)).content
    asked = redaction.apply(Frame(0, ">", 1, json.dumps({"id": "x", "message": {"content": "secret"}})))
    assert "secret" not in asked.content
    assert json.loads(asked.content)["id"] == "x"


def test_ended_connections_are_forgotten():
    """What is known of streams does not grow with the connections that there were."""
    redaction = Redaction(("headers", "prompt"), b"")
    for number in range(1, 50):
        redaction.apply(generate(0, 1, number))
        redaction.apply(Request(0, number, "POST", "/v1/completions", {}))
        redaction.apply(Close(1, number, "client") if number % 2 else Drop(1, number, {}))
    assert [len(kept) for kept in (redaction._streams, redaction._http, redaction._outputs)] == [0, 0, 0]


def test_prompts_stay_where_texts_go():
    """But for those that may repeat what a model said: with its turns, or after its first answer."""
    redaction = Redaction(("text",), b"")
    first, turns = generate(0), [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    again = Request(0, 2, "POST", "/v1/chat/completions", {}, JsonText("", {"model": "m", "messages": turns}, "py"))
    fresh = Request(0, 2, "POST", "/v1/chat/completions", {}, JsonText("", {"model": "m", "messages": turns[:1]}, "py"))
    assert redaction.apply(first) == first
    assert redaction.apply(fresh) == fresh
    assert b'"b"' not in redaction.apply(again).wire_body()
    redaction.apply(tokens(1, token(8)))
    assert "[5, 6, 7]" not in redaction.apply(first).wire()


RECORDINGS = sorted(Path("recordings").glob("*.lmtp.jsonl*"))
STRUCTURE = frozenset(
    {
        *("id", "object", "type", "role", "model", "status", "code", "error_code", "finish_reason", "stop_reason"),
        *("created_at", "stream_id", "item_id", "call_id", "model_info", "models", "progress", "mimetype", "@type"),
        *(
            "targetSpec",
            "inputs",
            "outputs",
            "actions",
            "childIds",
            "reason",
            "logprobs_mode",
            "phase",
            "before",
            "after",
        ),
    }
)
"""Members whose strings are of the protocol, not of the conversation."""
IDS = ("prompt", "scored", "append", "token", "top_logprobs", "tokens", "bytes")
"""Members that hold ids."""


NAMES_TOO = frozenset({"", "***", "data: [DONE]\n\n", "temperature", "length_penalty", "x_unknown", "GENERATE {"})
"""Strings that are names of members as well, which stay."""


def leaves(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """The strings in a value, each with the name of its member."""
    if isinstance(value, dict):
        for each, one in value.items():
            yield from leaves(one, name if name in STRUCTURE else each)
    elif isinstance(value, list):
        for one in value:
            yield from leaves(one, name)
    elif isinstance(value, str):
        yield name, value


def strings(value: object, name: str = "") -> Iterator[str]:
    """The words in a value: strings outside of structure, lists of ids, the text in base64."""
    if isinstance(value, dict) and name not in STRUCTURE:
        for each, one in value.items():
            if name in ("top_logprobs", "logit_bias", "properties"):
                yield each
            yield from strings(one, each)
    elif isinstance(value, list) and name not in STRUCTURE:
        if name in IDS and len(value) > 1 and all(type(one) is int for one in value):
            yield json.dumps(value)
        for one in value:
            yield from strings(one, name)
    elif isinstance(value, str) and name not in STRUCTURE:
        yield value
        if name == "data":
            yield base64.b64decode(value + "==").decode("utf-8", "replace")


def value_of(event: Event) -> object:
    """The JSON value of an event, or its text where that is no JSON."""
    if isinstance(event, Message):
        return event.value
    content = event.content if isinstance(event, Frame | Piece) else event.body if isinstance(event, Request) else None
    if isinstance(content, JsonText):
        return content.value
    if isinstance(content, str):
        with contextlib.suppress(ValueError):
            return json.loads(content[content.index("{") - ("[{" in content) :])
    return content


def structure_of(event: Event) -> Iterator[str]:
    """The strings of one event that may stay."""
    if isinstance(event, Open):
        yield from (one for one in event.facts.values() if isinstance(one, str))
    yield from (one for name, one in leaves(value_of(event)) if name in STRUCTURE)


def spellings(text: str) -> set[str]:
    """A text as a file may hold it: as it is, JSON-escaped, URL-encoded, in base64."""
    plain = {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], quote(text)}
    return plain | {base64.b64encode(text.encode("utf-8", "replace")).decode().rstrip("=")}


def assert_gone(original: list[Event], path: Path) -> None:
    """No string of these events is in a file. Short ones count where they stand alone, as JSON strings."""
    file = TraceReader(path)
    lines = [line for line in path.read_text().splitlines() if not line.startswith("{")]
    whole = "\n".join(lines)
    left = {one for event in file for one in strings(value_of(event))}
    kept = {one for event in original for one in structure_of(event)} | NAMES_TOO
    for text in {one for event in original for one in strings(value_of(event))} - kept:
        assert text not in left, text
        if len(text) > 8:
            for spelling in spellings(text):
                assert spelling not in whole, text
    assert not re.search(r'"token": ?[0-9]', whole)


def redact(path: Path, out: Path, *what: RedactedPart) -> Path:
    """Write a redacted copy as `trace redact` does."""
    reader, redaction = TraceReader(path), Redaction(what, b"salt")
    write_trace(out, redaction.header(reader.header), redacted(reader, redaction), force=True, sources=[path])
    return out


def shown(path: Path) -> list[tuple[str, str]]:
    """Label and text of each stream of a trace."""
    answers, texts = Answers(stream_of), dict[str, str]()
    for event in TraceReader(path):
        for step in answers.follow(event):
            if isinstance(step, OutputEvent):
                texts[step.stream.label] = texts.get(step.stream.label, "") + (answers.text_of(step) or "")
    return sorted(texts.items())


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.partition(".")[0])
def test_no_word_of_a_recording_stays(path: Path, tmp_path: Path) -> None:
    """Without prompts, texts and headers a trace has nothing that a client or a model said; it stays readable."""
    original = [event for _, event in TraceReader(path).with_offsets(whole=True)]
    out = redact(path, tmp_path / "b.lmtp.jsonl", "prompt", "text", "headers")
    assert_gone(original, out)
    assert [label for label, _ in shown(out)] == [label for label, _ in shown(path)]
    assert TraceReader(out).header.title is None


PROMPT = "What is the capital of France? (zqx7781)"
"""What the client of the wires says, in the places of each API; the model answers without the number."""
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, "user": f"{PROMPT} 1"}
TOOL = {"name": "zebra_finder", "description": f"{PROMPT} 2", "parameters": {"type": "object", "properties": {}}}
BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {**CHAT, "logprobs": True, "top_logprobs": 2, "stop": [f"{PROMPT} 3"]},
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 8, "logprobs": 2, "suffix": None},
    "/v1/completions?echo": {"prompt": PROMPT, "max_tokens": 4, "echo": True, "logprobs": 1},
    "/v1/responses": {
        "input": PROMPT,
        "instructions": f"{PROMPT} 4",
        "metadata": {"zebra_key": f"{PROMPT} 5"},
        "tools": [{"type": "function", **TOOL}],
        "max_output_tokens": 16,
    },
    "/v1/messages": {**CHAT, "system": f"{PROMPT} 6", "stop_sequences": [f"{PROMPT} 7"]},
    "/tokenize": {"prompt": PROMPT},
    "/v1/embeddings": {"input": [PROMPT]},
}
REFUSED: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {**CHAT, "temperature": PROMPT},
    "/v1/messages": {**CHAT, "top_k": PROMPT},
    "/v1/responses": {"input": PROMPT, "tool_choice": PROMPT},
    "/v1/models/none": {"x": PROMPT},
    f"/v1/completions?q={quote(PROMPT)}": {"prompt": {"zebra": PROMPT}},
}


async def use_every_wire(port: int) -> None:
    """Requests of each API, whole, streamed and refused; LMTP with prompts of ids, of text, and scores; Evergreen."""
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession() as session:
        for path, body in [*BODIES.items(), *REFUSED.items()]:
            for streamed in (False, True):
                headers = {"x-zebra": PROMPT, "referer": f"http://page/?{quote(PROMPT)}"}
                async with session.post(f"{url}{path}", json={**body, "stream": streamed}, headers=headers) as answer:
                    await answer.read()
    ids = await tokenize(url)
    frames = (
        f'GENERATE {{"prompt": {ids}, "max_tokens": 8, "top_logprobs": 3, "stream_id": 1}}',
        f'SCORE {{"prompt": {ids[:4]}, "scored": {ids[4:]}, "top_logprobs": 2, "stream_id": 2}}',
        f'GENERATE {{"prompt": "{PROMPT}", "max_tokens": 4, "text": true, "stop": ["{PROMPT}"], "stream_id": 3}}',
        f'GENERATE {{"prompt": {ids}, "temperature": "{PROMPT}", "stream_id": 4}}',
        f"{PROMPT} {{",
    )
    async with connect(f"ws://127.0.0.1:{port}/", compression=None) as client:
        for frame in frames:
            await client.send(frame)
            async with asyncio.timeout(60):
                while '"finish_reason":"' not in (told := str(await client.recv())) and '"error"' not in told:
                    pass
    async with lmtool.session(f"ws://127.0.0.1:{port}/evergreen") as session:
        nodes = await session.call("GENERATE", {"prompt": PROMPT}, ["response", "usage", "status"], max_tokens=8)
        await nodes["response"].value()
        scored = await session.call("SCORE", {"scored": PROMPT}, ["score"])
        await scored["score"].value()


async def tokenize(url: str) -> list[int]:
    """The prompt's ids."""
    async with aiohttp.ClientSession() as session, session.post(f"{url}/tokenize", json={"prompt": PROMPT}) as answer:
        tokens: list[int] = (await answer.json())["tokens"]
        return tokens


@pytest.fixture(scope="module")
def over_every_wire(embedded: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of a real server over every wire, made by the proxy, with the vocabulary."""
    path = tmp_path_factory.mktemp("wires") / "a.lmtp.jsonl"

    async def record() -> None:
        async with proxy_to(embedded.replace("ws://", "http://")) as running:
            await use_every_wire(running.port)
        recorder = Recorder(
            TraceWriter(path, Header(title=PROMPT)), Redaction((), b""), TokenSpelling(load_tokenizer(str(MODEL_DIR)))
        )
        recorder.record(sorted(running.events, key=lambda event: event.time))
        recorder.close(running.events[-1].time)

    asyncio.run(record())
    return path


PARTS: tuple[tuple[RedactedPart, ...], ...] = (("prompt",), ("text",), ("prompt", "text", "headers"))


@pytest.mark.parametrize("what", PARTS, ids="+".join)
def test_no_word_stays_on_any_wire(over_every_wire: Path, tmp_path: Path, what: tuple[RedactedPart, ...]) -> None:
    """What the client said goes with prompts, wherever a server repeats it; what the model said with texts."""
    out = redact(over_every_wire, tmp_path / "b.lmtp.jsonl", *what)
    said, left = shown(over_every_wire), out.read_text()
    assert len(said) > 15
    if "prompt" in what:
        for spelling in spellings(PROMPT) | {"zqx", "zebra", quote_plus(PROMPT)}:
            assert spelling not in (left if "headers" in what else without_headers(left)), what
    if "text" in what:
        answers = {text for _, text in said if len(text) > 8 and text.strip() not in PROMPT}
        assert answers
        for text in answers:
            assert not [each for each in spellings(text) if each in left]
        assert not [text for _, text in shown(out) if text.replace("***", "").strip("\n")]
    else:
        assert [text for _, text in shown(out) if text.replace("***", "")]
    assert [label for label, _ in shown(out)] == [label for label, _ in said]


def without_headers(text: str) -> str:
    """The lines of a trace without the headers in them."""
    return re.sub(r'"headers":\{[^}]*\}', "", text)


async def test_no_word_stays_of_a_gateway(tmp_path: Path) -> None:
    """Its calls of providers, refusals that quote the prompt, and the unified API, over HTTP and its WebSocket."""
    file, path = tmp_path / "pools.yaml", tmp_path / "a.lmtp.jsonl"
    quoting = Behaviour(status=400, body=json.dumps({"error": {"message": f"no: {PROMPT}", "type": "x"}}).encode())
    message = {"message": {"role": "user", "content": PROMPT}}
    async with FakeUpstream(quoting) as bad, FakeUpstream() as good:
        members = [member(kind, good, kind) for kind in ("openai", "anthropic", "cohere", "ollama")]
        pools = [pool(member("bad", bad), name="bad"), *(pool(one, name=f"p{n}") for n, one in enumerate(members))]
        file.write_text("pools:" + "".join(one.removeprefix("pools:") for one in pools).replace("\n\n", "\n"))
        async with program(file, "--record", str(path)) as (_, url, _), aiohttp.ClientSession() as session:
            for name in ("bad", "p0", "p1", "p2", "p3"):
                for streamed in (False, True):
                    body = {**CHAT, "model": name, "stream": streamed}
                    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                        await answer.read()
                async with session.post(f"{url}/v1/language/{name}/chat", json=message) as answer:
                    await answer.read()
                async with session.ws_connect(f"{url}/v1/language/{name}/chatStream") as socket:
                    await socket.send_json({**message, "id": "x"})
                    while "error" not in (told := await socket.receive_json(timeout=10)):
                        if told["chunk"]["finish_reason"]:
                            break
    assert PROMPT in path.read_text()
    assert HELLO.text in path.read_text()
    for what in PARTS:
        left = redact(path, tmp_path / "b.lmtp.jsonl", *what).read_text()
        assert "prompt" not in what or not [each for each in (*spellings(PROMPT), "zqx") if each in left]
        assert "text" not in what or not [each for each in spellings(HELLO.text) if each in left]
        assert "text" in what or HELLO.text in left
