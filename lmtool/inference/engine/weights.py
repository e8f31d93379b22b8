"""Devices, names, sizes, load errors and older tokenizers of models; imports no transformers until it is needed."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

from lmtool.core.errors import FileError, LmtoolError, ModelLoadError, OutOfMemoryError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokenizers import Tokenizer

    from lmtool.inference.engine.config import EngineConfig

_logger = logging.getLogger(__name__)
_IMPORTING = threading.Lock()

GGUF = ".gguf"
"""Suffix of llama.cpp's files."""

_Table: TypeAlias = "dict[frozenset[str], dict[str, set[str]]]"
"""Names of required packages, to module, to the names it defines."""


def find_device(name: str) -> torch.device:
    """The device of that name. Raises `ResourceError` when there is none."""
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda:0" if available else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    index = name.partition(":")[2]
    if int(index or 0) >= available:
        visible = f"torch {torch.__version__} sees {available or 'no'} GPU{'' if available == 1 else 's'}"
        raise ResourceError(
            f"device {name!r} is not there: {visible}",
            "use --device cpu, or --device auto",
            "install a torch build for your GPU: https://pytorch.org/get-started",
        )
    return torch.device(f"cuda:{int(index or 0)}")


def display_name(name: str) -> str:
    """The name for clients: a folder's last part, a GGUF file's without its suffix, a hub name as it is."""
    if name.endswith(GGUF):
        return Path(name).stem
    return Path(name).resolve().name if is_folder(name) else name


def is_folder(name: str) -> bool:
    """True if there is a folder of that name; not for a name too long to be a path."""
    try:
        return Path(name).is_dir()
    except OSError:
        return False


def checkpoint_bytes(name: str) -> int:
    """Size of the weight files of a local folder, or of a GGUF file; 0 for a hub name, where it is not known yet."""
    folder = Path(name)
    if name.endswith(GGUF) and folder.is_file():
        return folder.stat().st_size
    for pattern in ("*.safetensors", "*.bin"):
        sizes = [path.stat().st_size for path in folder.glob(pattern)] if is_folder(name) else []
        if sizes:
            return sum(sizes)
    return 0


@contextlib.contextmanager
def load_errors(name: str, config: EngineConfig) -> Iterator[None]:
    """Turn the exceptions of loading into our own errors."""
    try:
        yield
    except LmtoolError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as problem:
        raise OutOfMemoryError(
            f"{name} does not fit into memory: {first_line(problem)}",
            "try --dtype bfloat16, a smaller model, or another --device",
        ) from problem
    except Exception as problem:
        _logger.debug("loading %s failed", name, exc_info=True)
        raise _load_error(name, config, problem) from problem


def _load_error(name: str, config: EngineConfig, problem: Exception) -> LmtoolError:
    folder = Path(name)
    reason = first_line(problem)
    if "out of memory" in reason.lower() or "can't allocate memory" in reason.lower():
        return OutOfMemoryError(f"{name} does not fit into memory: {reason}", "try --dtype bfloat16 or a smaller model")
    if "trust_remote_code" in str(problem):
        return ModelLoadError(
            f"{name} brings its own Python code, which is not run unless you allow it",
            "if you trust it: lmtool serve MODEL --trust-remote-code",
        )
    if "does not recognize this architecture" in str(problem):
        from transformers import __version__

        return ModelLoadError(
            f"the model in {name} is of a kind that transformers {__version__} does not know",
            "a newer one may:  pip install -U transformers",
        )
    if is_folder(name):
        return ModelLoadError(
            f"the model in {folder} cannot be loaded: {reason}", "check that its files belong together"
        )
    if name.startswith((".", "/", "~")) or _exists(folder):
        return ModelLoadError(f"{name} is not a model folder", "give the folder that holds config.json, or a hub name")
    revision = f" (revision {config.revision})" if config.revision else ""
    offline = "; HF_HUB_OFFLINE is set, so nothing is downloaded" if os.environ.get("HF_HUB_OFFLINE") else ""
    return ModelLoadError(
        f"{name}{revision} was not found: no folder of that name in {Path.cwd()}, and not on the model hub or in its "
        f"local cache: {reason}",
        "check the spelling; private models need `hf auth login`",
        f"without a network, give the path of a downloaded folder{offline}",
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def first_line(problem: BaseException) -> str:
    """The problem in one line: with the next one where the first only announces it."""
    if type(problem).__name__.startswith("StrictDataclass") and problem.__cause__ is not None:
        problem = problem.__cause__  # what is wrong with config.json, without the names of its checks
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    head = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type(problem).__name__}: {head[:300]}" if head else type(problem).__name__


