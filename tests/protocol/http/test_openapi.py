"""The OpenAPI document against the routes and the structs that are served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from lmtool.protocol.http.decoding import Body
from lmtool.protocol.http.server import OpenAIServer
from tests.protocol.http.saying import SayingModel, application
from tests.scripted_model import ScriptedModel


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
