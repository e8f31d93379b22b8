"""The routes, asked by OpenAI's own client of a real server on the embedded model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import openai
import pydantic
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.inference.engine.config import EngineConfig
from lmtool.net.subprocesses.process import LONG
from lmtool.protocol.http.http import MAX_BYTES
from lmtool.protocol.http.http_protocol import MAX_HEAD_BYTES
from lmtool.serving.composition import ModelsConfig
from lmtool.serving.config import ServiceConfig
from tests.conftest import STORIES
from tests.serving.running import running

MODEL = "lmtool-tiny"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
NUMBERS = {
    "type": "json_schema",
    "name": "numbers",
    "schema": {"type": "array", "items": {"type": "integer", "minimum": 10000}, "minItems": 200},
}
COUNT = {"name": "count", "input_schema": {"properties": {"all": NUMBERS["schema"]}, "required": ["all"]}}


@pytest.fixture(scope="module")
def base(embedded: str) -> str:
    return embedded.replace("ws://", "http://") + "v1"


@pytest.fixture(scope="module")
def client(base: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base, api_key="anything", max_retries=0) as made:
        yield made


def test_models(client: openai.OpenAI) -> None:
    """The list and one by name; an unknown one is 404."""
    (model,) = client.models.list()
    assert model.id == MODEL
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.models.retrieve("other")


def test_chat(client: openai.OpenAI) -> None:
    """Whole and streamed answers are the same text; usage counts; logprobs spell the text."""
    whole = client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0, logprobs=True, top_logprobs=2)
    (choice,) = whole.choices
    assert choice.message.content == "The capital of France is Paris."
    assert choice.finish_reason == "stop"
    content = choice.logprobs.content
    assert "".join(entry.token for entry in content).startswith(choice.message.content)
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in content)
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=FRANCE, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == choice.message.content
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == len(content)


def test_a_stream_ends_with_done(base: str) -> None:
    """Each event is a line of JSON; the last one is `[DONE]`."""
    body = {"model": MODEL, "messages": FRANCE, "stream": True, "max_tokens": 3}
    with httpx2.stream("POST", f"{base}/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert all(json.loads(line.removeprefix("data: "))["object"] == "chat.completion.chunk" for line in lines[:-1])


def test_several_answers_to_several_prompts(client: openai.OpenAI) -> None:
    """Prompts times `n` answers in order; a seed makes each the same again, and those to one prompt differ."""
    ask = {"model": MODEL, "prompt": ["Once upon a time", "Hello"], "n": 3, "max_tokens": 12, "seed": 4}
    first, second = (client.completions.create(**ask) for _ in range(2))  # type: ignore[call-overload]
    texts = [choice.text for choice in first.choices]
    assert [choice.text for choice in second.choices] == texts
    assert [choice.index for choice in first.choices] == list(range(6))
    assert len(set(texts[:3])) > 1
    assert first.usage.prompt_tokens == len(httpx_tokens(client, "Once upon a time")) + len(
        httpx_tokens(client, "Hello")
    )


def httpx_tokens(client: openai.OpenAI, text: str) -> list[int]:
    answer = httpx2.post(f"{client.base_url}tokenize", json={"model": MODEL, "prompt": text}).json()
    assert answer["count"] == len(answer["tokens"])
    back = httpx2.post(f"{client.base_url}detokenize", json={"model": MODEL, "tokens": answer["tokens"]}).json()
    assert back == {"prompt": text}
    tokens: list[int] = answer["tokens"]
    return tokens


def test_the_likelihood_of_a_text(client: openai.OpenAI) -> None:
    """`echo` with `logprobs` and no new token scores the prompt; the first token comes behind nothing."""
    text = "The capital of France is Paris."
    answer = client.completions.create(model=MODEL, prompt=text, max_tokens=0, echo=True, logprobs=1)
    (choice,) = answer.choices
    assert choice.text == text
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])
    assert "".join(choice.logprobs.tokens) == text
    ids = httpx_tokens(client, text)
    again = client.completions.create(model=MODEL, prompt=ids, max_tokens=0, echo=True, logprobs=1)
    assert again.choices[0].logprobs.token_logprobs == choice.logprobs.token_logprobs


@pytest.mark.parametrize("stream", [False, True])
def test_json_by_schema(client: openai.OpenAI, stream: bool) -> None:
    """Whatever the temperature, the answer is JSON that the schema allows."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}
    for seed in range(3):
        answer = client.chat.completions.create(
            model=MODEL,
            messages=FRANCE,
            temperature=1.5,
            seed=seed,
            response_format=form,
            stream=stream,
            max_tokens=200,
        )
        text = (
            "".join(c.choices[0].delta.content or "" for c in answer) if stream else answer.choices[0].message.content
        )
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "person"}}])
def test_a_tool_that_must_be_called(client: openai.OpenAI, choice: object) -> None:
    """Whatever the temperature, the arguments are what the tool's schema allows; streamed they are the same."""
    person = {"type": "function", "function": {"name": "person", "strict": True, "parameters": SCHEMA}}
    ask = {"model": MODEL, "messages": FRANCE, "tools": [person], "tool_choice": choice, "max_tokens": 200}
    for seed in range(2):
        ask |= {"seed": seed, "temperature": 1.3, "parallel_tool_calls": False}
        (answer,) = client.chat.completions.create(**ask).choices  # type: ignore[call-overload]
        (call,) = answer.message.tool_calls
        assert (answer.finish_reason, answer.message.content, call.function.name) == ("tool_calls", None, "person")
        jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
        with client.chat.completions.stream(**ask) as stream:
            final = stream.get_final_completion().choices[0].message.tool_calls[0]
        assert final.function.arguments == call.function.arguments


