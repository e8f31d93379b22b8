"""Loads a causal language model, or an older tokenizer, through transformers: from a local folder or the hub."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from lmtool.core.errors import FileError, LmtoolError, ModelLoadError, OutOfMemoryError, ResourceError
from lmtool.inference.engine.hardware import choose_dtype, this_machine
from lmtool.inference.engine.model_folder import ADVICE, CONFIG, UNSUPPORTED, check_folder, check_sizes, refuse_adapter
from lmtool.inference.engine.random_model import is_random, random_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tokenizers import Tokenizer
    from transformers import PreTrainedConfig, PreTrainedModel

    from lmtool.core.types import LoadProgress
    from lmtool.inference.engine.config import EngineConfig

_logger = logging.getLogger(__name__)
_READING = threading.Lock()
"""Of the loads that run beside each other one reads weights: transformers sets torch's default dtype meanwhile."""
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


def load_model(
    name: str, config: EngineConfig, device: torch.device, on_progress: Callable[[LoadProgress], None]
) -> PreTrainedModel:
    """The model `name` on `device`, in evaluation mode, without gradients.

    name: a local folder, a hub name (downloaded, or taken from the local hub cache), or `random:NAME`.
    Raises `ModelLoadError` (not found, not a causal language model, damaged) or `OutOfMemoryError`.
    """
    from transformers import AutoConfig, PretrainedConfig
    from transformers.utils.peft_utils import find_adapter_config_file

    from lmtool.inference.engine.load_progress import Progress

    if is_random(name):
        with load_errors(name, config), _READING:
            return random_model(name, choose_dtype(config.dtype, None, 0, this_machine(device)), device)
    if is_folder(name):
        check_folder(Path(name))
    else:
        with load_errors(name, config):
            raw, _ = PretrainedConfig.get_config_dict(name, revision=config.revision)
        check_sizes(f"the {CONFIG} of {name}", raw)
    total = checkpoint_bytes(name)
    progress = Progress(name, total, on_progress)
    progress.start()
    with load_errors(name, config), _READING, progress.watching():
        settings: dict[str, Any] = {
            "revision": config.revision,
            "trust_remote_code": config.trust_remote_code,
        }
        model_config = AutoConfig.from_pretrained(name, **settings)
        _check_causal(name, model_config, trusted=config.trust_remote_code)
        if not is_folder(name) and (adapter := find_adapter_config_file(name, revision=config.revision)) is not None:
            refuse_adapter(name, Path(adapter))
        quantized = _quantization(model_config)
        stored = getattr(model_config.get_text_config(), "dtype", None)
        dtype = choose_dtype(config.dtype, stored, total, this_machine(device))
        settings |= {
            "config": model_config,
            "dtype": dtype,
            "attn_implementation": "eager",
            "output_loading_info": True,
            "ignore_mismatched_sizes": True,  # reported below, by name
            "tqdm_class": progress.bar(),
        }
        try:
            model, report = _read(name, settings, device)
        except (ImportError, ValueError, RuntimeError, TypeError, AttributeError) as problem:
            if quantized is None or isinstance(problem, torch.OutOfMemoryError):
                raise
            raise _quantized(name, quantized, _first_line(problem).partition(": ")[2]) from problem
        unread = () if quantized else report["unexpected_keys"]
        _check_complete(name, report["missing_keys"], report["mismatched_keys"], unread)
        nn.Module.to(model, device)
        model.train(mode=False)
        for parameter in model.parameters():
            parameter.requires_grad = False
        return model


def _read(name: str, settings: dict[str, Any], device: torch.device) -> tuple[PreTrainedModel, dict[str, Any]]:
    """What transformers reads, and its report; weights are on `device` already where that works."""
    from transformers import AutoModelForCausalLM, __version__
    from transformers.quantizers import AutoHfQuantizer

    quantization = getattr(settings["config"], "quantization_config", None)
    if quantization and not AutoHfQuantizer.supports_quant_method(quantization):
        raise ValueError(f"transformers {__version__} does not know this method")  # and would read them as they are
    loaded: Any = None
    if device.type != "cpu":
        try:
            from lmtool.inference.engine.direct_loading import loading_onto

            with loading_onto(device):
                loaded = AutoModelForCausalLM.from_pretrained(name, **settings)
        except (AttributeError, ImportError, KeyError, NotImplementedError, TypeError) as problem:
            _logger.warning("%s is read into the host's memory first: %s: %s", name, type(problem).__name__, problem)
    if loaded is None:
        loaded = AutoModelForCausalLM.from_pretrained(name, **settings)
    return loaded[0], loaded[1]


