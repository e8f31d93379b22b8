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
from typing import TYPE_CHECKING
from weakref import WeakSet

from lmtool.errors import LmtoolError, ModelLoadError, ModelNotFoundError, ResourceError

if TYPE_CHECKING:
    import tokenizers

    from lmtool.engine.config import EngineConfig
    from lmtool.engine.engine import Engine
    from lmtool.engine.host import ModelHost
    from lmtool.engine.model_slot import ServedModel
    from lmtool.lmtp.client import LmtpClient, OnFrame
    from lmtool.ports import LoadedModel, Tokenizer
    from lmtool.types import LoadProgress

EMBEDDED_NAME = "lmtool-tiny"
"""The name of the model that comes with lmtool, for `serve` and for clients."""
AUTO = "auto"
"""In place of a model's name: load whatever a client names."""
SERVE_PACKAGES = ("torch", "transformers", "safetensors", "starlette", "uvicorn")
SMALL_BYTES = 32_000_000
"""Size of the weights on disk below which one CPU thread is faster than several."""
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

    @property
    def main(self) -> str | None:
        """The name of the model that is loaded at the start; None under `auto`."""
        return None if self.model == AUTO else served(self.model, self.served_model_name).names[0]


@dataclass
class Loader:
    """Loads models with their tokenizers; knows the engines that are in memory."""

    config: EngineConfig
    engines: WeakSet[Engine] = field(default_factory=WeakSet)

    def load(self, source: str, on_progress: Callable[[LoadProgress], None]) -> LoadedModel:
        """A running model that speaks text, or ids only where it has no tokenizer. Blocks; call it from a thread.

        source: a local folder or a hub name. Raises `ModelLoadError`, `ResourceError` or `OutOfMemoryError`.
        """
        from lmtool.text.text_model import TextModel
        from lmtool.text.tokenizer import load_tokenizer

        with _no_collection(), ThreadPoolExecutor(1, thread_name_prefix="lmtool-tokenizer") as beside:
            reading = beside.submit(load_tokenizer, source, self._converted, revision=self.config.revision)
            if not Path(source).is_dir() and isinstance(error := reading.exception(), ModelNotFoundError):
                # Known at once here; transformers would ask a hub that cannot be reached for half a minute.
                raise error
            from lmtool.engine.backends import load_engine

            engine = load_engine(source, self.config, partial(_while_loading, on_progress))
            self.engines.add(engine)
            tokenizer = _tokenizer_or_none(source, reading.result)
        return engine if tokenizer is None else TextModel(engine, tokenizer)

    def _converted(self, source: str) -> tokenizers.Tokenizer:
        """The tokenizer of a model without tokenizer.json, by transformers, which the model needs anyway."""
        from lmtool.engine.older_tokenizer import convert

        return convert(source, self.config.revision)

    def streams(self) -> tuple[int, int]:
        """Streams running and waiting in all engines."""
        now = [engine.info_now for engine in self.engines]
        return sum(info.running or 0 for info in now), sum(info.waiting or 0 for info in now)


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


def _tokenizer_or_none(source: str, result: Callable[[], Tokenizer]) -> Tokenizer | None:
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
        [] if models.model == AUTO else [served(models.model, models.served_model_name), *_allowed(models)],
        any_name=models.model == AUTO,
        max_loaded=models.max_loaded,
        idle_seconds=models.idle_unload,
    )


def _allowed(models: ModelsConfig) -> list[ServedModel]:
    return [served(model) for model in models.allow_model if model != models.model]


def served(model: str | None, aliases: Sequence[str] = ()) -> ServedModel:
    """What is loaded for a model as typed, and the names under which clients may ask for it.

    A folder shows its last part: its path is nobody's business, but may be asked for. Raises `ModelLoadError` for what
    is neither a folder nor a possible name.
    """
    from lmtool.engine.model_slot import ServedModel
    from lmtool.tiny.path import MODEL_DIR

    if model in {None, EMBEDDED_NAME}:
        return ServedModel(str(MODEL_DIR), tuple(dict.fromkeys((*aliases, EMBEDDED_NAME))))
    assert model is not None
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        path = folder.resolve()
        return ServedModel(str(folder), tuple(dict.fromkeys((*aliases, path.name, model, str(path)))))
    if model.startswith(("/", ".", "~")) or model.count("/") > 1 or folder.exists() or not model:
        raise ModelLoadError(
            f"there is no model folder {model!r}",
            "give the folder that holds config.json, or a name on the Hugging Face hub such as gpt2",
            "the model that comes with lmtool needs no name:  lmtool serve",
        )
    return ServedModel(model, tuple(dict.fromkeys((*aliases, model))))


def threads_for(model: str | None) -> int | None:
    """CPU threads for a server of this model where nobody said: 1 for a very small one, None (torch's choice) else.

    Its matrices are too small to share out: handing them over takes longer than computing them, above all on a busy
    machine (measured: 4.3 instead of 6.1 s of CPU until the embedded model was ready).
    """
    if model == AUTO:
        return None
    weights = [file.stat().st_size for file in Path(served(model).source).glob("*.safetensors")]
    return 1 if weights and sum(weights) < SMALL_BYTES else None


def need_serve_packages() -> None:
    """Raise `ResourceError` with the install line when a package is missing that only servers need."""
    missing = [name for name in SERVE_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ResourceError(f"serving a model needs {', '.join(missing)}", f"install it:  {INSTALL_SERVE}")


def connect(
    endpoint: str,
    *,
    open_timeout: float | None = 10.0,
    on_frame: OnFrame | None = None,
    on_progress: Callable[[LoadProgress], None] | None = None,
    on_ignored: Callable[[tuple[str, ...]], None] | None = None,
) -> LmtpClient:
    """The model behind an endpoint; `async with` opens and closes the connection. See `LmtpClient.connect`."""
    from lmtool.lmtp.client import LmtpClient

    return LmtpClient(
        endpoint, open_timeout=open_timeout, on_frame=on_frame, on_progress=on_progress, on_ignored=on_ignored
    )