def import_transformers() -> None:
    """Import transformers and its table of models; a tenth of a server's start-up faster than importing them plainly.

    `import transformers` builds the table of all model files under the name `models`, and `import transformers.models`
    builds it once more without it, because a cache between the two is too small (seen in 5.17 to 5.23). The second
    table is made from the first here. A transformers that works differently inside is imported plainly.
    """
    with _IMPORTING:
        _import_once()


def _import_once() -> None:
    if "transformers.models" in sys.modules:
        return
    import_utils = importlib.import_module("transformers.utils.import_utils")
    build = getattr(import_utils, "define_import_structure", None)
    if build is None or not hasattr(build, "cache_info"):
        return  # without its memory, asking it for the first table would look through the files again
    setattr(import_utils, "define_import_structure", functools.partial(_from_first, build))  # noqa: B010 # see above
    try:
        importlib.import_module("transformers.models")
    finally:
        setattr(import_utils, "define_import_structure", build)  # noqa: B010 # as it was


def _from_first(build: Callable[..., _Table], path: str, prefix: str | None = None) -> _Table:
    folder = Path(path).parent
    if prefix is not None or Path(path).name != "__init__.py" or folder.name != "models":
        return build(path, prefix)
    return without_prefix(build(folder, prefix="models"))


def without_prefix(table: _Table) -> _Table:
    """The table of the modules below `models`, named from there; other modules are left out."""
    modules_below = {
        backends: {name.removeprefix("models."): value for name, value in modules.items() if name.startswith("models.")}
        for backends, modules in table.items()
    }
    return {backends: modules for backends, modules in modules_below.items() if modules}


def convert_tokenizer(name: str, revision: str | None = None) -> Tokenizer:
    """The tokenizer of a model without tokenizer.json, from vocab.json and merges.txt, a SentencePiece model, ...

    name: a folder or hub name.
    Raises `FileError` where transformers makes none that the `tokenizers` library can run: one that is Python code,
    or one whose files or libraries are missing.
    """
    from transformers import AutoTokenizer

    advice = (
        f"save it in today's format, where that works:  AutoTokenizer.from_pretrained({name!r}).save_pretrained(FOLDER)"
    )
    try:
        loaded = AutoTokenizer.from_pretrained(name, revision=revision)
    except Exception as error:  # transformers, sentencepiece and tokenizers have no common one
        reason = str(error).strip().partition("\n")[0]
        if reason.endswith(":"):  # a list of all that transformers has tried
            raise FileError(f"{name!r} has no tokenizer: neither tokenizer.json nor older files", advice) from error
        raise FileError(f"{name!r} has no tokenizer.json, and none can be made: {reason}", advice) from error
    tokenizer: Tokenizer | None = getattr(loaded, "backend_tokenizer", None)
    if tokenizer is None:
        raise FileError(f"{name!r} has a tokenizer of Python code, {type(loaded).__name__}", advice)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    if not tokenizer.get_vocab().keys() - added:  # what transformers makes of a folder without any tokenizer
        raise FileError(f"{name!r} has no tokenizer: neither tokenizer.json nor older files", advice)
    return tokenizer