def test_tools_that_may_be_called(client: openai.OpenAI) -> None:
    """The embedded model calls a tool where the question is for it, else it answers; a tool's result is read."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": "get_weather", "description": "Get the current weather in a city.", "parameters": city}
    ask: Any = {"model": MODEL, "temperature": 0, "tools": [{"type": "function", "function": function}]}
    france = client.chat.completions.create(**ask, messages=FRANCE)
    assert france.choices[0].message.content == "The capital of France is Paris."
    question = {"role": "user", "content": "What is the weather like in Rome?"}
    (choice,) = client.chat.completions.create(**ask, messages=[question]).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Rome"})
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"city": "Rome", "weather": "snowy"}'}
    after = client.chat.completions.create(**ask, messages=[question, choice.message, result])
    assert "snowy" in after.choices[0].message.content


def test_a_form_beside_tools(client: openai.OpenAI) -> None:
    """Whatever is drawn is an answer in the form, or a call that the strict tool's schema allows."""
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": SCHEMA}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}
    ask = {"model": MODEL, "messages": FRANCE, "temperature": 1.3, "tools": [tool], "response_format": form}
    for seed in range(3):
        message = client.chat.completions.create(**ask, max_tokens=200, seed=seed).choices[0].message  # type: ignore[call-overload]
        parts = [call.function.arguments for call in message.tool_calls or ()] or [message.content]
        for part in parts:
            jsonschema.validate(json.loads(part), SCHEMA)


def test_a_parsed_answer(client: openai.OpenAI) -> None:
    """A type of pydantic, as the form of the answer and as a tool's arguments."""

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=6)
        age: int = pydantic.Field(ge=0, le=99)

    ask = {"model": MODEL, "messages": FRANCE, "max_tokens": 90}
    answer = client.chat.completions.parse(**ask, response_format=Person)  # type: ignore[arg-type]
    assert isinstance(answer.choices[0].message.parsed, Person)
    tool = openai.pydantic_function_tool(Person)
    called = client.chat.completions.parse(**ask, tools=[tool], tool_choice="required", parallel_tool_calls=False)  # type: ignore[arg-type]
    assert isinstance(called.choices[0].message.tool_calls[0].function.parsed_arguments, Person)


def test_no_embeddings_are_made_up(client: openai.OpenAI) -> None:
    """A model that continues texts has none, and the error says so."""
    with pytest.raises(openai.BadRequestError, match="no embedding") as raised:
        client.embeddings.create(model=MODEL, input="a")
    assert raised.value.code == "unsupported_model"


def test_tokens_of_messages(base: str) -> None:
    """`/tokenize` takes a conversation, too: what the chat template makes of it."""
    told = httpx2.post(f"{base}/tokenize", json={"messages": FRANCE}).json()
    text = httpx2.post(f"{base}/detokenize", json={"tokens": told["tokens"]}).json()["prompt"]
    assert FRANCE[0]["content"] in text
    assert httpx2.post(f"{base}/tokenize", json={"prompt": "a", "tokens": 1}).json()["error"]["param"] == "tokens"


