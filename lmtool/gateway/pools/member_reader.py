"""Reads the models of a pool from YAML: each one's provider, key, parameters, limits and prices."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import yaml

from lmtool.core.errors import LmtoolError
from lmtool.gateway.pools.config import (
    HttpTarget,
    LitellmTarget,
    LmtpTarget,
    LocalTarget,
    MemberConfig,
    Prices,
    Timeouts,
)
from lmtool.gateway.pools.yaml_reader import Section, nearest, rate_of
from lmtool.gateway.routing.health import ErrorBudget
from lmtool.gateway.routing.strategies import LatencyPolicy
from lmtool.net.access.secret import Secret
from lmtool.protocol.providers.chat_request import UNIFIED_PARAMETERS, unified_name
from lmtool.protocol.providers.continuation import PREFILL_STYLES
from lmtool.protocol.providers.provider import Settings
from lmtool.protocol.providers.registry import PROVIDERS, provider_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.gateway.pools.config import Target
    from lmtool.protocol.providers.continuation import PrefillStyle

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OWN_KINDS = ("local", "lmtp", "litellm", "bedrock")
_KINDS = (*PROVIDERS, *_OWN_KINDS)
_CLOSED = "octoml"
_MEMBER_KEYS = ("id", "enabled", "weight", "error_budget", "latency", "client", "timeouts", "prices")
GLIDE_MODELS: Mapping[str, str] = {
    "openai": "gpt-4o",
    "anthropic": "claude-instant-1.2",
    "cohere": "command-light",
    "bedrock": "amazon.titan-text-express-v1",
}
"""Models that Glide 0.1 takes by provider where a file of its own names none; providers may have retired them."""
INSTALL_LITELLM = "pip install 'lmtool[litellm]'"


def read_id(section: Section) -> str:
    """The id of a pool or model; empty, with a fault, where there is none."""
    name = section.text("id")
    if name is None:
        if section.lacks("id"):
            section.fault(f"{section.path} has no id")
        return ""
    if not _ID.fullmatch(name):
        section.fault(f"{section.place('id')} is {name!r:.80}; expected up to 64 letters, digits and signs . _ -", "id")
    return name


@dataclass(slots=True)
class _Model:
    """A model's own part, that of its provider."""

    target: Target
    model: str | None
    defaults: Mapping[str, object]


def read_member(section: Section, default_models: Mapping[str, str]) -> tuple[MemberConfig, bool] | None:
    """A model of a pool, and whether it is enabled; None where its provider cannot be read.

    default_models: by provider, where the section names none.
    """
    name, enabled = read_id(section), section.flag("enabled", default=True)
    member = MemberConfig(
        name,
        LocalTarget(),
        None,
        section.count("weight", 1, 1, 10_000),
        _budget(section),
        _latency(section),
        _timeouts(section),
        _prices(section),
    )
    kinds = [kind for kind in (*_KINDS, _CLOSED) if kind in section]
    if len(kinds) != 1:
        unknown = [key for key in section.keys if key not in _MEMBER_KEYS]
        near = nearest(unknown[0], _KINDS) if unknown and not kinds else ""
        found = f"has {' and '.join(kinds)}" if kinds else f"names no provider{near}"
        section.fault(f"{section.path} {found}; expected one of {', '.join(_KINDS)}")
        section.ignore(*section.keys)
        return None
    own = section.section(kinds[0]) or Section(
        yaml.MappingNode("", [], section.node.start_mark), kinds[0], section.faults
    )
    section.close()
    model = _provider(kinds[0], own, default_models.get(kinds[0]))
    if model is None:
        return None
    return replace(member, target=model.target, model=model.model, defaults=model.defaults), enabled


def _budget(section: Section) -> ErrorBudget:
    rate = section.parsed("error_budget", rate_of, "a rate such as 10/m", None)
    return ErrorBudget() if rate is None else ErrorBudget(*rate)


def _latency(section: Section) -> LatencyPolicy:
    base, own = LatencyPolicy(), section.section("latency")
    if own is None:
        return base
    policy = LatencyPolicy(
        own.number("decay", base.decay, 0.0001, 1),
        own.count("warmup_samples", base.warmup_samples, 1, 1000),
        own.seconds("update_interval", base.update_interval),
    )
    own.close()
    return policy


def _timeouts(section: Section) -> Timeouts:
    base, own, client = Timeouts(), section.section("timeouts"), section.section("client")
    total, first_token = base.total, base.first_token
    if client is not None:  # Glide's
        client.ignore("max_idle_connections", "max_idle_connections_per_host")
        total = client.seconds("timeout", total)
        client.close()
    if own is not None:
        total, first_token = own.seconds("total", total), own.seconds("first_token", first_token)
        own.close()
    return Timeouts(total, first_token)


def _prices(section: Section) -> Prices | None:
    own = section.section("prices")
    if own is None:
        return None
    prices = Prices(own.number("prompt", 0.0), own.number("response", 0.0))
    own.close()
    return prices


def _provider(kind: str, own: Section, default_model: str | None) -> _Model | None:
    if kind == _CLOSED:
        own.fault("octoml: OctoAI has closed; write openai with the base_url of another service")
        return None
    if kind == "local":
        model = _Model(LocalTarget(), own.text("model"), own.value("default_params") or {})
        return _closed(own, model)
    if kind == "lmtp":
        return _lmtp(own)
    return (_litellm if kind in ("litellm", "bedrock") else _http)(kind, own, default_model)