def display_name(name: str) -> str:
    """The name for clients: a folder's last part, a GGUF file's without its suffix, a hub name as it is."""
    if name.endswith(GGUF):
        return Path(name).stem
    return Path(name).resolve().name if is_folder(name) else name


def is_folder(name: str) -> bool:
    """Whether there is a folder of that name; not for a name too long to be a path."""
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


_STATE = (
    "some of its layers keep a state of the text, as Mamba, linear attention and convolutions do, and streams here "
    "have keys and values only"
)
_STATEFUL = re.compile("linear|mamba|conv|recurrent|hybrid")
"""In the names of layers that keep a state."""


def _check_causal(name: str, config: PreTrainedConfig, *, trusted: bool) -> None:
    from transformers import AutoModelForCausalLM

    remote = trusted and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    known = AutoModelForCausalLM._model_mapping.get(type(config), None)  # noqa: SLF001  # no public question
    if known is None and not remote:
        kinds = ", ".join(config.architectures or [config.model_type])
        raise ModelLoadError(
            f"{name} is not a causal language model of a kind that is known here: it is {kinds}, {config.model_type}",
            f"choose a model that continues text: {ADVICE}",
        )
    text = config.get_text_config()
    layers = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    stateful = any(map(_STATEFUL.search, layers)) if layers else getattr(known, "_is_stateful", False)
    reason = _STATE if stateful else None
    reason = next((why for why, kinds in UNSUPPORTED.items() if config.model_type in kinds), reason)
    if known is not None and reason is not None:
        raise ModelLoadError(
            f"{name} ({known.__name__}) cannot be served: {reason}",
            "llama.cpp computes some of these from a GGUF file:  --backend llamacpp",
            "vLLM computes most of them, on a GPU:  --backend vllm",
        )
    if getattr(config, "is_encoder_decoder", False):
        raise ModelLoadError(f"{name} is an encoder-decoder model ({config.model_type}); only decoders are served")


def _quantization(config: PreTrainedConfig) -> str | None:
    """How a checkpoint's weights are quantized, such as `gptq, 4 bits`; None for one whose are not."""
    settings = getattr(config, "quantization_config", None)
    if not settings:
        return None
    known = settings if isinstance(settings, dict) else settings.to_dict()
    bits = known.get("bits") or (4 if known.get("load_in_4bit") else 8 if known.get("load_in_8bit") else None)
    parts = [known.get("quant_method") or "by a method that it does not name", known.get("format") or known.get("fmt")]
    return ", ".join(str(part) for part in (*parts, known.get("quant_algo"), bits and f"{bits} bits") if part)


def _quantized(name: str, how: str, reason: str) -> ModelLoadError:
    return ModelLoadError(
        f"{name} holds quantized weights ({how}), which cannot be loaded here: {reason}",
        "serve the model that they were made of; --quantize int8 or int4 (on a GPU fp8) packs it while it loads",
        "or a GGUF file of it, whose blocks stay as they are",
        "or this one through vLLM, on a GPU:  --backend vllm",
    )


_SCALED = re.compile(
    r"\.(weight_scale(_inv|_2)?|weight_packed|qweight|qzeros|scales|SCB|absmax)$|_(blocks|scales)$|\.lora_[AB]\."
)
"""Names of tensors without which the weights beside them mean something else: scales, and adapters."""


def _check_complete(
    name: str, absent: Iterable[str], misshapen: Iterable[tuple[str, Any, Any]], unread: Iterable[str]
) -> None:
    """Transformers fills up what a checkpoint lacks with random numbers, ignores what it does not know, and logs it."""
    if scales := sorted(key for key in unread if _SCALED.search(key)):
        raise _quantized(name, "or an adapter", f"{scales[0]} has no place in the model that config.json describes")
    wrong = [f"{key} is {list(stored)}, expected {list(expected)}" for key, stored, expected in sorted(misshapen)]
    for fault, keys in (("has weights in other shapes than its config.json says", wrong), ("lacks", sorted(absent))):
        if keys:
            more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            raise ModelLoadError(
                f"the checkpoint {name} {fault}: {', '.join(keys[:3])}{more}",
                "download it again, or check that config.json belongs to it",
            )


@contextlib.contextmanager
def load_errors(name: str, config: EngineConfig) -> Iterator[None]:
    """Turn the exceptions of loading into our own errors."""
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
    if "does not recognize this architecture" in str(problem):
        from transformers import __version__

        return ModelLoadError(
            f"the model in {name} is of a kind that transformers {__version__} does not know",
            "a newer one may:  pip install -U transformers",
        )
    if is_folder(name):
        return ModelLoadError(f"the model in {folder} cannot be loaded: {reason}", "see that its files belong together")
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


def _first_line(problem: BaseException) -> str:
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
