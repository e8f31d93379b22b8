"""Configuration of a server: each field with its default and its option of `lmtool serve`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.core import sampling_defaults
from lmtool.core.errors import FileError, ModelLoadError, ResourceError, UsageError
from lmtool.core.model_entry import ModelEntry
from lmtool.inference.backends.registry import BackendConfig
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.gguf.header import read_header
from lmtool.inference.tiny.path import source_of
from lmtool.net.access.names import is_loopback
from lmtool.net.access.policy import AccessPolicy
from lmtool.protocol.lmtp.config import ServerConfig
from lmtool.serving.model_names import AUTO, parse_bytes, served, weight_bytes, with_aliases, with_pins
from lmtool.settings.option import option

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lmtool.gateway.pools.config import GatewayConfig
    from lmtool.inference.engine.model_manager import ServedModel
    from lmtool.serving.certificate import Certificate

LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")
MODELS = "Models"
CONNECTIONS = "Connections"
ENGINE = "Engine"
OUTPUT = "Output"


@dataclass(frozen=True, slots=True)
class ModelsConfig:
    """Models of a server, and their names."""

    model: str | None = None
    """A local folder, a hub name, `auto` for whatever a client names; None or `lmtool-tiny` for the embedded model."""
    served_model_name: tuple[str, ...] = option(
        (), "Serve the model under this name (repeatable).", MODELS, metavar="NAME"
    )
    """Further names of the model; the first replaces its own name in lists."""
    allow_model: tuple[str, ...] = option(
        (), "Load this model when a client names it (repeatable).", MODELS, metavar="NAME"
    )
    allow_download: tuple[str, ...] = option(
        (), "With auto, download hub models matching this name (repeatable).", MODELS, metavar="PATTERN"
    )
    """Such as `Qwen/*`; without a pattern, clients of `auto` may name models in the hub's cache only."""
    alias: tuple[str, ...] = option((), "Add a name to a served model (repeatable).", MODELS, metavar="NAME=MODEL")
    pin: tuple[str, ...] = option(
        (), "Load this model at the start and never unload it (repeatable).", MODELS, metavar="NAME"
    )
    max_loaded: int | None = option(None, "Most models in memory.", MODELS, metavar="N", minimum=1)
    """The least recently used model is unloaded. None: no limit."""
    memory: str | None = option(
        None, "Most memory for the weights of all models, such as 4GB.", MODELS, metavar="BYTES"
    )
    """The least recently used model is unloaded. None: no limit."""
    idle_unload: float | None = option(
        None, "Unload a model that had no stream for this long.", MODELS, metavar="SECONDS", minimum=0
    )
    tokenizer: str | None = option(None, "Folder or hub name of the main model's tokenizer.", MODELS, metavar="MODEL")
    chat_template: str | None = option(
        None, "Jinja template that replaces the main model's own.", MODELS, metavar="FILE"
    )
    tool_call_parser: str | None = option(
        None,
        "Format of tool calls, by vLLM's names: hermes, llama3_json, mistral, qwen3_coder, glm45, "
        "deepseek_v3, deepseek_v31, kimi_k2, granite, pythonic, openai, none.",
        MODELS,
        metavar="NAME",
        shown_default="detected from its template",
    )
    reasoning_parser: str | None = option(
        None,
        "Format of the main model's thoughts: think, qwen3, deepseek_r1, openai_gptoss, none, ...",
        MODELS,
        metavar="NAME",
        shown_default="detected from its template",
    )
    generation_config: str = option(
        "auto",
        "Sampling defaults over HTTP: auto (from the model's files), none, or a file for the main model.",
        MODELS,
        metavar="FILE",
    )
    """`vllm` means `none`; FILE may be a folder with a generation_config.json."""
    extra_models: tuple[str, ...] = ()
    """Further folders and hub names, loaded at the start while memory allows."""

    @classmethod
    def of(cls, model: str | Sequence[str] | None, **options: Any) -> ModelsConfig:
        """One model or several, with these options. Raises what `check` raises."""
        named: Sequence[str | None] = (model,) if isinstance(model, str) else model or (None,)
        config = cls(named[0], extra_models=tuple(name for name in named[1:] if name is not None), **options)
        config.check()
        return config

    def check(self) -> None:
        """Raise `UsageError`, `FileError` or `ModelLoadError` for invalid options, before anything is loaded."""
        from lmtool.protocol.http.tools.formats import TOOL_CALL_PARSERS

        if self.tool_call_parser is not None and self.tool_call_parser not in TOOL_CALL_PARSERS:
            known = ", ".join(TOOL_CALL_PARSERS)
            raise UsageError(f"--tool-call-parser {self.tool_call_parser!r} is unknown", f"known: {known}")
        if self.reasoning_parser is not None:
            from lmtool.inference.text.reasoning_parsers import find_parser

            find_parser(self.reasoning_parser)
        local = self.tokenizer is not None and self.tokenizer.startswith(("/", ".", "~"))
        if local and not Path(self.tokenizer or "").expanduser().is_dir():
            raise FileError(f"folder {self.tokenizer} does not exist", "check --tokenizer")
        self.template()
        if self.generation_config not in {sampling_defaults.AUTO, *sampling_defaults.NONE}:
            sampling_defaults.read("", self.generation_config)
        parse_bytes(self.memory or "1", "--memory")
        self._check_several()
        self._check_pins()

    def _check_several(self) -> None:
        if self.extra_models and AUTO in (self.model, *self.extra_models):
            raise UsageError(
                "auto serves any model that clients name, and takes no other names", "omit auto or the names"
            )
        if self.allow_download and self.model != AUTO:
            raise UsageError(
                "--allow-download applies to names that clients send to auto",
                "omit it: models named at the start are downloaded when needed",
            )
        if self.extra_models and self.served_model_name:
            raise UsageError(
                f"--served-model-name names one model, but {1 + len(self.extra_models)} are served",
                "omit it: each model has its own name, and --alias NAME=MODEL adds one",
            )

    def _check_pins(self) -> None:
        models, pins = self.served(), sum(model.pinned for model in self.served())
        others = self.model == AUTO or pins < len(models)
        if self.max_loaded is not None and pins + others > self.max_loaded:
            rest = ", and others could never be loaded" if pins <= self.max_loaded else ""
            raise UsageError(
                f"--pin keeps {pins} models in memory, and --max-loaded allows {self.max_loaded}{rest}",
                f"allow more:  --max-loaded {pins + others}",
            )

    @property
    def memory_bytes(self) -> int | None:
        """`memory` in bytes. Raises `UsageError`."""
        return None if self.memory is None else parse_bytes(self.memory, "--memory")

    def template(self) -> str | None:
        """The text of `chat_template`. Raises `FileError`."""
        if self.chat_template is None:
            return None
        try:
            return Path(self.chat_template).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(
                f"cannot read the chat template {self.chat_template}: {getattr(error, 'strerror', None) or error}",
                "check --chat-template",
            ) from error

    def tokenizer_source(self, source: str) -> tuple[str, str | None]:
        """Source of the tokenizer of the model at `source`, and the template replacing its own. Raises `FileError`."""
        if not self._is_main(source):
            return source, None
        return source_of(self.tokenizer) if self.tokenizer else source, self.template()

    def reasoning_parser_of(self, source: str) -> str | None:
        """`reasoning_parser` if `source` is the main model, else None."""
        return self.reasoning_parser if self._is_main(source) else None

    def sampling_defaults(self, source: str, revision: str | None) -> Mapping[str, float]:
        """Sampling parameters for HTTP requests to the model at `source` that omit them. Raises `FileError`."""
        own = self.generation_config in sampling_defaults.NONE or self.model == AUTO or self._is_main(source)
        choice = self.generation_config if own else sampling_defaults.AUTO
        return sampling_defaults.read(source, choice, revision, _gguf_metadata)

    def _is_main(self, source: str) -> bool:
        return self.model != AUTO and source == served(self.model).source

    def served(self) -> list[ServedModel]:
        """The models, each once, the main one first; with `auto`, those allowed by name.

        Raises `UsageError` for two models with the same name, and for an alias or pin of an unknown model.
        """
        models: list[ServedModel] = []
        for model in [*self._at_start(), *map(served, self.allow_model)]:
            if any(model.source == other.source for other in models):
                continue
            for name in model.names:
                if any(name in other.names for other in models):
                    raise UsageError(f"two models have the name {name!r}", "rename the folder of one of them")
            models.append(replace(model, size_bytes=weight_bytes(model.source)))
        return with_pins(with_aliases(models, self.alias), self.pin)

    def _at_start(self) -> list[ServedModel]:
        """Models named on the command line, in order."""
        if self.model == AUTO:
            return []
        return [served(self.model, self.served_model_name), *map(served, self.extra_models)]

    def entries(self) -> list[ModelEntry]:
        """The model list of a server that is still loading its first models."""
        initial = self.initial
        return [
            ModelEntry(
                model.names[0],
                model.aliases,
                "loading" if model.names[0] in initial else "unloaded",
                model.size_bytes,
                pinned=model.pinned,
            )
            for model in self.served()
        ]

    @property
    def main(self) -> str | None:
        """Name of the first model; None with `auto`."""
        return None if self.model == AUTO else self.initial[0]

    @property
    def initial(self) -> list[str]:
        """Names of the models loaded at the start: the named and the pinned ones."""
        pinned = (model.names[0] for model in self.served() if model.pinned)
        return list(dict.fromkeys((*(model.names[0] for model in self._at_start()), *pinned)))


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Address of a server."""

    host: str = option("127.0.0.1", "Interface to listen on; 0.0.0.0 or :: for all.", CONNECTIONS, metavar="NAME")
    port: int = option(
        8080, "Port to listen on; 0 picks a free one.", CONNECTIONS, metavar="N", short="-p", minimum=0, maximum=65535
    )
    unix: str | None = option(None, "Listen on this Unix socket instead of a port.", CONNECTIONS, metavar="PATH")
    """Only the user who started the server may connect; the file is removed when the server exits."""

    @property
    def public(self) -> bool:
        """True if other machines can connect."""
        return self.unix is None and not is_loopback(self.host)

    def check(self, typed: Collection[str]) -> None:
        """Raise `UsageError` for a Unix socket and a port. typed: the names of the options on the command line."""
        if self.unix is None:
            return
        if other := {"host", "port"} & set(typed):
            raise UsageError(
                f"--unix and --{min(other)} contradict each other: a server listens on one of them",
                "give one of them",
            )
        if not self.unix:
            raise UsageError("--unix needs a path", "such as  --unix /run/user/1000/lmtool.sock")


@dataclass(frozen=True, slots=True)
class EvergreenOptions:
    """Evergreen options of a server, which always serves it at `/evergreen` on its port."""

    grpc_port: int | None = option(
        None,
        "Serve Evergreen over gRPC on this port as well; 0 picks a free one.",
        CONNECTIONS,
        metavar="N",
        minimum=0,
        maximum=65535,
    )
    allow_ref: tuple[str, ...] = option(
        (),
        "Allow Evergreen nodes to refer to file:FOLDER or https://HOST (repeatable).",
        CONNECTIONS,
        metavar="WHERE",
    )
    peer_actions: bool = option(False, "Allow installed Evergreen actions to call their clients' actions.", CONNECTIONS)

    def check(self) -> None:
        """Raise `UsageError` for an invalid reference, `ResourceError` without the gRPC packages."""
        if self.allow_ref:
            from lmtool.protocol.evergreen.references import allowed_references

            allowed_references(self.allow_ref)
        if self.grpc_port is not None and find_spec("grpc") is None:
            raise ResourceError("Evergreen over gRPC needs grpcio", "install it:  pip install 'lmtool[grpc]'")


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Settings of uvicorn for HTTP and WebSocket."""

    root_path: str = option("", "Path at which a reverse proxy mounts this server.", CONNECTIONS, metavar="PATH")
    uvicorn_log_level: str = option(
        "error", "uvicorn's log level: critical, error, warning, info, debug.", CONNECTIONS, metavar="LEVEL"
    )

    def check(self) -> None:
        """Raise `UsageError` for a level that is unknown or a path that is none."""
        if self.uvicorn_log_level not in LOG_LEVELS:
            raise UsageError(f"--uvicorn-log-level is {self.uvicorn_log_level!r}", f"one of {', '.join(LOG_LEVELS)}")
        if self.root_path and not self.root_path.startswith("/"):
            raise UsageError(f"--root-path is {self.root_path!r}; expected a path that begins with /", "such as /llm")