def _closed(own: Section, model: _Model) -> _Model:
    """The model, with parameters of our own models checked, once all keys are read."""
    found: dict[str, object] = {}
    for spelling, value in model.defaults.items():
        name = unified_name(spelling)
        if name not in UNIFIED_PARAMETERS or name == "n":
            own.fault(f"{own.path}: there is no parameter {spelling}", "default_params")
        found[name] = value
    own.close()
    return replace(model, defaults=found)


def _lmtp(own: Section) -> _Model | None:
    from lmtool.protocol.lmtp.endpoint import parse as parse_endpoint

    endpoint, key = own.text("endpoint"), own.secret("api_key")
    if own.lacks("endpoint"):
        own.fault(f"{own.path} has no endpoint; expected ws://HOST:PORT/ or HOST:PORT")
    if endpoint is not None:
        try:
            parse_endpoint(endpoint)
        except LmtoolError as error:
            own.fault(f"{own.place('endpoint')}: {error.sentence}", "endpoint")
    model = _Model(LmtpTarget(endpoint or "", key), own.text("model"), own.value("default_params") or {})
    return _closed(own, model)


def _litellm(kind: str, own: Section, default_model: str | None) -> _Model:
    """A model of the litellm package; Glide's bedrock entries are one."""
    model, defaults = own.text("model") or default_model, own.value("default_params") or {}
    if importlib.util.find_spec("litellm") is None:
        own.fault(f"{own.path} needs the package litellm; install it:  {INSTALL_LITELLM}")
    if model is None and own.lacks("model"):
        own.fault(f"{own.path} has no model")
    arguments: dict[str, object] = {}
    names = (
        {"api_key": "api_key"}
        if kind == "litellm"
        else {"access_key": "aws_access_key_id", "secret_key": "aws_secret_access_key"}
    )
    for key, argument in names.items():
        source = own.secret(key)
        if source is not None:
            arguments[argument] = source.secret
    texts = {"base_url": "api_base", "api_version": "api_version", "aws_region": "aws_region_name"}
    arguments |= {argument: text for key, argument in texts.items() if (text := own.text(key)) is not None}
    if kind == "bedrock":
        own.ignore("chat_endpoint")
        model = f"bedrock/{model}"
    own.close()
    return _Model(
        LitellmTarget(arguments, kind), model, {unified_name(name): value for name, value in defaults.items()}
    )


def _http(kind: str, own: Section, default_model: str | None) -> _Model | None:
    key, headers = own.secret("api_key"), _headers(own)
    settings = Settings(
        base_url=_base_url(own),
        api_key=None if key is None else key.secret,
        chat_endpoint=own.text("chat_endpoint"),
        api_version=own.text("api_version"),
        headers=headers,
        extra_body=own.value("extra_body") or {},
        prefill=_prefill(own, kind),
    )
    model, values = own.text("model") or default_model, own.value("default_params") or {}
    own.close()
    if model is None and own.lacks("model"):
        own.fault(f"{own.path} has no model")
    try:
        provider = provider_for(kind, settings)
        url = provider.url(settings.chat_endpoint or provider.chat_path, model or "", settings)
    except LmtoolError as error:
        own.fault(f"{own.path}: {error.sentence}")
        return None
    if own.lacks("api_key") and (provider.key_required or url.startswith("https://api.openai.com/")):
        own.fault(f'{own.path} has no api_key; expected one, such as "${{env:NAME}}"')
    defaults: dict[str, object] = {}
    for name, value in values.items() if isinstance(values, dict) else ():
        try:
            defaults |= provider.default_parameters({name: value}, settings)
        except LmtoolError as error:
            own.fault(f"{own.place('default_params')}: {error.sentence}", "default_params")
    return _Model(HttpTarget(provider, settings, key), model, defaults)


def _prefill(own: Section, kind: str) -> PrefillStyle | Literal["none"] | None:
    """How the API goes on with an answer that has begun, where the configuration says so."""
    if kind == "cohere" and "prefill" in own:
        own.fault(f"{own.path}: cohere has no prefill; leave it out", "prefill")
    styles = PREFILL_STYLES if kind in ("openai", "azureopenai") else ("last_message",)
    chosen = own.choice("prefill", ("none", *styles), "")
    return None if not chosen else next((style for style in PREFILL_STYLES if style == chosen), "none")


def _base_url(own: Section) -> str | None:
    text = own.text("base_url")
    if text is None:
        return None
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        own.fault(f"{own.place('base_url')} is no http or https URL", "base_url")
    elif parts.username is not None or parts.password is not None:
        own.fault(f"{own.place('base_url')} has credentials; write api_key or headers in their place", "base_url")
    return text


def _headers(own: Section) -> dict[str, Any]:
    """Further headers, each a secret: what it says is the provider's business alone."""
    section = own.section("headers")
    if section is None:
        return {}
    sources = {name: section.secret(name) for name in section.keys}
    found = {name: source.secret for name, source in sources.items() if source is not None}
    for name, secret in found.items():
        if not re.fullmatch(r"[A-Za-z0-9-]{1,100}", name) or not re.fullmatch(r"[\x20-\x7e]*", secret.reveal()):
            section.fault(f"{section.place(name)} is no header that can be sent", name)
    return {name: Secret(secret.reveal()) for name, secret in found.items()}
