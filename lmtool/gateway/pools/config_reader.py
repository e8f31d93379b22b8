"""Reads pools from YAML, Glide's own files included; every fault is reported at once, with its line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from lmtool.core.errors import FileError
from lmtool.gateway.pools.config import (
    CacheConfig,
    GatewayConfig,
    LmtpTarget,
    LocalTarget,
    PoolConfig,
    takes_prefill,
)
from lmtool.gateway.pools.member_reader import GLIDE_MODELS, read_id, read_member
from lmtool.gateway.pools.yaml_reader import Faults, Section, compose
from lmtool.gateway.routing.passes import RetryPolicy
from lmtool.gateway.routing.strategies import STRATEGIES
from lmtool.protocol.providers.chat_request import UNIFIED_PARAMETERS, unified_name
from lmtool.protocol.providers.continuation import PREFILL_STYLES

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_FILE_BYTES = 1 << 20


class ConfigError(FileError):
    """A configuration with faults; its hints are all of them, `FILE:LINE: what is wrong`."""


def load(path: str | Path) -> GatewayConfig:
    """The pools of a file. Raises `FileError`: for one that cannot be read, or with every fault."""
    file = Path(path).expanduser()
    try:
        data = file.read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {path}: {(error.strerror or 'error').lower()}", "check --config") from None
    if len(data) > MAX_FILE_BYTES:
        raise FileError(f"{path} has more than {MAX_FILE_BYTES} bytes", "a file of pools is small")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise FileError(f"{path} is no UTF-8 text", "check --config") from None
    return parse(text, file.name)


def parse(text: str, name: str = "pools.yaml") -> GatewayConfig:
    """The pools of a YAML text. Raises `ConfigError` with every fault. name: of the file, for the faults."""
    faults = Faults()
    root = compose(text, faults)
    config = GatewayConfig(())
    if root is not None:
        config = _gateway(Section(root, "", faults))
    elif not faults.entries:
        faults.entries.append((1, "the file is empty; expected pools"))
    if faults.entries:
        sentences = faults.sentences(name)
        count = f"{len(sentences)} fault{'s' * (len(sentences) > 1)}"
        raise ConfigError(f"{name} has {count}", *sentences)
    return config


def _gateway(top: Section) -> GatewayConfig:
    top.ignore("telemetry")  # Glide's logs; ours are chosen by options
    api, routers = top.section("api"), top.section("routers")
    server = top.section("server")
    if api is not None:
        server = server or api.section("http")
        api.ignore("http")
        api.close()
    host, port = (None, None) if server is None else _server(server)
    found = top.sections("pools")
    own = len(found or ())
    if routers is not None:
        listed = routers.sections("language")
        found = listed if found is None else [*found, *(listed or ())]
        routers.close()
    defaults: list[Mapping[str, str]] = [{} if at < own else GLIDE_MODELS for at in range(len(found or ()))]
    read = map(_pool, found or (), defaults)
    pools = [pool for pool in read if pool is not None]
    top.close()
    if found is None and isinstance(top.node, yaml.MappingNode):
        top.fault("there are no pools; expected pools (or Glide's routers.language)")
    elif not pools and not top.faults.entries:
        top.fault("there are no pools that are enabled")
    _check_equal([(section, section.template("id")) for section in found or ()], "pool")
    return GatewayConfig(tuple(pool for pool, enabled in pools if enabled), host, port)


def _server(server: Section) -> tuple[str | None, int | None]:
    """Where to listen. Glide's timeouts and limit of bodies are not settings here."""
    server.ignore("read_timeout", "write_timeout", "idle_timeout", "max_request_body_size")
    host, port = server.text("host"), server.count("port", None, 0, 65535)
    server.close()
    return host, port


def _check_equal(ids: list[tuple[Section, str | None]], kind: str) -> None:
    known: set[str] = set()
    for section, name in ids:
        if name is not None and name in known:
            section.fault(f"two {kind}s have the id {name!r:.80}; expected ids of their own", "id")
        known.add(name or "")


def _pool(section: Section, default_models: Mapping[str, str]) -> tuple[PoolConfig, bool] | None:
    """A pool, and whether it is enabled; None where it has no members that can be read."""
    name, enabled = read_id(section), section.flag("enabled", default=True)
    strategy = section.choice("strategy", STRATEGIES, "priority")
    retry, cache = section.section("retry"), section.section("cache")
    overridable = _overridable(section)
    continue_by = section.choice("continue", ("prefill",), "")
    models = section.sections("models") or []
    members = [member for model in models if (member := read_member(model, default_models)) is not None]
    section.close()
    _check_equal([(model, model.template("id")) for model in models], "model")
    active = tuple(member for member, member_enabled in members if member_enabled)
    if not models or (len(members) == len(models) and not active):
        section.fault(
            f"{section.path} has no models{' that are enabled' if models else ''}; expected one at least", "models"
        )
    if strategy == "least_cost" and any(member.prices is None for member in active):
        section.fault(
            "strategy least_cost compares prices; give each model prices: {prompt: ..., response: ...}", "strategy"
        )
    if strategy == "least_loaded" and any(not isinstance(one.target, LmtpTarget | LocalTarget) for one in active):
        section.fault(
            "strategy least_loaded counts streams of models of one's own; expected models lmtp and local", "strategy"
        )
    if continue_by and active and not any(map(takes_prefill, active)):
        section.fault(
            "continue: prefill needs a model that takes the beginning of its answer: anthropic, ollama, lmtp, local, "
            f"litellm, or openai with a base_url and prefill: {', '.join(PREFILL_STYLES)}",
            "continue",
        )
    config = PoolConfig(
        name,
        active,
        strategy,
        RetryPolicy() if retry is None else _retry(retry),
        overridable,
        None if cache is None else _cache(cache),
        "prefill" if continue_by else None,
    )
    return (config, enabled)


def _overridable(section: Section) -> frozenset[str]:
    names = [unified_name(name) for name in section.texts("overridable")]
    for name in names:
        if name not in UNIFIED_PARAMETERS:
            known = ", ".join(UNIFIED_PARAMETERS)
            section.fault(f"overridable: there is no parameter {name!r:.80}; known are {known}", "overridable")
    return frozenset(names)


def _retry(section: Section) -> RetryPolicy:
    base = RetryPolicy()
    retry = RetryPolicy(
        section.count("max_retries", base.max_retries, 0, 100),
        section.number("base_multiplier", base.base_multiplier, 1, 100),
        section.seconds("min_delay", base.min_delay),
        section.seconds("max_delay", base.max_delay),
        section.seconds("deadline", base.deadline),
    )
    section.close()
    return retry


def _cache(section: Section) -> CacheConfig:
    base = CacheConfig()
    kind = section.choice("kind", ("memory", "sqlite"), base.kind)
    cache = CacheConfig(
        "sqlite" if kind == "sqlite" else "memory",
        section.text("path"),
        section.bytes("max_bytes", base.max_bytes),
        section.seconds("max_age", base.max_age),
        section.flag("sampled", default=base.sampled),
    )
    if kind == "sqlite" and section.lacks("path"):
        section.fault(f"{section.path} has no path; a cache of kind sqlite needs one")
    section.close()
    return cache