def test_a_choice(client: openai.OpenAI) -> None:
    """VLLM's spelling in `extra_body`."""
    answer = client.chat.completions.create(
        model=MODEL, messages=FRANCE, extra_body={"structured_outputs": {"choice": ["Rome", "Oslo"]}}
    )
    assert answer.choices[0].message.content in {"Rome", "Oslo"}


@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(client: openai.OpenAI, stream: bool) -> None:
    """A status and the member's name, also for a stream: never an event."""
    for more, param in (
        ({"temperature": 9}, "temperature"),
        ({"max_token": 9}, "max_token"),
        ({"guided_regex": "((("}, None),
        ({"logit_bias": {"99999999": 1}}, None),
    ):
        with pytest.raises(openai.BadRequestError) as raised:
            client.chat.completions.create(model=MODEL, messages=FRANCE, stream=stream, extra_body=more)
        assert raised.value.param == param
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=FRANCE, stream=stream)


def test_a_prompt_that_is_too_long(client: openai.OpenAI) -> None:
    """OpenAI's own code for it."""
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=MODEL, prompt="fox " * 2000)
    assert raised.value.code == "context_length_exceeded"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"[" * 100_000, b" " * (MAX_BYTES + 1)])
def test_what_is_no_request(base: str, body: bytes) -> None:
    """Anything may be sent; each gets an error object."""
    answer = httpx2.post(f"{base}/chat/completions", content=body, timeout=60)  # a helper that reads it may start first
    assert answer.status_code in {400, 413}
    assert answer.json()["error"]["message"]


TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}{{ x }}"
)


class TestThroughWorkers:
    """A server without a model of its own: others compute, and apply their chat template."""

    @pytest.fixture
    async def urls(self, tmp_path: Path) -> AsyncIterator[list[str]]:
        """A server of the embedded model under another template, and a balancer over it that knows nothing of it."""
        template = tmp_path / "chat.jinja"
        template.write_text(TEMPLATE)
        models = ModelsConfig(chat_template=str(template), served_model_name=("own",))
        async with AsyncExitStack() as stack:
            _, worker = await stack.enter_async_context(running(ServiceConfig(models, EngineConfig(threads=1))))
            balancer = ServiceConfig(ModelsConfig(str(STORIES)), workers=(worker,), balances=True)
            _, front = await stack.enter_async_context(running(balancer))
            yield [where.replace("ws", "http", 1) for where in (worker, front)]

    async def test_tools(self, urls: list[str]) -> None:
        """They are rendered by the worker's template, as are its variables; answers are the same as from the worker."""
        tools = [{"type": "function", "function": TOOL}]
        ask = {
            "messages": FRANCE,
            "tools": tools,
            "chat_template_kwargs": {"x": "!"},
            "temperature": 0,
            "max_tokens": 9,
        }
        async with httpx2.AsyncClient(timeout=60) as http:
            answers = [(await http.post(f"{url}v1/chat/completions", json=ask)).json() for url in urls]
            plain = (await http.post(f"{urls[1]}v1/chat/completions", json={**ask, "tools": []})).json()
            listed = (await http.post(f"{urls[0]}tokenize", json={"messages": FRANCE, "tools": tools})).json()
            refused = await http.post(f"{urls[1]}tokenize", json={"messages": FRANCE})
            begun = [*FRANCE, {"role": "assistant", "content": "The capital"}]
            message = (await http.post(f"{urls[1]}v1/messages", json={"messages": begun, "max_tokens": 5})).json()
            bare = (await http.post(f"{urls[1]}v1/messages", json={"messages": FRANCE, "max_tokens": 5})).json()
        assert answers[0]["choices"] == answers[1]["choices"]
        assert {answer["usage"]["prompt_tokens"] for answer in answers} == {listed["count"] + 1}
        assert plain["usage"]["prompt_tokens"] < listed["count"]
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
        tokens = [
            sum(one["usage"][name] for name in ("input_tokens", "cache_read_input_tokens")) for one in (bare, message)
        ]
        assert tokens[0] < tokens[1]


