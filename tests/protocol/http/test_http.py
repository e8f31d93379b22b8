"""Bodies, server-sent events, disconnects, and the OpenAPI document of all routes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import weakref
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from lmtool.core.prompt_limits import PromptLimits
from lmtool.net.subprocesses.process import LONG
from lmtool.protocol.http.decoding import Body
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.http import MAX_BYTES, EventStream, read_request, to_json, unless_gone
from lmtool.protocol.http.server import OpenAIServer
from tests.protocol.http.saying import SayingModel, application
from tests.scripted_model import ScriptedModel


def request(*messages: dict[str, Any]) -> Request:
    left = list(messages)

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def test_a_body() -> None:
    """A JSON object, in however many pieces."""
    pieces = [{"type": "http.request", "body": part, "more_body": part != b"1}"} for part in (b'{"a": ', b"1}")]
    assert await read_request(request(*pieces), dict) == {"a": 1}


@pytest.mark.parametrize(("body", "status"), [(b"[]", 400), (b"{", 400), (b"x" * (MAX_BYTES + 1), 413)])
async def test_what_is_no_body(body: bytes, status: int) -> None:
    """Anything else, or more than the limit, is an error that says so."""
    with pytest.raises(ApiError) as raised:
        await read_request(request({"type": "http.request", "body": body}), dict)
    assert raised.value.status == status


def length(members: Mapping[str, Any]) -> tuple[int, int]:
    """How long `a` is, and which process says so."""
    if "b" in members:
        raise ApiError(400, "b is not known", param="b")
    return len(members["a"]), os.getpid()


async def test_a_long_body() -> None:
    """It is read by a helper, by the route's own reader, whose errors arrive whole."""
    body = b'{"a": "%s"}' % (b"x" * LONG)
    count, process = await read_request(request({"type": "http.request", "body": body}), length)
    assert count == LONG
    assert process != os.getpid()
    with pytest.raises(ApiError, match="b is not known") as raised:
        await read_request(request({"type": "http.request", "body": body[:-1] + b', "b": 1}'}), length)
    assert (raised.value.status, raised.value.param) == (400, "b")


@dataclass(frozen=True)
class Asking:
    """A request with a prompt."""

    model: str | None
    prompt: str

    @staticmethod
    def read(members: Mapping[str, Any]) -> Asking:
        """Read it."""
        return Asking(members.get("model"), members["prompt"])

    def check(self, limits: PromptLimits) -> None:
        """As any prompt."""
        limits.check_prompt(self.prompt)


@pytest.mark.parametrize("length", [200, LONG])
async def test_limits(length: int) -> None:
    """What cannot fit is refused where it is read, wherever that is, by the limits of the model that is named."""
    limits = {"small": PromptLimits("small", 10, 100), None: PromptLimits("wide", 20, 1 << 20)}
    body = b'{"model": "%s", "prompt": "' + b"x" * length + b'"}'
    found = await read_request(request({"type": "http.request", "body": body % b"wide"}), Asking.read, limits)
    assert len(found.prompt) == length
    with pytest.raises(ApiError, match=f"too long: at least {-(-length // 10)} tokens > 10 maximum") as raised:
        await read_request(request({"type": "http.request", "body": body % b"small"}), Asking.read, limits)
    assert (raised.value.status, raised.value.code) == (400, "context_length_exceeded")


async def waiting() -> dict[str, Any]:
    """A client that stays."""
    await asyncio.Event().wait()
    return {}


async def sent(response: EventStream) -> list[str]:
    """The bodies of a response, one for each write."""
    bodies = []

    async def send(message: Any) -> None:
        bodies.append(message.get("body", b"").decode())

    await (await response.start(waiting))({}, waiting, send)
    return bodies[1:]


async def test_events() -> None:
    """Those of a step in one write; what fails at first is raised, what fails later is an event."""

    async def steps(fails_at: int) -> AsyncGenerator[list[dict[str, Any]], None]:
        for number in range(3):
            if number == fails_at:
                raise ApiError(500, "it broke")
            yield [{"type": "t", "n": number}] * 2

    with pytest.raises(ApiError):
        await sent(EventStream(steps(0)))
    first, second, end = await sent(EventStream(steps(2)))
    assert first == 'data: {"type":"t","n":0}\n\n' * 2
    assert '"n":1' in second
    assert '"message":"it broke"' in end
    assert end.endswith("data: [DONE]\n\n")
    *_, end = await sent(EventStream(steps(1), named=True, failed=lambda error: {"type": "bad"}, end=b""))
    assert end == 'event: bad\ndata: {"type":"bad"}\n\n'


