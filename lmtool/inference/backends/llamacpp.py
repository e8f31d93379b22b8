"""GGUF files by llama.cpp: lmtool's engine schedules and samples, llama.cpp computes the logits of a batch."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from lmtool.core.errors import ModelLoadError, OutOfMemoryError, ResourceError
from lmtool.core.types import LoadProgress, ModelInfo
from lmtool.inference.backends.registry import number_options
from lmtool.inference.engine.cpu.library import use_kernels
from lmtool.inference.engine.engine import Engine
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS
from lmtool.inference.engine.plan import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from torch import Tensor

    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.model_runner import ModelRunner
    from lmtool.inference.engine.plan import Plan, Sequence

OPTIONS = {"n_gpu_layers": (-(2.0**31), 2.0**31)}
"""Range of each option."""
MAX_STREAMS = 64
"""Most parallel streams: llama.cpp reserves a cache for each."""
DEFAULT_CONTEXT = 2048
"""Default context of a stream, in tokens; its cache is reserved whole."""
STEP_TOKENS = 512
INSTALL = "pip install llama-cpp-python"


@dataclass
class LlamaRunner:
    """llama.cpp's context behind the interface of `ModelRunner`: takes the same plan, returns the same logits.

    The plan's blocks only count memory here; llama.cpp keeps keys and values by its own sequences, one for each of
    ours that is being computed.
    """

    library: ModuleType
    """The module llama_cpp."""
    model: Any
    context: Any
    vocab_size: int
    slots: list[Sequence | None]
    """Sequence that owns each of llama.cpp's sequence slots."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    block_bytes: None = None
    """Unknown: llama.cpp manages its own cache."""

    def __post_init__(self) -> None:
        self._batch = self.library.llama_batch_init(STEP_TOKENS, 0, 1)

    def run(self, plan: Plan) -> Tensor:
        """Compute the plan's spans. Returns logits [R, V] float32, a row for each position of each span's `logits`.

        Raises RuntimeError if llama.cpp refuses the batch; `MemoryError` if its cache is full.
        """
        batch, place, output_rows = self._batch, 0, list[int]()
        for span in plan.spans:
            slot = self._slot(span.sequence, fresh=span.start == 0)
            for position in range(span.start, span.end):
                batch.token[place], batch.pos[place] = span.sequence.ids(position, position + 1)[0], position
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, slot
                batch.logits[place] = position in span.logits
                output_rows += [place] if position in span.logits else []
                place += 1
        batch.n_tokens = place
        status = self.library.llama_decode(self.context, batch)
        if status:
            kind = MemoryError if status == 1 else RuntimeError
            raise kind(f"llama_decode gave status {status}")
        rows = [self._row(index) for index in output_rows]
        return torch.stack(rows) if rows else torch.empty(0, self.vocab_size)

    def close(self) -> None:
        """Free the context and the weights, see `ModelRunner.close`."""
        self.library.llama_batch_free(self._batch)
        self.library.llama_free(self.context)
        self.library.llama_model_free(self.model)

    def _slot(self, sequence: Sequence, *, fresh: bool) -> int:
        """Slot of a sequence in llama.cpp; cleared for a fresh one."""
        if sequence in self.slots:
            slot = self.slots.index(sequence)
        else:
            slot = next(n for n, owner in enumerate(self.slots) if owner is None or not owner.blocks)
            self.slots[slot] = sequence
        if fresh:
            memory = self.library.llama_get_memory(self.context)
            self.library.llama_memory_seq_rm(memory, slot, -1, -1)
        return slot

    def _row(self, index: int) -> Tensor:
        import numpy as np

        pointer = self.library.llama_get_logits_ith(self.context, index)
        return torch.from_numpy(np.ctypeslib.as_array(pointer, shape=(self.vocab_size,)).copy())