@dataclass(frozen=True, slots=True)
class ReplicasConfig:
    """Workers of one model behind one address."""

    replicas: int = option(1, "Number of worker processes.", ENGINE, metavar="N", minimum=1, maximum=256)
    layout: str | None = option(None, "Run G workers on D CUDA devices each.", ENGINE, metavar="GxD")


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """Permission to watch other clients' traffic, in addition to the server's user and keys with that right."""

    watch: bool = option(False, "Allow every client to watch the others with lmtool inspect.", CONNECTIONS)


@dataclass(frozen=True, slots=True)
class PoolsConfig:
    """Pools of providers that a server serves."""

    gateway: GatewayConfig
    file: str | None = None
    """File of the pools, reloaded at SIGHUP; None without a file."""
    local: str | None = field(default=None, repr=False)
    """Endpoint of the server that `local` members use when there are no models in this process."""
    key: str | None = field(default=None, repr=False)
    """Its API key."""


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Complete configuration of a service, apart from its address."""

    models: ModelsConfig = field(default_factory=ModelsConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    backend: BackendConfig = field(default_factory=BackendConfig)
    access: AccessPolicy = field(default_factory=AccessPolicy)
    """Policy that accepts or refuses requests."""
    api_keys: str | None = None
    """Key file of `access`, reloaded at SIGHUP; None without a file."""
    workers: tuple[str, ...] = field(default=(), repr=False)
    """Endpoints of servers that replace models in this process; they are sent the same API key."""
    balances: bool = False
    """True if the workers are independent servers with models of their own; otherwise they serve `models`."""
    http: HttpConfig = field(default_factory=HttpConfig)
    pools: PoolsConfig | None = None
    """Pools in addition to the models, or instead of them."""
    pools_only: bool = False
    """True if the pools replace the models."""
    evergreen: EvergreenOptions = field(default_factory=EvergreenOptions)
    certificate: Certificate | None = None
    """TLS certificate of its ports; None without TLS."""
    watch: WatchConfig = field(default_factory=WatchConfig)

    def __post_init__(self) -> None:
        """Raise `UsageError` for `--watch` with a key file."""
        if self.watch.watch and self.api_keys is not None:
            raise UsageError(
                "--watch and --api-keys contradict each other: the key file says which keys may watch",
                "omit --watch, and write  watch = true  below such a key",
            )


@dataclass(frozen=True, slots=True)
class LifeConfig:
    """Start, shutdown and logs of a server."""

    drain_limit: float = option(
        3600.0, "Longest wait for running streams at shutdown.", CONNECTIONS, metavar="SECONDS", minimum=0
    )
    ready_file: str | None = option(
        None, "Write the URL to this file once requests are answered.", OUTPUT, metavar="PATH"
    )
    """Removed when the server exits."""
    json_logs: bool = option(False, "Log one JSON object per line.", OUTPUT)


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """Configuration of one run of `lmtool serve`, `balance` or `gateway`."""

    listen: ListenConfig | None = field(default_factory=ListenConfig)
    """None: use stdin and stdout."""
    service: ServiceConfig = field(default_factory=ServiceConfig)
    life: LifeConfig = field(default_factory=LifeConfig)
    record: str | None = None
    """File or folder for traces of the LMTP and HTTP traffic."""
    verbose: bool = False
    """Log descriptions of models as well."""
    debug: bool = False
    """Print the traceback of each error that is logged."""


def _gguf_metadata(path: Path) -> Mapping[str, Any]:
    """Metadata of a GGUF file; empty if the file is malformed, which the backend reports when it loads the model."""
    try:
        return read_header(path).metadata
    except ModelLoadError:
        return {}