async def test_a_client_that_leaves_before_the_first_event() -> None:
    """Its streams end: it need not wait for a long prompt to be computed."""
    ended = asyncio.Event()

    async def steps() -> AsyncGenerator[list[dict[str, Any]], None]:
        try:
            await asyncio.Event().wait()
            yield []
        finally:
            ended.set()

    with pytest.raises(ClientDisconnect):
        await EventStream(steps()).start(request({"type": "http.disconnect"}).receive)
    assert ended.is_set()


def test_json_that_msgspec_cannot_write() -> None:
    """Half a surrogate pair and large integers, which a model's JSON may have."""
    assert to_json({"a": "é"}) == '{"a":"é"}'.encode()
    for value in ({"a": "\ud800"}, {"a": 2**70}):
        assert json.loads(to_json(value)) == value


async def test_a_client_that_hangs_up_ends_the_work() -> None:
    """The work is cancelled, and nothing is answered."""
    ended = asyncio.Event()

    async def work() -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return Response()

    with pytest.raises(ClientDisconnect):
        await unless_gone(request({"type": "http.disconnect"}).receive, work())
    assert ended.is_set()

    async def quick() -> Response:
        return Response("x")

    assert (await unless_gone(request().receive, quick())).body == b"x"


class HeldError(ApiError):
    """An error of which it can be told when it is gone."""


async def test_an_error_is_gone_once_it_is_answered() -> None:
    """And with it all that was asked: it does not wait for garbage to be collected."""
    known: list[weakref.ref[HeldError]] = []

    async def fails() -> Response:
        error = HeldError(400, "no")
        known.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(HeldError):
            await unless_gone(request().receive, fails())
        await asyncio.sleep(0)
        assert known[0]() is None
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def document() -> Any:
    with TestClient(application(SayingModel())) as http:
        return http.get("/openapi.json").json()


def requests(kind: type) -> Iterator[type]:
    """All structs of whole requests that are not the base of another one, but for those of tests."""
    below = [one for one in kind.__subclasses__() if one.__module__.startswith("lmtool.")]
    for one in below:
        yield from requests(one)
    if not below:
        yield kind


def test_every_route(document: Any) -> None:
    """Each path with its methods, with a summary; nothing else."""
    routes = [
        route for route in OpenAIServer(SayingModel(), catalogue=ScriptedModel()).routes() if isinstance(route, Route)
    ]
    served = {
        (route.path.replace(":path}", "}"), method.lower())
        for route in routes
        for method in route.methods or ()
        if method != "HEAD" and route.path.startswith("/v1")
    }
    assert {(path, method) for path, methods in document["paths"].items() for method in methods} == served
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert all(operation["summary"] for operation in operations)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            names = {parameter["name"] for parameter in operation.get("parameters", ())}
            assert all(f"{{{name}}}" in path for name in names)
            assert len(names) == path.count("{")


def test_every_request(document: Any) -> None:
    """Each struct is the body of a route, with the ranges of its fields; every reference leads somewhere."""
    schemas = document["components"]["schemas"]
    named = {
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for methods in document["paths"].values()
        for operation in methods.values()
        if "requestBody" in operation
    }
    assert named == {one.__name__ for one in requests(Body)}
    assert document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["required"]
    temperature = schemas["ChatCompletionRequest"]["properties"]["temperature"]["anyOf"][0]
    assert (temperature["minimum"], temperature["maximum"]) == (0, 2)
    assert schemas["CompletionRequest"]["required"] == ["prompt"]
    assert schemas["MessagesRequest"]["properties"]["temperature"]["anyOf"][0]["maximum"] == 1
    found = set(references(document))
    assert found
    for reference in found:
        place = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]


def references(value: Any) -> Iterator[str]:
    """All references of a JSON document."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for one in value.values():
            yield from references(one)
    elif isinstance(value, list):
        for one in value:
            yield from references(one)
