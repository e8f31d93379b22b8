"""Redacted traces are searched for every string of the original, in each form that it may have."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

import aiohttp
import pytest
from websockets.asyncio.client import connect

import lmtool
from lmtool.cli.trace.files import write_trace
from lmtool.inference.text.tokenizer import load_tokenizer
from lmtool.inference.tiny.path import MODEL_DIR
from lmtool.trace.answers import Answers
from lmtool.trace.codec import Header
from lmtool.trace.editing import redacted
from lmtool.trace.events import Event, Frame, JsonText, Message, Open, Piece, Request
from lmtool.trace.reader import TraceReader
from lmtool.trace.recorder import Recorder, TokenSpelling
from lmtool.trace.redaction import Redaction
from lmtool.trace.stream_events import OutputEvent, stream_of
from lmtool.trace.writer import TraceWriter
from tests.cli.test_gateway import program
from tests.fake_upstream import HELLO, Behaviour, FakeUpstream
from tests.gateway.pools.running import member, pool
from tests.trace.test_proxy import proxy_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.trace.redaction import RedactedPart

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
