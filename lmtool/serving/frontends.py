"""The protocols of a server: LMTP, the HTTP APIs and Evergreen, and the HTTP server that carries them on one port."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from lmtool.core.interfaces import ModelControl
from lmtool.core.types import Usage
from lmtool.protocol.http import errors
from lmtool.serving.config import HttpConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    import uvicorn

    from lmtool.core.interfaces import Catalogue, Face, TokenModel
    from lmtool.gateway.pools.pools import Pools
    from lmtool.net.access.asgi import Note, Write
    from lmtool.net.access.keyed_models import KeyedModels
    from lmtool.net.access.policy import AccessPolicy
    from lmtool.net.telemetry.request_log import RequestLog
    from lmtool.net.telemetry.telemetry import Telemetry
    from lmtool.protocol.evergreen.action_tasks import ActionLog
    from lmtool.protocol.evergreen.actions import Registry
    from lmtool.protocol.evergreen.server import EvergreenServer
    from lmtool.protocol.lmtp.config import ServerConfig
    from lmtool.protocol.lmtp.server import LmtpServer
    from lmtool.serving.certificate import Certificate
    from lmtool.serving.composition import Models
    from lmtool.serving.config import ServiceConfig
    from lmtool.serving.health import Health
    from lmtool.trace.server_tap import ServerTap


def lmtp_server(
    models: Models | Pools,
    config: ServiceConfig,
    log: Callable[[RequestLog], None],
    tap: ServerTap,
    telemetry: Telemetry | None = None,
) -> LmtpServer:
    """LMTP server on a port or a pipe. log: called with each finished request; tap: called with every frame."""
    from lmtool.protocol.lmtp.plugs import Plugs
    from lmtool.protocol.lmtp.server import LmtpServer

    served = visible_models(models, config)
    plugs = Plugs(
        observed(served, telemetry),
        config.server,
        progress=served,
        catalogue=served,
        control=served if isinstance(served, ModelControl) else None,
        log=log,
        tap=tap,
        traffic=tap,
        everybody_watches=config.watch.watch,
    )
    return LmtpServer(plugs)


def observed(served: Models | Pools | KeyedModels, telemetry: Telemetry | None) -> TokenModel:
    """The models, with telemetry of their streams if there is any."""
    if telemetry is None:
        return served
    from lmtool.net.telemetry.observed_model import ObservedModel

    return ObservedModel(served, served, telemetry)


def visible_models(models: Models | Pools, config: ServiceConfig) -> Models | Pools | KeyedModels:
    """The models that clients see; with a key file, those that their key allows."""
    if config.access.callers is None:
        return models
    from lmtool.net.access.keyed_models import keyed

    return keyed(models)


def faces(
    models: Models | Pools,
    config: ServiceConfig,
    health: Health,
    log: Callable[[RequestLog], None],
    tap: ServerTap,
    telemetry: Telemetry,
) -> list[Face]:
    """All protocols on the port."""
    from lmtool.protocol.http.models import ApiConfig
    from lmtool.protocol.http.server import OpenAIServer

    api = ApiConfig(config.models.tool_call_parser, health.count_answer, config.engine.max_logprobs)
    served = visible_models(models, config)
    http = OpenAIServer(observed(served, telemetry), api, catalogue=served)
    mounted: list[Face] = [lmtp_server(models, config, log, tap, telemetry), http]
    if not config.pools_only:
        mounted.append(evergreen_server(models, config, log, tap, telemetry))
    if config.pools is not None:
        from lmtool.gateway.pools.pools import Pools
        from lmtool.gateway.pools.server import GatewayServer

        assert isinstance(models, Pools)
        mounted.insert(0, GatewayServer(models))  # its /v1/{pool}/chat before what takes any path
    return mounted


def refused_of(config: ServiceConfig) -> Write:
    """Writer of refusals in the format of each path's API."""
    if config.pools is None:
        from lmtool.protocol.http.errors import refused

        return refused
    from lmtool.gateway.pools.server import refused as refused_by_gateway

    return refused_by_gateway