TOOL = {"name": "count", "parameters": COUNT["input_schema"]}
LONG_BODIES = [
    ("chat/completions", {"messages": FRANCE, "response_format": {"type": "json_object"}, "n": 2, "logprobs": True}),
    ("chat/completions", {"messages": FRANCE, "tools": [{"type": "function", "function": TOOL}], "stop": ["a"]}),
    ("chat/completions", {"messages": FRANCE, "guided_choice": ["yes", "no"], "logit_bias": {"5": 1}}),
    ("chat/completions", {"messages": FRANCE, "colour": "red"}),
    ("completions", {"prompt": ["One", "Two"], "echo": True, "logprobs": 1, "regex": "x"}),
    ("completions", {"prompt": ["One", [5, 6]], "echo": True, "logprobs": 1}),
    ("responses", {"input": "Hi", "tools": [{"type": "function", **TOOL}], "max_output_tokens": 4}),
    ("responses", {"input": "Hi", "previous_response_id": "resp_0"}),
    ("messages", {"messages": FRANCE, "max_tokens": 4, "system": [{"type": "text", "text": "Be kind."}]}),
    ("messages/count_tokens", {"messages": FRANCE, "tools": [COUNT]}),
    ("tokenize", {"messages": FRANCE}),
    ("detokenize", {"tokens": [5, 6]}),
    ("embeddings", {"input": "a"}),
]


CHANGES = re.compile(
    r'(resp|msg|call|fc|chatcmpl|cmpl)[-_]\w+|"(created|completed|cached|cache|input_tokens)\w*":[\d.]+'
)
"""Of an answer, when the same is asked again."""


@pytest.mark.parametrize(("path", "body"), LONG_BODIES)
def test_long_bodies(base: str, path: str, body: dict[str, object]) -> None:
    """Whatever is asked, a helper that reads it finds the same as the server itself."""
    brief = {"max_tokens": 4} if "completions" in path else {}
    still = {} if "token" in path else {"temperature": 0}
    asked = json.dumps({"model": MODEL, **brief, **still, **body})
    short, long = (httpx2.post(f"{base}/{path}", content=text, timeout=60) for text in (asked, asked + " " * LONG))
    assert short.status_code == long.status_code
    assert CHANGES.sub("", short.text) == CHANGES.sub("", long.text)


ENDLESS: dict[str, dict[str, object]] = {
    "completions": {"prompt": [5], "max_tokens": 490, "n": 20, "ignore_eos": True},
    "chat/completions": {"messages": FRANCE, "n": 20, "ignore_eos": True},
    "responses": {"input": "Hi", "text": {"format": NUMBERS}},
    "messages": {"messages": FRANCE, "max_tokens": 490, "tools": [COUNT], "tool_choice": {"type": "any"}},
}


@pytest.mark.parametrize("path", ENDLESS)
async def test_who_hangs_up_stops_the_work(base: str, embedded: str, path: str) -> None:
    """A client that leaves ends its streams, streamed or not: soon nothing runs."""
    from lmtool.protocol.lmtp.client import LmtpClient

    async with LmtpClient(embedded) as watcher:
        for stream in (False, True):
            async with httpx2.AsyncClient() as http:
                asking = asyncio.create_task(http.post(f"{base}/{path}", json={**ENDLESS[path], "stream": stream}))
                while (await watcher.info()).running == 0:
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            async with asyncio.timeout(10):
                while (await watcher.info()).running:
                    await asyncio.sleep(0)


def test_constraints_show_in_the_metrics(client: openai.OpenAI, embedded: str) -> None:
    """What was compiled is counted where everything else is."""
    client.chat.completions.create(model=MODEL, messages=FRANCE, max_tokens=5, extra_body={"guided_regex": "[ab]{3}"})
    text = httpx2.get(embedded.replace("ws://", "http://") + "metrics").text
    (line,) = [line for line in text.splitlines() if line.startswith("lmtool_guide_compiles_total ")]
    assert int(line.split()[1]) >= 1
    assert 'lmtool_requests_total{command="GENERATE",ending="stop"}' in text


async def test_lmtp_is_the_same_model(client: openai.OpenAI, embedded: str) -> None:
    """One port, one model: greedy ids over LMTP are the text over HTTP."""
    from lmtool.core.streams import stream
    from lmtool.protocol.lmtp.client import LmtpClient

    request = GenerateRequest(1, "Once upon a time", SamplingParams(max_tokens=9), text=True)
    async with LmtpClient(embedded) as lmtp:
        text = "".join([output.text or "" async for output in stream(lmtp, request)])
    answer = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=9, temperature=0)
    assert answer.choices[0].text == text