def load_llamacpp(
    model: str, config: EngineConfig, options: Mapping[str, str], on_progress: Callable[[LoadProgress], None]
) -> Engine:
    """A running engine over a GGUF file. Blocks; call it from a thread.

    options: `n_gpu_layers`. Raises `ResourceError` with the install line where llama-cpp-python is missing,
    `ModelLoadError` for what is no GGUF file that llama.cpp can load, `OutOfMemoryError`.
    """
    layers = int(number_options("llamacpp", options, OPTIONS).get("n_gpu_layers", 0))
    use_kernels(config.kernels)
    path = Path(model)
    if importlib.util.find_spec("llama_cpp") is None:
        raise ResourceError("--backend llamacpp needs the package llama-cpp-python", f"install it:  {INSTALL}")
    if path.suffix != ".gguf" or not path.is_file():
        raise ModelLoadError(f"{model!r} is no GGUF file", "give the path of a .gguf file to --backend llamacpp")
    import llama_cpp

    on_progress(LoadProgress(path.name, "loading", 0, path.stat().st_size, "llama.cpp reads it"))
    llama_cpp.llama_backend_init()
    runner = _open(llama_cpp, path, config, layers)
    info = _describe(llama_cpp, runner, path)
    context, streams = info.context_length or DEFAULT_CONTEXT, len(runner.slots)
    limits = Limits(
        max_streams=streams,
        max_batch_tokens=min(config.max_batch_tokens or STEP_TOKENS, STEP_TOKENS),
        chunk_tokens=64,
        block_tokens=BLOCK_TOKENS,
        max_scored_rows=STEP_TOKENS,
    )
    blocks = streams * -(-context // BLOCK_TOKENS)
    own = replace(config, prefix_cache=False, speculation=False, step_ahead=False)
    engine = Engine(cast("ModelRunner", runner), limits, blocks, info, own)
    engine.start()
    on_progress(LoadProgress(path.name, "ready"))
    return engine


def _open(library: ModuleType, path: Path, config: EngineConfig, gpu_layers: int) -> LlamaRunner:
    model_params = library.llama_model_default_params()
    model_params.n_gpu_layers = gpu_layers
    model = library.llama_model_load_from_file(str(path).encode(), model_params)
    if not model:
        raise ModelLoadError(f"llama.cpp cannot load {path.name}", "see its messages above; is the file whole?")
    streams = min(config.max_streams, MAX_STREAMS)
    tokens = min(library.llama_model_n_ctx_train(model), config.max_context or DEFAULT_CONTEXT)
    params = library.llama_context_default_params()
    params.n_ctx = streams * (-(-tokens // 256) * 256)
    params.n_seq_max, params.n_batch, params.n_ubatch = streams, STEP_TOKENS, STEP_TOKENS
    params.n_threads = params.n_threads_batch = config.threads or torch.get_num_threads()
    context = library.llama_init_from_model(model, params)
    if not context:
        library.llama_model_free(model)
        raise OutOfMemoryError(
            f"no room for {streams} streams of {tokens} tokens", "fewer:  --max-streams, --max-context"
        )
    size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
    return LlamaRunner(library, model, context, size, [None] * streams)


def _describe(library: ModuleType, runner: LlamaRunner, path: Path) -> ModelInfo:
    vocabulary = library.llama_model_get_vocab(runner.model)
    ends = {library.llama_vocab_eos(vocabulary), library.llama_vocab_eot(vocabulary)}
    bos = library.llama_vocab_bos(vocabulary)
    trained_context = library.llama_model_n_ctx_train(runner.model)
    return ModelInfo(
        model=path.stem,
        constructor=f"lmtool serve --backend llamacpp {path.name}",
        backend="llamacpp",
        vocab_size=runner.vocab_size,
        context_length=min(trained_context, library.llama_n_ctx(runner.context) // len(runner.slots)),
        eos_token_ids=tuple(sorted(token for token in ends if 0 <= token < runner.vocab_size)),
        bos_token_id=bos if 0 <= bos < runner.vocab_size else None,
        parameters=library.llama_model_n_params(runner.model),
        device="cpu",
        versions={"llama-cpp-python": library.__version__},
    )
