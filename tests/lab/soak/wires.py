"""Which wires a server speaks, found by asking it, and what it serves."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import ConnectError, ServerError, TimeLimitError, UsageError
from lmtool.net.access.outgoing import DENIED, denied
from tests.lab.soak.attacks import GRPC, ROUTES, SOCKETS, request_body
from tests.lab.soak.connection import Connection, ConnectionEnded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.lab.soak.connection import Address, Head

PROBE_TOKENS = 16
"""The fewest that every API allows."""
PROBE_SECONDS = 120.0
"""Longest wait for an answer of an idle server, which may still load its model."""
_NO_ROUTE = frozenset({404, 405, 426, 501})


@dataclass(frozen=True, slots=True)
class SoakTarget:
    """The wires of a server."""

    wires: tuple[str, ...]
    """Of `attacks.SOCKETS`, `attacks.ROUTES` and `attacks.GRPC`, in this order."""
    model: str = ""
    """The model that requests name; empty where none is needed."""
    pool: str = ""
    """The pool that requests of the unified API name."""
    grpc: str | None = None
    """`HOST:PORT` of its gRPC."""
    left_out: tuple[str, ...] = ()
    """Routes that there are, and that do not answer a plain request, with the reason."""

    def metadata(self, address: Address) -> Sequence[tuple[str, str]]:
        """The metadata of a gRPC call: the key."""
        return () if address.authorization is None else (("authorization", address.authorization),)


async def ask(address: Address, method: str, path: str, body: object = None) -> tuple[Head, bytes]:
    """One HTTP request and its whole answer. Raises `ConnectError` and `TimeLimitError`."""
    data = None if body is None else json.dumps(body).encode()
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            connection = await Connection.open(address)
            try:
                await connection.send(address.request(method, path, data, {"Connection": "close"}))
                head = await connection.head()
                return head, await connection.body(head)
            finally:
                connection.abort()
    except ConnectionEnded as ended:
        raise ConnectError(
            f"no server at {address.url} ({ended or 'it closed the connection'})", "start one:  lmtool serve"
        ) from None
    except TimeoutError:
        raise TimeLimitError(f"no answer from {address.url} within {PROBE_SECONDS:g} s") from None


async def find_wires(address: Address, model: str | None, grpc: str | None) -> SoakTarget:
    """Ask a server what it speaks. model: which one to use; None: its first. grpc: `HOST:PORT` of its gRPC.

    Raises `ConnectError`, `AccessDeniedError`, `TimeLimitError`, and `ServerError` where it speaks none of ours.
    """
    head, body = await ask(address, "GET", "/v1/models")
    if head.status in DENIED:
        text = body.decode("utf-8", "replace")
        raise denied(address.url, head.status, text, key_sent=address.authorization is not None)
    served = [str(entry["id"]) for entry in _list(body, "data") if isinstance(entry.get("id"), str)]
    name = model or next(iter(served), "")
    pool = await _first_pool(address)
    wires = [wire for wire, path in SOCKETS.items() if await _is_socket(address, path, pool, wire)]
    found = {wire: await _refused(address, wire, path.format(pool=pool), name) for wire, path in routes(pool).items()}
    wires += [wire for wire, reason in found.items() if reason == ""]
    left_out = [f"{wire}: {reason}" for wire, reason in found.items() if reason]
    if grpc is not None:
        if find_spec("grpc") is None:
            raise UsageError("--grpc needs the package grpcio", "install it:  pip install 'lmtool[grpc]'")
        wires.append(GRPC)
    if not wires:
        raise ServerError(f"{address.url} speaks none of {', '.join((*SOCKETS, *ROUTES))}", "check the URL")
    return SoakTarget(tuple(wires), name, pool, grpc, tuple(left_out))


def routes(pool: str) -> Mapping[str, str]:
    """The paths to ask at; those of pools only where there is one."""
    return {wire: path for wire, path in ROUTES.items() if pool or "{pool}" not in path}


async def _first_pool(address: Address) -> str:
    head, body = await ask(address, "GET", "/v1/language")
    if head.status != 200:
        return ""
    for key in ("pools", "routers", "data"):
        for entry in _list(body, key):
            name = entry.get("id") or entry.get("pool")
            if isinstance(name, str):
                return name
    return ""


def _list(body: bytes, key: str) -> list[Mapping[str, Any]]:
    try:
        value = json.loads(body)
    except ValueError:
        return []
    entries = value.get(key) if isinstance(value, dict) else None
    return [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []


async def _is_socket(address: Address, path: str, pool: str, wire: str) -> bool:
    if ("{pool}" in path and not pool) or (wire == "Evergreen" and find_spec("google.protobuf") is None):
        return False
    connection = await Connection.open(address)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            return (await connection.upgrade(address, path.format(pool=pool))).status == 101
    except ConnectionEnded:
        return False
    finally:
        connection.abort()


async def _refused(address: Address, wire: str, path: str, model: str) -> str | None:
    """Why a plain request is not answered, empty where it is; None where there is no such route."""
    head, body = await ask(address, "POST", path, request_body(wire, model, "Hello", PROBE_TOKENS))
    if head.status in _NO_ROUTE:
        return None
    return "" if head.status == 200 else f"status {head.status}: {body[:200].decode('utf-8', 'replace')}"