class TestHeads:
    """Request lines and headers, which come before anybody is known."""

    async def test_a_head_without_end(self, base: str) -> None:
        """The connection is closed after 64 KiB, whatever the bytes come in."""
        url = httpx2.URL(base)
        for line in (b"GET /%s", b"GET / HTTP/1.1\r\nhost: x\r\nx-long: %s", b"GET / HTTP/1.1\r\nhost: x\r\n%s"):
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(line.partition(b"%s")[0])
            with contextlib.suppress(ConnectionError):
                for _ in range(MAX_HEAD_BYTES // 1000 + 20):
                    writer.write(b"a: b\r\n" * 167 if line.endswith(b"\n%s") else b"x" * 1000)
                    await writer.drain()
                async with asyncio.timeout(10):
                    assert b" 400 " in await reader.readline()
                    assert await reader.read() != b""
            writer.close()

    def test_a_long_body_is_no_head(self, base: str) -> None:
        """It is read in pieces as large, one request after the other on a connection."""
        with httpx2.Client() as http:
            for _ in range(2):
                body = {"model": MODEL, "prompt": "a", "max_tokens": 1, "user": "x" * (MAX_HEAD_BYTES * 3)}
                assert http.post(f"{base}/completions", json=body).status_code == 200


ASKED: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": FRANCE, "max_tokens": 300, "ignore_eos": True},
    "completions": {"prompt": "Once", "max_tokens": 300, "ignore_eos": True},
    "responses": {"input": "Hi", "max_output_tokens": 300, "ignore_eos": True},
    "messages": {"messages": FRANCE, "max_tokens": 300},
}
"""A long answer by each route that generates."""


@pytest.mark.parametrize("path", ASKED)
def test_deadlines(base: str, path: str) -> None:
    """Each route takes a deadline in seconds: 504 where it is over, 400 that names it for what is none."""
    late = httpx2.post(f"{base}/{path}", json={**ASKED[path], "deadline": 0.0005})
    assert (late.status_code, late.headers["x-should-retry"]) == (504, "false")
    assert "the deadline of 0.0005 s is over" in late.json()["error"]["message"]
    for wrong in (0, -1, 1e9, "soon"):
        refused = httpx2.post(f"{base}/{path}", json={**ASKED[path], "deadline": wrong})
        assert refused.status_code == 400
        assert "expected a number above 0, at most 86400" in refused.json()["error"]["message"]


def test_deadline_of_a_stream(base: str) -> None:
    """What was written before comes, then the error."""
    asked, events = {**ASKED["completions"], "max_tokens": 400, "logprobs": 1, "stream": True}, [{}]
    for deadline in (0.05, 0.2, 1.0):  # a busy machine may not have the first token by then
        if len(events) < 2:
            answer = httpx2.post(f"{base}/completions", json={**asked, "deadline": deadline})
            events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert len(events) > 1
    assert all("choices" in event for event in events[:-1])
    assert events[-1]["error"]["code"] == "timeout"


async def test_a_server_on_its_way_down_says_when_to_come_back() -> None:
    """Every route answers 503 (Anthropic's 529) with `Retry-After`, and so does the handshake of LMTP."""
    async with running(ServiceConfig(ModelsConfig(STORIES), EngineConfig(device="cpu"))) as (service, where):
        root = where.replace("ws://", "http://").rstrip("/")
        async with httpx2.AsyncClient() as http, connect(where) as busy:
            documented = (await http.get(f"{root}/v1/openapi.json")).json()["paths"]
            await busy.send('GENERATE {"prompt": [1], "stream_id": 1, "max_tokens": 500, "ignore_eos": true}')
            await busy.recv()
            draining = asyncio.create_task(service.drain(0.5))
            await asyncio.sleep(0)
            asked = [(method, path) for path, methods in documented.items() for method in methods]
            assert len(asked) > 10
            for method, path in [*asked, ("get", "/health")]:
                answer = await http.request(method, root + path.replace("{", "").replace("}", ""))
                assert answer.status_code in {503, 529}, path
                assert int(answer.headers["retry-after"]) >= 1, path
            with pytest.raises(InvalidStatus) as refused:
                async with connect(where):
                    pass
            assert (refused.value.response.status_code, refused.value.response.headers["retry-after"]) == (503, "1")
            await draining
