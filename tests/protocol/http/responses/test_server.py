"""Routes of the Responses API, called by OpenAI's client on a real server, and the store of responses."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import openai
import pydantic
import pytest
from starlette.testclient import TestClient

from lmtool.core.types import ChatMessage
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.responses.server import Store, StoredResponse
from tests.protocol.http.saying import SayingModel, application


def kept(number: str, text: str = "") -> StoredResponse:
    return StoredResponse({"id": number}, (ChatMessage("user", text),), ())


def test_it_is_bounded_in_number() -> None:
    """The one unused longest makes room."""
    store = Store(most=2)
    store.put(kept("a"))
    store.put(kept("b"))
    store.get("a")
    store.put(kept("c"))
    assert len(store) == 2
    assert store.get("a").response["id"] == "a"
    with pytest.raises(ApiError) as raised:
        store.get("b")
    assert (raised.value.status, raised.value.code) == (404, "previous_response_not_found")


def test_it_is_bounded_in_bytes() -> None:
    """Also by what conversations hold; one that is too large alone is not kept."""
    store = Store(max_bytes=500)
    store.put(kept("a", "x" * 300))
    store.put(kept("b", "x" * 300))
    assert len(store) == 1
    store.put(kept("c", "x" * 600))
    assert len(store) == 0


def test_it_forgets() -> None:
    """Once; and there is room again."""
    store = Store(max_bytes=400)
    store.put(kept("a", "x" * 300))
    store.delete("a")
    store.put(kept("b", "x" * 300))
    assert len(store) == 1
    with pytest.raises(ApiError):
        store.delete("a")


MODEL = "lmtool-tiny"
FRANCE = "What is the capital of France?"
WEATHER = {
    "type": "function",
    "name": "weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client(embedded: str) -> Iterator[openai.OpenAI]:
    base = embedded.replace("ws://", "http://") + "v1"
    with openai.OpenAI(base_url=base, api_key="anything", max_retries=0) as made:
        yield made


def test_a_conversation(client: openai.OpenAI) -> None:
    """An answer, one that goes on from it, what is remembered, and what is forgotten."""
    first = client.responses.create(model=MODEL, input=FRANCE, temperature=0)
    assert first.output_text == "The capital of France is Paris."
    assert first.status == "completed"
    second = client.responses.create(
        model=MODEL, input="Who are you?", previous_response_id=first.id, temperature=0, store=False
    )
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    items = client.responses.input_items.list(first.id).data
    assert items[0].content == FRANCE  # type: ignore[union-attr]
    client.responses.delete(first.id)
    for number in (first.id, second.id):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(number)


def test_streamed(client: openai.OpenAI) -> None:
    """The same text by typed events."""
    with client.responses.stream(model=MODEL, input=FRANCE, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == "The capital of France is Paris."
    assert final.usage.output_tokens >= len(deltas)


def test_a_call_and_its_result(client: openai.OpenAI) -> None:
    """What must be called is called by its schema; the result goes into the next request."""
    with client.responses.stream(
        model=MODEL,
        input="How is the weather?",
        tools=[WEATHER],  # type: ignore[list-item]
        tool_choice="required",
        parallel_tool_calls=False,
    ) as stream:
        final = stream.get_final_response()
    (call,) = final.output
    assert call.type == "function_call"
    assert call.parsed_arguments["city"] in {"Rome", "Oslo"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    answer = client.responses.create(model=MODEL, input=[result], previous_response_id=final.id, max_output_tokens=9)  # type: ignore[list-item]
    assert answer.usage.input_tokens > 0


def test_a_parsed_answer(client: openai.OpenAI) -> None:
    """A type of pydantic is the form of the text."""

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=6)
        age: int = pydantic.Field(ge=0, le=99)

    answer = client.responses.parse(model=MODEL, input="Who?", text_format=Person, max_output_tokens=60)
    assert isinstance(answer.output_parsed, Person)


def test_logprobs(client: openai.OpenAI) -> None:
    """Where `include` asks for them."""
    answer = client.responses.create(
        model=MODEL, input=FRANCE, temperature=0, top_logprobs=2, include=["message.output_text.logprobs"]
    )
    spelt = answer.output[0].content[0].logprobs  # type: ignore[union-attr]
    assert "".join(entry.token for entry in spelt).startswith(answer.output_text)
    assert all(len(entry.top_logprobs) == 2 for entry in spelt)


def test_errors(client: openai.OpenAI) -> None:
    """A status before anything was said, also for a stream; an event afterwards."""
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as raised:
            client.responses.create(model=MODEL, input="a", temperature=9, stream=stream)  # type: ignore[call-overload]
        assert raised.value.param == "temperature"
        with pytest.raises(openai.BadRequestError) as raised:
            client.responses.create(model=MODEL, input="fox " * 2000, stream=stream)  # type: ignore[call-overload]
        assert raised.value.code == "context_length_exceeded"
    with TestClient(application(SayingModel("a" * 9, fails_after=4))) as http:
        text = http.post("/v1/responses", json={"input": "a", "stream": True}).text
        assert text.rstrip().splitlines()[-2] == "event: response.failed"
        answer = http.post("/v1/responses", json={"input": "a"})
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, "it broke; try again")


def test_who_asks_for_none_is_told(client: openai.OpenAI) -> None:
    """An unknown id is 404 in OpenAI's form."""
    answer = httpx2.get(f"{client.base_url}responses/resp_0")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "previous_response_not_found")
