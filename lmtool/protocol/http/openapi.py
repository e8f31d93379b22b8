"""The OpenAPI 3.1 document of all routes: their requests are the structs that decode them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from lmtool import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.protocol.http.http import Endpoint

FRONT = "/v1"
"""Before every path; without it they are served as well."""
_ERROR = {
    "description": "The request cannot be served: what is wrong, and the field to blame.",
    "content": {"application/json": {"schema": {"type": "object", "required": ["error"]}}},
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The document of these endpoints, as JSON."""
    bodies = list({endpoint.body: None for endpoint in endpoints if endpoint.body is not None})
    references, schemas = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        body = None if endpoint.body is None else references[bodies.index(endpoint.body)]
        path = FRONT + endpoint.path.replace(":path}", "}")
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, path, body)
    return {
        "openapi": "3.1.0",
        "info": {"title": "lmtool", "version": __version__, "description": "OpenAI's and Anthropic's APIs."},
        "paths": paths,
        "components": {"schemas": schemas, "responses": {"Error": _ERROR}},
    }


def _operation(endpoint: Endpoint, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": (endpoint.handler.__doc__ or "").partition("\n")[0],
        "responses": {
            "200": {"description": "The answer; as server-sent events where the request has `stream`."},
            "default": {"$ref": "#/components/responses/Error"},
        },
    }
    if names := re.findall(r"\{(\w+)\}", path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation
