"""Where rooms meet: what is plugged into what, for a server, for a client, and for a model in this process."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from weakref import WeakSet

from lmtool.cli.backends import DEFAULT, BackendConfig, find
from lmtool.errors import FileError, LmtoolError, ModelLoadError, ModelNotFoundError, ResourceError, UsageError
from lmtool.interfaces import Counted
from lmtool.types import ModelEntry

if TYPE_CHECKING:
    import tokenizers

    from lmtool.engine.config import EngineConfig
    from lmtool.engine.host import ModelHost
    from lmtool.engine.model_slot import ServedModel
    from lmtool.guide.compiler import MatcherCompiler
    from lmtool.interfaces import GuideCompiler, LoadedModel
    from lmtool.lmtp.client import LmtpClient, OnFrame
    from lmtool.lmtp.endpoint import Endpoint
    from lmtool.text.tokenizer import TextTokenizer
    from lmtool.types import LoadProgress

EMBEDDED_NAME = "lmtool-tiny"
"""The name of the model that comes with lmtool, for `serve` and for clients."""
AUTO = "auto"
"""In place of a model's name: load whatever a client names."""
SERVE_PACKAGES = ("torch", "transformers", "safetensors", "starlette", "uvicorn", "llguidance")
SMALL_BYTES = 32_000_000
"""Size of the weights on disk below which one CPU thread is faster than several."""
GGUF = ".gguf"
"""What files end in that llama.cpp reads; a tokenizer.json beside one is its tokenizer."""
INSTALL_SERVE = "pip install 'lmtool[serve]'"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelsConfig:
    """Which models a server has, and under which names."""

    model: str | None = None
    """A local folder, a hub name, `auto` for whatever a client names; None or `lmtool-tiny` for the embedded model."""
    served_model_name: tuple[str, ...] = ()
    """Further names for the model; the first one is shown in place of its own."""
    allow_model: tuple[str, ...] = ()
    """Further models that are loaded when a client names them."""
    max_loaded: int | None = None
    """Most models in memory at once; the one unused longest makes room. None: no limit."""
    idle_unload: float | None = None
    """Seconds without a stream after which a model leaves memory. None: never."""
    tokenizer: str | None = None
    """A local folder or a hub name that has the main model's tokenizer; None: the model itself has."""
    chat_template: str | None = None
    """A file with the main model's chat template; None: the one that its tokenizer brings."""
    tool_call_parser: str | None = None
    """How models write calls of tools, by the names in `http_api.tools.parsers`; None: as their templates teach."""

    def check(self) -> None:
        """Raise `UsageError`, `FileError` or `ModelLoadError` for what cannot work, before anything is loaded."""
        from lmtool.http_api.tools.parsers import FORMS

        if self.tool_call_parser is not None and self.tool_call_parser not in FORMS:
            known = ", ".join(FORMS)
            raise UsageError(f"--tool-call-parser {self.tool_call_parser!r} is unknown", f"known: {known}")
        local = self.tokenizer is not None and self.tokenizer.startswith(("/", ".", "~"))
        if local and not Path(self.tokenizer or "").expanduser().is_dir():
            raise FileError(f"there is no folder {self.tokenizer}", "check --tokenizer")
        self.template()
        _served(self)

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

    def reads(self, source: str) -> tuple[str, str | None]:
        """Where the tokenizer of the model at `source` is, and the template in place of its own. Raises `FileError`."""
        if self.model == AUTO or source != served(self.model).source:
            return source, None
        return self.tokenizer or source, self.template()

    @property
    def main(self) -> str | None:
        """The name of the model that is loaded at the start; None under `auto`."""
        return None if self.model == AUTO else served(self.model, self.served_model_name).names[0]


@runtime_checkable
class Guided(Counted, Protocol):
    """A model that can hold streams to constraints."""

    def guide_by(self, guides: GuideCompiler) -> None:
        """Take constraints from now on, compiled by `guides`, which belongs to the model then."""


@dataclass
class Loader:
    """Loads models with their tokenizers; knows the engines that are in memory."""

    config: EngineConfig
    backend: BackendConfig = field(default_factory=BackendConfig)
    engines: WeakSet[Counted] = field(default_factory=WeakSet)
    known_tokenizers: dict[str, TextTokenizer] = field(default_factory=dict)
    """By folder or hub name."""
    guides: WeakSet[MatcherCompiler] = field(default_factory=WeakSet)
    """What compiles constraints for these engines, with its counts."""
    models: ModelsConfig = field(default_factory=ModelsConfig)
    """What was said of the main model's tokenizer."""

    def load(self, source: str, on_progress: Callable[[LoadProgress], None]) -> LoadedModel:
        """A running model that speaks text, or ids only where it has no tokenizer. Blocks; call it from a thread.

        source: a local folder or a hub name. Raises `ModelLoadError`, `ResourceError` or `OutOfMemoryError`.
        """
        from lmtool.guide.answer_check import JsonAnswerCheck
        from lmtool.guide.compiler import MatcherCompiler
        from lmtool.text.text_model import TextModel
        from lmtool.text.tokenizer import load_tokenizer

        with _no_collection(), ThreadPoolExecutor(1, thread_name_prefix="lmtool-tokenizer") as beside:
            folder = str(Path(source).parent) if source.endswith(GGUF) else source
            where, template = self.models.reads(source)
            where = where if where != source else folder
            revision = self.config.revision if where == folder else None
            reading = beside.submit(load_tokenizer, where, self._converted, revision=revision, chat_template=template)
            # Known at once here; transformers would ask a hub that cannot be reached for half a minute.
            absent = not Path(folder).is_dir() and isinstance(reading.exception(), ModelNotFoundError)
            if absent or (where != folder and reading.exception() is not None):
                reading.result()  # a tokenizer that was asked for, or all of the model, cannot be had
            told = partial(_while_loading, on_progress)
            engine = find(self.backend.backend)(source, self.config, self.backend.options, told)
            if isinstance(engine, Counted):
                self.engines.add(engine)
            tokenizer = _tokenizer_or_none(source, reading.result)
        if tokenizer is None:
            return engine
        self.known_tokenizers[source] = tokenizer
        if isinstance(engine, Guided):
            info = engine.info_now
            assert info.vocab_size is not None
            guides = MatcherCompiler(tokenizer.to_json(), info.vocab_size, info.eos_token_ids)
            self.guides.add(guides)
            engine.guide_by(guides)
        return TextModel(engine, tokenizer, JsonAnswerCheck())

    def _converted(self, source: str) -> tokenizers.Tokenizer:
        """The tokenizer of a model without tokenizer.json, by transformers, which the model needs anyway."""
        from lmtool.engine.older_tokenizer import convert

        return convert(source, self.config.revision)

    def streams(self) -> tuple[int, int]:
        """Streams running and waiting in all engines."""
        now = [engine.info_now for engine in self.engines]
        return sum(info.running or 0 for info in now), sum(info.waiting or 0 for info in now)

    def guide_counts(self) -> dict[str, float]:
        """What all compilers of constraints have done so far, and what they keep now."""
        every = [guides.counts for guides in self.guides]
        return {
            "compiles_total": sum(counts.compiles for counts in every),
            "hits_total": sum(counts.hits for counts in every),
            "failures_total": sum(counts.failures for counts in every),
            "seconds_total": sum(counts.seconds for counts in every),
            "waiting": sum(counts.waiting for counts in every),
            "cached": sum(counts.cached for counts in every),
            "cached_bytes": sum(counts.cached_bytes for counts in every),
        }


def _while_loading(on_progress: Callable[[LoadProgress], None], progress: LoadProgress) -> None:
    """Pass on what is told before the end; how it ended is told by returning or raising."""
    if progress.phase == "loading":
        on_progress(progress)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Look for no garbage meanwhile: that makes importing torch and transformers a fifth longer and finds none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _tokenizer_or_none(source: str, result: Callable[[], TextTokenizer]) -> TextTokenizer | None:
    """A model without a tokenizer can still be served: LMTP needs ids only."""
    try:
        return result()
    except LmtoolError as error:
        _log.warning("%s is served with token ids only: %s", source, error.message)
        return None


def host(models: ModelsConfig, loader: Loader) -> ModelHost:
    """The models a server has, none of them loaded yet."""
    from lmtool.engine.host import ModelHost

    return ModelHost(
        loader.load,
        _served(models),
        any_name=models.model == AUTO,
        max_loaded=models.max_loaded,
        idle_seconds=models.idle_unload,
    )


def listed(models: ModelsConfig) -> list[ModelEntry]:
    """What a server of these models will list as long as it loads the first one."""
    return [
        ModelEntry(model.names[0], model.aliases, "unloaded" if at else "loading")
        for at, model in enumerate(_served(models))
    ]


def _served(models: ModelsConfig) -> list[ServedModel]:
    """The models of a server, each once. Raises `UsageError` where two have a name in common."""
    if models.model == AUTO:
        return []
    found = [served(models.model, models.served_model_name)]
    for model in map(served, models.allow_model):
        if any(model.source == other.source for other in found):
            continue
        for name in model.names:
            if any(name in other.names for other in found):
                raise UsageError(f"two models have the name {name!r}", "rename the folder of one of them")
        found.append(model)
    return found


def served(model: str | None, aliases: Sequence[str] = ()) -> ServedModel:
    """What is loaded for a model as typed, and the names under which clients may ask for it.

    A folder shows its last part: its path is nobody's business, but may be asked for. Raises `ModelLoadError` for what
    is neither a folder nor a possible name.
    """
    from lmtool.tiny.path import MODEL_DIR

    if model in {None, EMBEDDED_NAME}:
        return _named(str(MODEL_DIR), aliases, EMBEDDED_NAME)
    assert model is not None
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        path = folder.resolve()
        return _named(str(folder), aliases, path.name, model, str(path))
    if folder.suffix == GGUF and folder.is_file():
        return _named(str(folder), aliases, folder.stem, model)
    if model.startswith(("/", ".", "~")) or model.count("/") > 1 or folder.exists() or not model:
        raise ModelLoadError(
            f"there is no model folder {model!r}",
            "give the folder that holds config.json, or a name on the Hugging Face hub such as gpt2",
            "the model that comes with lmtool needs no name:  lmtool serve",
        )
    return _named(model, aliases, model)


def _named(source: str, aliases: Sequence[str], *own: str) -> ServedModel:
    from lmtool.engine.model_slot import ServedModel

    return ServedModel(source, tuple(dict.fromkeys((*aliases, *own))), tuple(dict.fromkeys(aliases))[1:])


def threads_for(model: str | None) -> int | None:
    """CPU threads for a server of this model where nobody said: 1 for a very small one, None (torch's choice) else.

    Its matrices are too small to share out: handing them over takes longer than computing them, above all on a busy
    machine (measured: 4.3 instead of 6.1 s of CPU until the embedded model was ready).
    """
    if model == AUTO:
        return None
    weights = [file.stat().st_size for file in Path(served(model).source).glob("*.safetensors")]
    return 1 if weights and sum(weights) < SMALL_BYTES else None


def check_device(backend: BackendConfig, engine: EngineConfig) -> None:
    """Raise `ResourceError` for a device that was asked for and is not there. Imports torch; call it from a thread."""
    if backend.backend == DEFAULT and engine.device.startswith("cuda"):
        from lmtool.engine.weights import find_device

        find_device(engine.device)


def need_serve_packages() -> None:
    """Raise `ResourceError` with the install line when a package is missing that only servers need."""
    need_packages(SERVE_PACKAGES)


def need_packages(names: Sequence[str]) -> None:
    """Raise `ResourceError` with the install line when one of these packages is missing."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ResourceError(f"serving a model needs {', '.join(missing)}", f"install it:  {INSTALL_SERVE}")


def connect(
    endpoint: str | Endpoint,
    *,
    api_key: str | None = None,
    open_timeout: float | None = 10.0,
    on_frame: OnFrame | None = None,
    on_progress: Callable[[LoadProgress], None] | None = None,
    on_ignored: Callable[[tuple[str, ...]], None] | None = None,
) -> LmtpClient:
    """The model behind an endpoint; `async with` opens and closes the connection. See `LmtpClient.connect`."""
    from lmtool.lmtp.client import LmtpClient

    return LmtpClient(
        endpoint,
        api_key=api_key,
        open_timeout=open_timeout,
        on_frame=on_frame,
        on_progress=on_progress,
        on_ignored=on_ignored,
    )
