"""Reads a checkpoint through transformers: refuses what cannot be served, reports progress, and fills a GPU directly.

transformers by itself reads straight onto a GPU only where accelerate is installed. Otherwise all weights would be in
the host's memory first: 16 GB of a model with 8B weights in bfloat16. `loading_onto` maps the files, so that they take
page cache and nothing else: a checkpoint of 972 MB in four shards that becomes float32 took 12 MB in addition, and
1,949 MB when it was converted on the host (measured with a device without memory in place of the GPU).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import re
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.utils.tqdm import tqdm as HubBar  # noqa: N812  # a class, whatever its name
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    __version__,
    modeling_utils,
)
from transformers.quantizers import AutoHfQuantizer
from transformers.utils import logging as transformers_logging
from transformers.utils.peft_utils import find_adapter_config_file

from lmtool.core.errors import ModelLoadError
from lmtool.core.types import LoadProgress
from lmtool.inference.engine.hardware import choose_dtype, this_machine
from lmtool.inference.engine.model_folder import ADVICE, CONFIG, UNSUPPORTED, check_folder, check_sizes, refuse_adapter
from lmtool.inference.engine.random_model import is_random, random_model
from lmtool.inference.engine.weights import checkpoint_bytes, first_line, is_folder, load_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor
    from transformers import PreTrainedConfig

    from lmtool.inference.engine.config import EngineConfig

_logger = logging.getLogger(__name__)
_READING = threading.Lock()
"""Held to read weights, by one of the loads that run at once: transformers sets torch's default dtype meanwhile."""


def load_model(
    name: str, config: EngineConfig, device: torch.device, on_progress: Callable[[LoadProgress], None]
) -> PreTrainedModel:
    """The model `name` on `device`, in evaluation mode, without gradients.

    name: a local folder, a hub name (downloaded, or taken from the local hub cache), or `random:NAME`.
    Raises `ModelLoadError` (not found, not a causal language model, damaged) or `OutOfMemoryError`.
    """
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
            raise _quantized(name, quantized, first_line(problem).partition(": ")[2]) from problem
        unread = () if quantized else report["unexpected_keys"]
        _check_complete(name, report["missing_keys"], report["mismatched_keys"], unread)
        nn.Module.to(model, device)
        model.train(mode=False)
        for parameter in model.parameters():
            parameter.requires_grad = False
        return model


def _read(name: str, settings: dict[str, Any], device: torch.device) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Model read by transformers, and its report; weights are on `device` already where that works."""
    quantization = getattr(settings["config"], "quantization_config", None)
    if quantization and not AutoHfQuantizer.supports_quant_method(quantization):
        raise ValueError(f"transformers {__version__} does not know this method")  # and would read them as they are
    loaded: Any = None
    if device.type != "cpu":
        try:
            with loading_onto(device):
                loaded = AutoModelForCausalLM.from_pretrained(name, **settings)
        except (AttributeError, ImportError, KeyError, NotImplementedError, TypeError) as problem:
            _logger.warning("%s is read into the host's memory first: %s: %s", name, type(problem).__name__, problem)
    if loaded is None:
        loaded = AutoModelForCausalLM.from_pretrained(name, **settings)
    return loaded[0], loaded[1]


_STATE = (
    "some of its layers keep a state of the text, as Mamba, linear attention and convolutions do, and streams here "
    "have keys and values only"
)
_STATEFUL = re.compile("linear|mamba|conv|recurrent|hybrid")
"""In the names of layers that keep a state."""


def _check_causal(name: str, config: PreTrainedConfig, *, trusted: bool) -> None:
    remote = trusted and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    known = AutoModelForCausalLM._model_mapping.get(type(config), None)  # noqa: SLF001  # no public question
    if known is None and not remote:
        kinds = ", ".join(config.architectures or [config.model_type])
        raise ModelLoadError(
            f"{name} is not a causal language model that transformers knows: it is {kinds}, {config.model_type}",
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
    """Description of a checkpoint's quantization, such as `gptq, 4 bits`; None if it is not quantized."""
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


_CONVERT = "convert_and_load_state_dict_in_model"
"""Takes each tensor of the checkpoint to its place."""

_FINISH = "_finalize_model_loading"
"""Makes what no checkpoint holds, such as rotary frequencies."""

_COPY = "_materialize_copy"
"""Reads a tensor: converts it on the host, and copies it."""