def evergreen_server(
    models: Models | Pools,
    config: ServiceConfig,
    log: Callable[[RequestLog], None],
    tap: ServerTap,
    telemetry: Telemetry,
) -> EvergreenServer:
    """Evergreen server, over WebSocket and gRPC. log: called with each finished action; tap: with every message."""
    from lmtool.protocol.evergreen.actions import GROUP
    from lmtool.protocol.evergreen.config import EvergreenConfig, SessionLimits
    from lmtool.protocol.evergreen.server import EvergreenServer, Plugs

    references = None
    if config.evergreen.allow_ref:
        from lmtool.protocol.evergreen.references import allowed_references

        references = allowed_references(config.evergreen.allow_ref)
    served = visible_models(models, config)
    model = observed(served, telemetry)
    registry: Callable[[], Registry] | Registry = partial(_menu, model, served)
    if entry_points(group=GROUP):  # report a broken installed action at the start
        registry = _menu(model, served)

    plugs = Plugs(
        registry,
        EvergreenConfig(SessionLimits(stall_limit=config.server.stall_limit)),
        references,
        log=lambda entry: log(_request_log(entry)),
        tap=tap.sessions(),
        peer_actions=config.evergreen.peer_actions,
    )
    return EvergreenServer(plugs)


def _menu(model: TokenModel, catalogue: Catalogue) -> Registry:
    from lmtool.protocol.evergreen.menu import menu

    return menu(model, catalogue)


def _request_log(entry: ActionLog) -> RequestLog:
    """Log entry of a finished action."""
    from lmtool.net.telemetry.request_log import RequestLog

    used = entry.usage or Usage(0, 0)
    return RequestLog(
        entry.connection,
        json.dumps(entry.output_id, ensure_ascii=False),
        entry.name,
        entry.target or None,
        used.prompt_tokens,
        used.completion_tokens,
        entry.ttft,
        entry.seconds,
        None if entry.error is not None else entry.end,
        entry.error,
        cached_tokens=used.cached_tokens,
        protocol="evergreen",
        error_code=None if entry.error is None else entry.status.name.lower(),
    )


def http_server(
    application: Any,
    access: AccessPolicy,
    config: ServerConfig,
    how: HttpConfig | None = None,
    write: Write = errors.refused,
    certificate: Certificate | None = None,
    note: Note = lambda *_: None,
) -> uvicorn.Server:
    """A uvicorn server of an application with access control.

    write: status and body of a refusal at a path. certificate: for TLS. note: see `Door`. Leaves signals and logs to
    the program.
    """
    import uvicorn

    from lmtool.net.access.asgi import Door
    from lmtool.protocol.http.http_protocol import HttpProtocol
    from lmtool.protocol.lmtp.websocket_protocol import uvicorn_options

    class Server(uvicorn.Server):
        def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override] # as ours is
            return contextlib.nullcontext()

    how = how or HttpConfig()
    http = partial(HttpProtocol, stall_limit=config.stall_limit)
    options = uvicorn_options(config) | {"log_level": how.uvicorn_log_level, "http": http}
    guarded = Door(application, access, write, note)
    placed = _below(how.root_path, guarded) if how.root_path else guarded
    # The access layer decides which proxies to trust; uvicorn would trust every process on this machine.
    options |= {"proxy_headers": False, "lifespan": "off", "log_config": None, "access_log": False}
    built = uvicorn.Config(placed, **options)
    built.load()
    built.ssl = None if certificate is None else certificate.context
    return Server(built)


def _below(path: str, application: Any) -> Any:
    """The application under a reverse proxy's path, whether or not the proxy strips it."""

    async def placed(scope: Any, receive: Any, send: Any) -> None:
        await application({**scope, "root_path": path}, receive, send)

    return placed
