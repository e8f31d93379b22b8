"""Settings of the engine, each with its unit and its default."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lmtool.core.errors import UsageError
from lmtool.settings.option import check_options, option

DTYPES = ("float32", "bfloat16", "float16")
PANEL = "Engine"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The engine's settings: arguments of `lmtool.load` and `lmtool.serve`, options of `lmtool serve`."""

    device: str = option("auto", "Where to compute: auto, cpu, cuda, cuda:N.", PANEL, metavar="NAME")
    dtype: str = option(
        "auto",
        "Type of the weights: auto, float32, bfloat16, float16.",
        PANEL,
        metavar="TYPE",
        choices=("auto", *DTYPES),
    )
    """`auto` on CPU: float32 for float32 checkpoints of fewer than 50 million parameters, otherwise bfloat16 where the
    processor computes in it and float32 where not. `auto` on CUDA: the checkpoint's own, bfloat16 for float32 ones.
    """
    kernels: str = option(
        "auto",
        "C kernels on a CPU: auto (where they compile), required, none.",
        PANEL,
        metavar="MODE",
        choices=("auto", "required", "none"),
    )
    """Compiled for this processor at the first load, used by the whole process. `required`: nothing is loaded without
    them; `none`: torch's operators only."""
    quantize: str | None = option(
        None,
        "Quantize weights: int8, int4 on a CPU, fp8 on a GPU. Outputs differ slightly, those of int4 more.",
        PANEL,
        metavar="TYPE",
        choices=("int8", "int4", "fp8"),
    )
    """`int8` stores weights as bytes, one scale for 32 inputs of an output, and rounds activations to bytes in groups
    of 32. `int4` stores them in half a byte, the head as int8. Blocks of a GGUF file that are as narrow stay. `fp8`
    stores those of layers as e4m3, one scale for each output; where the GPU multiplies e4m3, activations are rounded
    with one for each row.
    """
    kv_cache_dtype: str = option(
        "auto",
        "Type of keys and values: auto (16 bits, or the weights' 32), fp8 (on a GPU: twice as many fit).",
        PANEL,
        metavar="TYPE",
        choices=("auto", "fp8"),
    )
    """`auto`: the model's; through the C kernels float32 beside float32 weights, else float16. `fp8`: e4m3, one scale
    for each head of a layer, measured on a short text when the model is loaded.
    """
    threads: int | None = option(
        None,
        "CPU threads; 1 for a very small model, else torch's choice.",
        PANEL,
        metavar="N",
        minimum=1,
        maximum=1024,  # torch dies of some thousands of threads
    )
    prefix_cache: bool = option(True, "Keep keys and values of prompts for those that begin alike.", PANEL)
    speculation: bool = option(True, "Speculate on repeated text while it pays; token ids stay the same.", PANEL)
    jump_forward: bool = option(True, "Append tokens that a constraint forces without sampling them.", PANEL)
    step_ahead: bool = option(True, "Launch the next step on a GPU before this one is read back.", PANEL)
    """Not beside `speculation`, which is used on a GPU with `deterministic` only; token ids stay the same."""
    deterministic: bool = option(False, "On a GPU, too, make a stream the same alone and in any batch.", PANEL)
    """On CPU it always is, bit for bit."""
    max_streams: int = option(
        256, "Streams computed at once; more wait.", PANEL, metavar="N", minimum=1, maximum=1 << 16
    )
    max_batch_tokens: int | None = option(
        None, "Tokens in one step of the model.", PANEL, metavar="N", minimum=1, maximum=1 << 24
    )
    """Running streams first, then prompts in chunks. None: 256 on CPU, 2048 on CUDA.

    Beside running streams, on CPU, prompts get one token a step for each of them, at least 16: a step then takes about
    twice as long as without (longer, the longer the prompt is already).
    """
    max_context: int | None = option(
        None, "Tokens of prompt and output together.", PANEL, metavar="N", minimum=1, maximum=1 << 31
    )
    """In one stream. None: what the model was made for."""
    max_logprobs: int | None = option(
        None,
        "Most alternatives a token: LMTP gets no more, HTTP is refused.",
        PANEL,
        metavar="N",
        minimum=0,
        shown_default="256, over HTTP 20",
    )
    """LMTP's clients ask for all they can get, so more are clamped there."""
    kv_cache_bytes: int | None = option(
        None, "Memory for keys and values.", PANEL, metavar="BYTES", minimum=1, maximum=1 << 48
    )
    """For all streams. None: what `max_streams` full contexts need, within free memory; on a CPU at most 32."""
    trust_remote_code: bool = option(False, "Run Python code that a model brings along.", "Models")
    revision: str | None = option(None, "Branch, tag or commit of a hub model.", "Models", metavar="NAME")

    def __post_init__(self) -> None:
        """Raises `UsageError` for a number out of range, or for an unknown word.

        The presence of a device is checked where torch is imported: see `weights.find_device`.
        """
        check_options(self)
        if re.fullmatch(r"auto|cpu|cuda(:\d{1,4})?", self.device) is None:
            raise UsageError(f"device {self.device!r} is not known; expected auto, cpu, cuda or cuda:N")