@contextlib.contextmanager
def loading_onto(device: torch.device) -> Iterator[None]:
    """`from_pretrained` puts every tensor on `device` as it reads it; of one call at a time.

    The two functions of transformers that place tensors get a device map, and the one that reads them converts them
    there (seen in 5.17 to 5.23). A transformers that works differently inside loads as ever, into the host's memory;
    quantized checkpoints do so too.

    The same through `device_map` would also allocate all memory at once and free it again, which leaves one segment
    that torch can give back only when all weights in it are gone.
    """
    from transformers import core_model_loading  # `_read` loads through the host where this transformers has none

    with contextlib.ExitStack() as restore:
        for owner, name in ((modeling_utils, _CONVERT), (PreTrainedModel, _FINISH)):
            original = vars(owner).get(name)
            if original is None:
                continue
            function = original.__func__ if isinstance(original, staticmethod) else original
            placing = functools.partial(_with_device, function, device)
            setattr(owner, name, staticmethod(placing) if isinstance(original, staticmethod) else placing)
            restore.callback(setattr, owner, name, original)
        if (original := vars(core_model_loading).get(_COPY)) is not None:
            setattr(core_model_loading, _COPY, copied)
            restore.callback(setattr, core_model_loading, _COPY, original)
        yield


def copied(tensor: Any, device: Any = None, dtype: torch.dtype | None = None) -> Tensor:  # noqa: ANN401  # as transformers calls it
    """A tensor on its device, converted there. tensor: what safetensors knows of it, read by `[...]`."""
    result: Tensor = tensor[...]
    if device is not None:
        result = result.to(device)
    return result if dtype is None else result.to(dtype)


def _with_device(function: Callable[..., Any], device: torch.device, *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401  # whatever transformers passes
    own = (_mapped(value, device) for value in arguments)
    return function(*own, **{name: _mapped(value, device) for name, value in keywords.items()})


def _mapped(value: Any, device: torch.device) -> Any:  # noqa: ANN401  # see above
    """The settings of a load with everything on one device; any other value as it is."""
    known = getattr(modeling_utils, "LoadStateDictConfig", None)
    if known is None or not isinstance(value, known) or value.hf_quantizer is not None:
        return value
    return dataclasses.replace(value, device_map={"": device})


class Progress:
    """Progress of one load: first bytes downloaded, if any, then bytes read into memory."""

    def __init__(self, model: str, total: int, report: Callable[[LoadProgress], None]) -> None:
        """total: bytes of the weight files; 0 for a model of the hub, whose size is only known while it comes."""
        self._model = model
        self._total = total
        self._report = report
        self._downloaded = 0
        self._to_download = 0

    def start(self) -> None:
        """Report that nothing is read yet."""
        self._report(LoadProgress(self._model, "loading", 0, self._total, f"reading {self._model}"))

    def expect(self, size: int) -> None:
        """Count one more file of `size` bytes to download."""
        self._to_download += size

    def download(self, size: int) -> None:
        """Count `size` more downloaded bytes."""
        self._downloaded += size
        message = f"downloading {self._model}"
        self._report(LoadProgress(self._model, "loading", self._downloaded, self._to_download, message))

    def read(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the weights as transformers takes them, and report after each percent."""
        every, total, reported = list(items), self._total or self._to_download, 0
        for index, item in enumerate(every, start=1):
            yield item
            percent = 100 * index // len(every)
            if percent > reported:
                reported = percent
                done = total * index // len(every)
                self._report(LoadProgress(self._model, "loading", done, total, f"reading {self._model}"))

    def bar(self) -> type[HubBar]:
        """A class for the hub client's download bars: it draws nothing and reports here."""
        progress = self

        class Bar(HubBar):
            """One file's bar."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # tqdm's own many
                super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]  # tqdm has no types
                if kwargs.get("unit") == "B":
                    progress.expect(int(kwargs.get("total") or 0))
                    progress.download(int(kwargs.get("initial") or 0))

            def update(self, n: float | None = 1) -> None:
                """Take note of n more bytes."""
                progress.download(int(n or 0))

        return Bar

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Follow transformers' bar over the weights of a checkpoint for the length of a load."""

        def bar(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
            if args and kwargs.get("desc") == "Loading weights":
                return self.read(args[0])
            return factory(*args, **{**kwargs, "disable": True})

        previous = transformers_logging.set_tqdm_hook(bar)
        try:
            yield
        finally:
            transformers_logging.set_tqdm_hook(previous)


class _Quiet:
    """Transformers' reports and Python's warnings, off while at least one load runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loads = 0
        self._restore = contextlib.ExitStack()

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """Keep transformers' own reports off the terminal: what matters is raised, or reported as progress.

        Both are matters of the whole process, so that of several loads the last one that ends restores them.
        """
        with self._lock:
            self._loads += 1
            if self._loads == 1:
                self._restore.callback(transformers_logging.set_verbosity, transformers_logging.get_verbosity())
                transformers_logging.set_verbosity(logging.ERROR)
                self._restore.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
        try:
            yield
        finally:
            with self._lock:
                self._loads -= 1
                if not self._loads:
                    self._restore.close()


quiet = _Quiet().load
