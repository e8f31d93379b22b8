"""Small models with random weights, saved as checkpoints, and engines over them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from lmtool.core.types import GenerateRequest, ScoreRequest, TokenOutput
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.engine.cpu.library import Kernels, find_compiler, find_kernels
from lmtool.inference.engine.engine import Engine
from lmtool.inference.engine.engine_loader import load_engine

VOCABULARY = 101
CONTEXT = 256
WINDOW = 24
"""Of the models with a sliding window: shorter than the texts, and no multiple of a block."""

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_WIDE = {"initializer_range": 0.06}
_NARROW = {"initializer_range": 0.25}
_GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": CONTEXT}
_SPECIAL = {"bos_token_id": 1, "eos_token_id": 2}

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "gpt2": lambda: transformers.GPT2Config(**_GPT2, **_NARROW, **_SPECIAL),
    "llama": lambda: transformers.LlamaConfig(**_SHAPE, **_NARROW),
    "mistral": lambda: transformers.MistralConfig(**_SHAPE, **_NARROW, sliding_window=WINDOW),
    "qwen2": lambda: transformers.Qwen2Config(
        **_SHAPE, **_NARROW, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**_SHAPE, **_NARROW, head_dim=8),
    "llama-tied": lambda: transformers.LlamaConfig(
        **_SHAPE, **_NARROW, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, head_dim=12
    ),
    "llama3-rope": lambda: transformers.LlamaConfig(
        **_SHAPE,
        **_NARROW,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "gemma": lambda: transformers.GemmaConfig(**_SHAPE, **_NARROW, head_dim=8),
    "gemma2": lambda: transformers.Gemma2Config(**_SHAPE, **_NARROW, head_dim=8, sliding_window=WINDOW),
    "gemma3": lambda: transformers.Gemma3TextConfig(**_SHAPE, **_NARROW, head_dim=8, sliding_window=WINDOW),
    "opt": lambda: transformers.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=48,
        max_position_embeddings=CONTEXT,
        word_embed_proj_dim=32,
        init_std=0.25,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "gpt2-packed": lambda: transformers.GPT2Config(**{**_GPT2, "n_embd": 256, "n_layer": 6}, **_WIDE, **_SPECIAL),
    "llama-packed": lambda: transformers.LlamaConfig(
        **{**_SHAPE, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6}, **_WIDE
    ),
    "mixtral": lambda: transformers.MixtralConfig(**_SHAPE, **_NARROW, num_local_experts=4),
}
"""Architecture to its configuration. Large initial weights make attention matter and the top two differ.

The packed ones are large enough for packed linear layers.
"""

Run = Callable[..., Awaitable[dict[object, list[TokenOutput]]]]


def bits(outputs: Iterable[TokenOutput]) -> list[TokenOutput]:
    """Ids and numbers alone: what was taken from the prefix cache may differ."""
    return [replace(output, usage=None) for output in outputs]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def own_kernels() -> Kernels:
    """The kernels compiled for this processor, told to use one thread; skips without a compiler, and only then."""
    found = find_kernels()
    if not isinstance(found, Kernels):
        (pytest.skip if find_compiler() is None else pytest.fail)(found.message)
    found.use_threads(1)
    return found


@pytest.fixture(scope="session")
def kernels(own_kernels: Kernels) -> Kernels:
    """The kernels of a test; in some files, those of other processors as well."""
    return own_kernels


@contextlib.contextmanager
def no_compiler() -> Iterator[None]:
    """Models that are loaded now find no C compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", "/nowhere/cc")
        find_kernels.cache_clear()
        try:
            yield
        finally:
            find_kernels.cache_clear()


def save_model(config: PreTrainedConfig, folder: Path, seed: int = 0) -> Path:
    """A checkpoint with random float32 weights."""
    torch.manual_seed(seed)
    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a small model of the given architecture."""
    made: dict[str, Path] = {}

    def make(architecture: str) -> Path:
        if architecture not in made:
            made[architecture] = save_model(CONFIGS[architecture](), tmp_path_factory.mktemp(architecture))
        return made[architecture]

    return make


@pytest.fixture(scope="session")
def reference(checkpoint: Callable[[str], Path]) -> Callable[[str], PreTrainedModel]:
    """Transformers' own model of the given architecture, with its own eager attention."""
    made: dict[str, PreTrainedModel] = {}

    def make(architecture: str) -> PreTrainedModel:
        if architecture not in made:
            folder = checkpoint(architecture)
            made[architecture] = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
        return made[architecture]

    return make


@pytest.fixture(scope="module")
def engine_of(checkpoint: Callable[[str], Path]) -> Iterator[Callable[..., Engine]]:
    """A running engine over a small model; closed at the end of the module. compiled: whether there is a compiler."""
    made: dict[tuple[str, EngineConfig, bool], Engine] = {}

    def make(architecture: str = "llama", *, compiled: bool = True, **settings: object) -> Engine:
        config = EngineConfig(threads=1, **{"max_streams": 64, **settings})  # type: ignore[arg-type]
        key = architecture, config, compiled
        if key not in made:
            with contextlib.nullcontext() if compiled else no_compiler():
                made[key] = load_engine(str(checkpoint(architecture)), config)
        return made[key]

    yield make
    for engine in made.values():
        engine.close()


async def _run(engine: Engine, *requests: GenerateRequest | ScoreRequest) -> dict[object, list[TokenOutput]]:
    outputs: dict[object, list[TokenOutput]] = {request.stream_id: [] for request in requests}
    left = len(requests)
    done = asyncio.Event()

    def sink(batch: Iterable[TokenOutput]) -> None:
        nonlocal left
        for output in batch:
            outputs[output.stream_id].append(output)
            left -= output.last
        if not left:
            done.set()

    for request in requests:
        engine.submit(request, sink)
    await asyncio.wait_for(done.wait(), 60)
    return outputs


@pytest.fixture(scope="session")
def run() -> Run:
    """Submit all requests at once to an engine; the outputs of each stream."""
    return _run


@pytest.fixture(scope="session")
def random_ids() -> Callable[..., tuple[int, ...]]:
    """`count` token ids between 3 and the vocabulary's end, the same each time for a seed."""

    def draw(count: int, seed: int) -> tuple[int, ...]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randint(3, VOCABULARY, (count,), generator=generator).tolist())

    return draw


@pytest.fixture(params=sorted(CONFIGS))
def architecture(request: pytest.FixtureRequest) -> str:
    """Every architecture in turn."""
    return str(request.param)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """An event loop for tests that are not coroutines."""
    with asyncio.Runner() as own:
        yield own
