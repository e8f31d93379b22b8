"""Access control in front of a whole ASGI application: HTTP and WebSocket, whatever routes it has."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from lmtool.core.errors import AccessDeniedError, RateLimitError
from lmtool.net.access.caller import current_caller, withdrawn
from lmtool.net.access.credentials import KEY_PROTOCOL, without_credentials
from lmtool.net.access.forwarding import ConflictingAddressesError, client_address, is_forwarded
from lmtool.net.access.policy import Refusal, answer_headers, find_refusal, is_open, is_preflight, preflight_headers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from lmtool.net.access.caller import Caller
    from lmtool.net.access.credentials import Headers
    from lmtool.net.access.policy import AccessPolicy

    Scope: TypeAlias = Mapping[str, Any]
    Receive: TypeAlias = Callable[[], Awaitable[Any]]
    Send: TypeAlias = Callable[[Any], Awaitable[None]]
    Application: TypeAlias = Callable[[Any, Receive, Send], Awaitable[None]]
    Write: TypeAlias = Callable[[str, Refusal], tuple[int, bytes]]
    Note: TypeAlias = Callable[[Refusal, str, str | None], None]


_TRUSTED = "lmtool.trusted"
"""The scope's member for `is_trusted`."""


WITHDRAWN_SECONDS = 1.0
"""For which streams may tell their clients that their key is no longer valid, before the connection is closed."""
_POLICY_VIOLATION = 1008  # RFC 6455, 7.4.1


@contextlib.asynccontextmanager
async def while_valid(caller: Caller) -> AsyncIterator[None]:
    """Cancel the block soon after the key of `caller` becomes invalid, and raise `AccessDeniedError` in its place."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as limit:
            forget = caller.on_withdrawal(lambda: limit.reschedule(loop.time() + WITHDRAWN_SECONDS))
            try:
                yield
            finally:
                forget()
    except TimeoutError:
        if limit.expired():
            raise withdrawn() from None
        raise


class _Passing(NamedTuple):
    """What an application is called with."""

    scope: dict[str, Any]
    receive: Receive
    send: Send


class Door:
    """An ASGI application that passes on what its policy admits, and refuses the rest itself.

    Refusals are sent before anything is received. Admitted requests lose their credentials, so that nothing behind can
    log or record them.
    """

    def __init__(
        self, application: Application, policy: AccessPolicy, write: Write, note: Note = lambda *_: None
    ) -> None:
        """write: the status and the JSON body for a refusal at a path, in the form of that path's API.

        note: called with each refusal, `http` or `websocket`, and the client's address.
        """
        self._application = application
        self._policy = policy
        self._write = write
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or one connection."""
        if scope["type"] not in {"http", "websocket"}:
            await self._application(scope, receive, send)
            return
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        is_http, path = scope["type"] == "http", _path(scope)
        method = scope["method"] if is_http else ""
        answer = answer_headers(self._policy, headers)
        refusal = find_refusal(self._policy, headers, method=method, path=path)
        if refusal is None and is_preflight(method, headers):
            await _respond(send, "http", 204, preflight_headers(self._policy, headers), b"")
        elif refusal is None:
            inner = {**scope, "headers": _encoded(without_credentials(headers))}
            if not is_http:
                inner["subprotocols"] = [p for p in scope["subprotocols"] if not p.startswith(KEY_PROTOCOL)]
            passing = _Passing(inner, receive, _adding(_encoded(answer), send) if is_http else send)
            refusal = await self._pass_on(passing, headers, counted=not is_open(method, path))
        if refusal is not None:
            self._note(refusal, scope["type"], self._address(scope, headers))
            await (self._refuse if is_http else _deny)(send, scope, refusal, answer)
        if not is_http:
            # uvicorn logs a handshake that was refused as a mistake, unless it has seen the connection's end by now.
            await asyncio.sleep(0)

    async def _pass_on(self, passing: _Passing, headers: Headers, *, counted: bool) -> Refusal | None:
        """Let the application answer; why it is not asked at all, where the request is above a limit.

        counted: whether the request counts against the limits of its key and address.
        """
        scope, peer = passing.scope, passing.scope.get("client")
        try:
            address = client_address(self._policy.proxies, None if peer is None else peer[0], headers)
        except ConflictingAddressesError:
            return Refusal("invalid_headers", "Forwarded and X-Forwarded-For name different clients", "send neither")
        if peer is not None and address != peer[0]:
            scope["client"] = (address, 0)
        scope[_TRUSTED] = not is_forwarded(headers) and (None if peer is None else peer[0]) in self._policy.proxies
        callers = self._policy.callers if counted else None
        caller = None if callers is None else callers.showing(headers, address)
        if caller is None:
            await self._application(*passing)
            return None
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(caller.connected(as_request=scope["type"] == "http"))
            except RateLimitError as error:
                return Refusal.of_limit(error, caller.name)
            token = current_caller.set(caller)
            stack.callback(current_caller.reset, token)
            begun = False

            async def send(event: Mapping[str, Any]) -> None:
                nonlocal begun
                begun = True
                await passing.send(event)

            try:
                async with while_valid(caller):
                    await self._application(scope, passing.receive, send)
            except AccessDeniedError as error:
                if scope["type"] == "websocket":
                    await passing.send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": error.message})
                elif not begun:
                    return Refusal("invalid_api_key", error.message, error.hints[0])
        return None

    def _address(self, scope: Scope, headers: Headers) -> str | None:
        peer = scope.get("client")
        try:
            return client_address(self._policy.proxies, None if peer is None else peer[0], headers)
        except ConflictingAddressesError:
            return None if peer is None else str(peer[0])

    async def _refuse(self, send: Send, scope: Scope, refusal: Refusal, headers: list[tuple[str, str]]) -> None:
        status, body = self._write(_path(scope), refusal)
        headers = [*headers, *refusal.headers, ("content-type", "application/json")]
        await _respond(send, "http", status, headers, body)


async def _deny(send: Send, scope: Scope, refusal: Refusal, headers: list[tuple[str, str]]) -> None:
    """Refuse a WebSocket by an HTTP status and a sentence; by 403 alone where the server cannot send more."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close"})
        return
    headers = [*headers, *refusal.headers, ("content-type", "text/plain; charset=utf-8")]
    await _respond(send, "websocket.http", refusal.status, headers, refusal.sentence.encode())


async def _respond(send: Send, kind: str, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
    sized = [*headers, ("content-length", str(len(body)))] if status != 204 else headers
    await send({"type": f"{kind}.response.start", "status": status, "headers": _encoded(sized)})
    await send({"type": f"{kind}.response.body", "body": body})


def _adding(more: list[tuple[bytes, bytes]], send: Send) -> Send:
    """A `send` that adds headers to the response."""

    async def adding(event: Mapping[str, Any]) -> None:
        if event["type"] == "http.response.start":
            event = {**event, "headers": [*event.get("headers", ()), *more]}
        await send(event)

    return adding


def is_trusted(scope: Scope) -> bool:
    """True if a trusted peer speaks for itself, such as a balancer, and has not passed on what another one says."""
    return bool(scope.get(_TRUSTED, False))


def _encoded(headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]


def _path(scope: Scope) -> str:
    """The path below the place where a proxy in front puts the server."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path
