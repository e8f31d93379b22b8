"""How the engine runs a model: one field a choice, each with its unit and its default."""

from __future__ import annotations

from dataclasses import dataclass

from lmtool.errors import UsageError

_WORDS = {"kernels": ("auto", "required", "none"), "quantize": ("int8",)}
"""What a field may say."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The engine's settings. Fields match the flags of `lmtool serve` one to one."""

    device: str = "auto"
    """`auto` (a GPU if there is one), `cpu`, `cuda`, or `cuda:N` for the GPU of index N."""
    dtype: str = "auto"
    """`float32`, `bfloat16`, `float16`, or `auto`.

    `auto` on CPU: float32 for float32 checkpoints of fewer than 50 million parameters, otherwise bfloat16 where the
    processor computes in it and float32 where not. `auto` on CUDA: the checkpoint's own, bfloat16 for float32 ones.
    """
    kernels: str = "auto"
    """C kernels, compiled for this processor at the first load: `auto` (used where they can be compiled), `required`
    (else nothing is loaded), or `none` (torch's operators only). Holds for the whole process, as `threads` does."""
    quantize: str | None = None
    """`int8` stores weights as bytes, one scale an output, and rounds activations row by row; None: as `dtype` says."""
    max_streams: int = 256
    """Sequences computed at once; more wait in their order of arrival."""
    max_batch_tokens: int | None = None
    """Tokens a step, running streams first, then prompts in chunks. None: 256 on CPU, 2048 on CUDA.

    Beside running streams, on CPU, prompts get one token a step for each of them, at least 16: a step then takes about
    twice as long as without (longer, the longer the prompt is already).
    """
    max_context: int | None = None
    """Tokens of prompt and output together in one stream. None: what the model was made for."""
    kv_cache_bytes: int | None = None
    """Bytes for keys and values of all streams. None: what `max_streams` full contexts need, within free memory."""
    prefix_cache: bool = True
    """Whether keys and values of prompts stay, in blocks that nobody needs, for prompts that begin alike."""
    speculation: bool = True
    """Whether a stream that repeats itself or its prompt is guessed ahead while that pays; its ids stay the same."""
    jump_forward: bool = True
    """Whether ids that must follow by a stream's constraint are taken at once, without being drawn one by one."""
    step_ahead: bool = True
    """Whether a GPU is given the next step before this one's outcome is read; ids stay the same.

    Not beside `speculation`, which is used on a GPU with `deterministic` only.
    """
    deterministic: bool = False
    """Whether a stream has the same bits alone and in any batch on a GPU, too; on CPU it always has."""
    threads: int | None = None
    """CPU threads of the forward pass. None: torch's own choice."""
    trust_remote_code: bool = False
    """Whether Python code that comes with a checkpoint may run."""
    revision: str | None = None
    """Branch, tag or commit of a hub model. None: the default branch."""

    def __post_init__(self) -> None:
        """Raises `UsageError` for a number that makes no sense, or for a word that is not known."""
        for name, known in _WORDS.items():
            word = getattr(self, name)
            if word is not None and word not in known:
                raise UsageError(f"{name} {word!r} is not known", f"expected {', '.join(known)}")
        for name in ("max_streams", "max_batch_tokens", "max_context", "kv_cache_bytes", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}; expected a number from 1 on")
