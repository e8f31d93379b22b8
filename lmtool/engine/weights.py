"""Loads a causal language model through transformers, from a local folder or by its hub name."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lmtool.engine.numerics import choose_dtype, this_machine
from lmtool.errors import LmtoolError, ModelLoadError, OutOfMemoryError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedConfig, PreTrainedModel

    from lmtool.engine.config import EngineConfig
    from lmtool.types import LoadProgress

_logger = logging.getLogger(__name__)


def find_device(name: str) -> torch.device:
    """The device of that name. Raises `ResourceError` when there is none such."""
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda:0" if available else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal():
        raise ResourceError(
            f"device {name!r} is not known; expected auto, cpu, cuda or cuda:N", "lmtool serve MODEL --device auto"
        )
    if int(index or 0) >= available:
        found = f"torch {torch.__version__} sees {available or 'no'} GPU{'' if available == 1 else 's'}"
        raise ResourceError(
            f"device {name!r} is not there: {found}",
            "use --device cpu, or --device auto",
            "install a torch build for your GPU: https://pytorch.org/get-started",
        )
    return torch.device(f"cuda:{int(index or 0)}")


def load_model(
    name: str, config: EngineConfig, device: torch.device, on_progress: Callable[[LoadProgress], None]
) -> PreTrainedModel:
    """The model `name` on `device`, in evaluation mode, without gradients.

    name: a local folder, or a hub name (downloaded, or taken from the local hub cache).
    Raises `ModelLoadError` (not found, not a causal language model, damaged), `ResourceError` (unknown dtype) or
    `OutOfMemoryError`.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    from lmtool.engine.load_progress import Progress

    total = checkpoint_bytes(name)
    progress = Progress(name, total, on_progress)
    progress.start()
    with translated(name, config), progress.watching():
        settings = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
        model_config = AutoConfig.from_pretrained(name, **settings)
        _check_causal(name, model_config, trusted=config.trust_remote_code)
        stored = getattr(model_config.get_text_config(), "dtype", None)
        dtype = choose_dtype(config.dtype, stored, total, this_machine(device))
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name,
            config=model_config,
            dtype=dtype,
            attn_implementation="eager",
            output_loading_info=True,
            tqdm_class=progress.bar(),
            **settings,
        )
        model: PreTrainedModel = loaded[0]
        report: dict[str, Any] = loaded[1]
        _check_complete(name, [*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])])
        nn.Module.to(model, device)
        model.train(mode=False)
        for parameter in model.parameters():
            parameter.requires_grad = False
        return model


def is_folder(name: str) -> bool:
    """Whether there is a folder of that name; what is too long to be a path is none."""
    try:
        return Path(name).is_dir()
    except OSError:
        return False


def checkpoint_bytes(name: str) -> int:
    """Size of the weight files of a local folder; 0 for a hub name, whose size is not known before it is read."""
    folder = Path(name)
    for pattern in ("*.safetensors", "*.bin"):
        sizes = [path.stat().st_size for path in folder.glob(pattern)] if is_folder(name) else []
        if sizes:
            return sum(sizes)
    return 0


def _check_causal(name: str, config: PreTrainedConfig, *, trusted: bool) -> None:
    from transformers import AutoModelForCausalLM

    remote = trusted and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if type(config) not in AutoModelForCausalLM._model_mapping and not remote:  # noqa: SLF001  # no public question
        kinds = ", ".join(config.architectures or [config.model_type])
        raise ModelLoadError(
            f"{name} is not a causal language model: it is {kinds}",
            "choose a model that continues text, such as gpt2 or a Llama, Mistral, Qwen or Gemma checkpoint",
        )
    if getattr(config, "is_encoder_decoder", False):
        raise ModelLoadError(f"{name} is an encoder-decoder model ({config.model_type}); only decoders are served")


def _check_complete(name: str, absent: list[str]) -> None:
    """Transformers fills up what a checkpoint lacks with random numbers, and only logs it."""
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise ModelLoadError(
            f"the checkpoint {name} lacks weights of its model, or has them in another shape: "
            f"{', '.join(sorted(absent)[:3])}{more}",
            "download it again, or check that config.json belongs to it",
        )


@contextlib.contextmanager
def translated(name: str, config: EngineConfig) -> Iterator[None]:
    """Turn whatever loading may raise into our own errors."""
    try:
        yield
    except LmtoolError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as problem:
        raise OutOfMemoryError(
            f"{name} does not fit into memory: {_first_line(problem)}",
            "try --dtype bfloat16, a smaller model, or another --device",
        ) from problem
    except Exception as problem:
        _logger.debug("loading %s failed", name, exc_info=True)
        raise _load_error(name, config, problem) from problem


def _load_error(name: str, config: EngineConfig, problem: Exception) -> LmtoolError:
    folder = Path(name)
    reason = _first_line(problem)
    if "out of memory" in reason.lower() or "can't allocate memory" in reason.lower():
        return OutOfMemoryError(f"{name} does not fit into memory: {reason}", "try --dtype bfloat16 or a smaller model")
    if "trust_remote_code" in str(problem):
        return ModelLoadError(
            f"{name} brings its own Python code, which is not run unless you allow it",
            "if you trust it: lmtool serve MODEL --trust-remote-code",
        )
    if is_folder(name):
        expected = "config.json and *.safetensors"
        return ModelLoadError(
            f"the model in {folder} cannot be loaded: {reason}",
            f"it holds: {_listing(folder)}; expected {expected}",
        )
    if name.startswith((".", "/", "~")) or _exists(folder):
        return ModelLoadError(f"{name} is not a model folder", "give the folder that holds config.json, or a hub name")
    revision = f" (revision {config.revision})" if config.revision else ""
    return ModelLoadError(
        f"{name}{revision} was not found: no folder of that name in {Path.cwd()}, and not on the model hub or in its "
        f"local cache: {reason}",
        "check the spelling; private models need `hf auth login`",
        "without a network, give the path of a downloaded folder" + _offline(),
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _offline() -> str:
    return "; HF_HUB_OFFLINE is set, so nothing is downloaded" if os.environ.get("HF_HUB_OFFLINE") else ""


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "nothing"


def _first_line(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines()
    return f"{type(problem).__name__}: {lines[0][:300]}" if lines else type(problem).__name__
