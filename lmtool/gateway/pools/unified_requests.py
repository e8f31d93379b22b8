"""Requests of the unified API (GEP-0002): its names and Glide's, and its literal body with `model` repeated."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from lmtool.core.errors import LmtoolError
from lmtool.core.types import ROLES, ChatMessage
from lmtool.gateway.pools.pool_request import PoolRequest
from lmtool.protocol.http import errors
from lmtool.protocol.http.decoding import Fields, decode, read_object, refuse, wrong
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.requests import MAX_MESSAGES, Deadline
from lmtool.protocol.providers.chat_request import UNIFIED_PARAMETERS, ChatRequest, checked_parameter, unified_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.gateway.pools.config import PoolConfig


class UnifiedMessage(Fields, kw_only=True):
    """A turn of a conversation."""

    role: str
    content: str
    name: str | None = None

    def turn(self, place: str) -> ChatMessage:
        """The turn. Raises `ApiError` for an unknown role."""
        if self.role not in ROLES or self.role == "tool":
            raise wrong(f"{place}.role", self.role, "one of " + ", ".join(role for role in ROLES if role != "tool"))
        return ChatMessage(self.role, self.content, name=self.name)


_History = Annotated[list[UnifiedMessage], Meta(max_length=MAX_MESSAGES)]


class ModelMessages(Fields, kw_only=True):
    """The messages of one model, as GEP-0002 has them."""

    name: str
    messages: Annotated[list[UnifiedMessage], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    message: UnifiedMessage | None = None
    messageHistory: _History | None = None  # noqa: N815  # GEP's name
    message_history: _History | None = None


class Override(Fields, kw_only=True):
    """The message of one model, as Glide has it: it replaces the last one."""

    message: UnifiedMessage


class UnifiedRequest(Fields, kw_only=True):
    """A request to `/v1/language/{pool}/chat`."""

    message: UnifiedMessage | None = None
    messageHistory: _History | None = None  # noqa: N815  # GEP's name
    message_history: _History | None = None
    override_params: dict[str, Override] | None = None
    model: list[ModelMessages] | None = None
    """One object, or that member repeated."""
    stream: bool | None = None
    deadline: Deadline | None = None
    id: str | None = None
    """Of a stream over WebSocket."""
    metadata: Any = None
    """Repeated with each message of a stream over WebSocket."""


def read(data: bytes, pool: PoolConfig) -> tuple[UnifiedRequest, PoolRequest]:
    """The request in a body. Raises `ApiError` naming what is wrong with it."""
    models: list[object] = []
    if b'"model"' in data:
        models = _repeated_models(data)
    return read_object(lambda body: _read({**body, **({"model": models} if models else {})}, pool), data)


def _repeated_models(data: bytes) -> list[object]:
    """The values of all members `model` of the object; JSON allows a name to stand more than once."""
    found: list[object] = []

    def pairs(members: list[tuple[str, object]]) -> dict[str, object]:
        found[:] = [value for name, value in members if name == "model"]  # the outermost object comes last
        return dict(members)

    try:
        json.loads(data, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return []  # `read_object` says what is wrong
    return found


def _read(body: Mapping[str, Any], pool: PoolConfig) -> tuple[UnifiedRequest, PoolRequest]:
    parameters, rest = _parameters(body, pool)
    request = decode(UnifiedRequest, rest)
    messages = _conversation(request)
    overrides = _overrides(request, messages, pool)
    if not messages and not overrides:
        refuse("message", "message is missing; expected an object with role and content")
    chat = ChatRequest(messages, parameters, stream=request.stream or False)
    return request, PoolRequest(chat, None, overrides)


def _parameters(body: Mapping[str, Any], pool: PoolConfig) -> tuple[dict[str, object], dict[str, Any]]:
    """Parameters that the pool lets requests set, and the other members. Raises `ApiError`."""
    found: dict[str, object] = {}
    rest: dict[str, Any] = {}
    for spelling, value in body.items():
        name = unified_name(spelling)
        if name not in UNIFIED_PARAMETERS:
            rest[spelling] = value
            continue
        if name not in pool.overridable:
            listed = ", ".join(sorted(pool.overridable)) or "none"
            sentence = f"{spelling} is not a request's to set; the pool {pool.id} lists as overridable: {listed}"
            raise ApiError(400, sentence, param=spelling, code="unknown_parameter")
        if value is not None:
            try:
                found[name] = checked_parameter(name, value)
            except LmtoolError as error:
                raise errors.from_error(error, spelling) from None
    return found, rest


def _history(request: UnifiedRequest | ModelMessages, place: str) -> tuple[ChatMessage, ...]:
    if request.messageHistory is not None and request.message_history is not None:
        refuse("message_history", "messageHistory and message_history are one thing; send one of them")
    name = "messageHistory" if request.messageHistory is not None else "message_history"
    history = request.messageHistory or request.message_history or []
    return tuple(one.turn(f"{place}{name}[{at}]") for at, one in enumerate(history))


def _conversation(request: UnifiedRequest) -> tuple[ChatMessage, ...]:
    history = _history(request, "")
    if request.message is None:
        if history:
            refuse("message", "message is missing; expected an object with role and content behind the history")
        return ()
    return (*history, request.message.turn("message"))


def _overrides(
    request: UnifiedRequest, messages: Sequence[ChatMessage], pool: PoolConfig
) -> dict[str, tuple[ChatMessage, ...]]:
    """Whole conversations by member. Raises `ApiError` for a name that no member has."""
    found: dict[str, tuple[ChatMessage, ...]] = {}
    for at, model in enumerate(request.model or ()):
        _check_name(model.name, f"model[{at}].name" if len(request.model or ()) > 1 else "model.name", pool)
        own = tuple(one.turn(f"model[{at}].messages[{number}]") for number, one in enumerate(model.messages or ()))
        last = () if model.message is None else (model.message.turn(f"model[{at}].message"),)
        if not own and not last:
            refuse("model", f"model {model.name!r:.100} has no messages; expected messages or message")
        found[model.name] = (*_history(model, f"model[{at}]."), *own, *last)
    for name, override in (request.override_params or {}).items():
        _check_name(name, "override_params", pool)
        found[name] = (*messages[:-1], override.message.turn(f"override_params.{name}.message"))
    return found


def _check_name(name: str, param: str, pool: PoolConfig) -> None:
    names = [known for member in pool.members for known in (member.id, member.model) if known is not None]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        advice = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(names)}"
        raise ApiError(400, f"{param} names {name!r:.100}, which the pool {pool.id} has not{advice}", param=param)
