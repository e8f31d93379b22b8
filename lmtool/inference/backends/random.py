"""A model without weights: nearly uniform logits from a seed, for tests and measurements of token transport."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lmtool.core.fingerprint import fingerprint
from lmtool.core.types import LoadProgress, ModelInfo
from lmtool.inference.backends.registry import number_options
from lmtool.inference.engine.cpu.library import use_kernels
from lmtool.inference.engine.engine import Engine
from lmtool.inference.engine.fingerprint import engine_fingerprint
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS, KVCache
from lmtool.inference.engine.model_runner import CHUNK_TOKENS, ModelRunner
from lmtool.inference.engine.plan import Limits
from lmtool.inference.engine.weights import display_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from lmtool.inference.engine.config import EngineConfig
    from lmtool.inference.engine.model_runner import Batch, BlockAttention

_MAX = 2**40
OPTIONS = {
    "vocab_size": (2, _MAX),
    "context_length": (2, _MAX),
    "seed": (0, _MAX),
    "step_ms": (0, _MAX),
    "blocks": (2, _MAX),
}
"""Range of each option."""
CONTEXT = 4096
BLOCKS = 16384
SPREAD = 0.01
"""Largest difference between two logits, in nats: tokens are nearly equally likely, with one maximum."""


@dataclass(frozen=True, slots=True)
class RandomForward:
    """Logits that depend only on the seed, a token and its position."""

    vocab_size: int
    seed: int
    step_seconds: float
    """Minimum duration of a step."""

    def logits(self, batch: Batch, attention: BlockAttention) -> Tensor:  # noqa: ARG002  # the seam's signature
        """See `model_runner.Forward`: [rows, V] float32."""
        if self.step_seconds:
            time.sleep(self.step_seconds)
        rows = batch.logit_rows
        ids, positions = batch.input_ids[0, rows].tolist(), batch.positions[0, rows].tolist()
        logits = [self._row(token, position) for token, position in zip(ids, positions, strict=True)]
        return torch.stack(logits) if logits else torch.empty(0, self.vocab_size)

    def _row(self, token: int, position: int) -> Tensor:
        mixed = (self.seed * 1_000_003 + token * 8_191 + position * 131_071 + 12_345) % 2**63
        return torch.rand(self.vocab_size, generator=torch.Generator().manual_seed(mixed), dtype=torch.float32) * SPREAD


def load_random(
    model: str, config: EngineConfig, options: Mapping[str, str], on_progress: Callable[[LoadProgress], None]
) -> Engine:
    """A running engine over random logits.

    model: a folder whose config.json has the vocabulary size; its weights are not read. options: `vocab_size`,
    `context_length`, `seed`, `step_ms` (a step's minimum duration), `blocks` (of the KV cache: with few of them streams
    preempt each other). Raises `UsageError` for others.
    """
    numbers = number_options("random", options, OPTIONS)
    use_kernels(config.kernels)
    config_json = Path(model) / "config.json"
    settings = json.loads(config_json.read_text(encoding="utf-8")) if config_json.is_file() else {}
    size = int(numbers.get("vocab_size", settings.get("vocab_size", 1000)))
    context = min(int(numbers.get("context_length", CONTEXT)), config.max_context or CONTEXT)
    device = torch.device("cpu")
    forward = RandomForward(size, int(numbers.get("seed", 0)), numbers.get("step_ms", 0.0) / 1000)
    blocks = int(numbers.get("blocks", BLOCKS))
    runner = ModelRunner(forward, KVCache([], blocks, torch.float32, device), device, CHUNK_TOKENS, 1)
    limits = Limits(
        max_streams=config.max_streams,
        max_batch_tokens=config.max_batch_tokens or 2048,
        chunk_tokens=CHUNK_TOKENS,
        block_tokens=BLOCK_TOKENS,
        max_scored_rows=512,
    )
    eos = settings.get("eos_token_id")
    eos_ids = eos if isinstance(eos, list) else [eos]
    info = ModelInfo(
        model=display_name(model),
        constructor=f"lmtool.load({model!r}, backend='random')",
        backend="random",
        vocab_size=size,
        context_length=context,
        eos_token_ids=tuple(token for token in eos_ids if isinstance(token, int) and token < size),
        bos_token_id=0,
        dtype="float32",
        device="cpu",
        batch_invariant=True,
        versions={"torch": str(torch.__version__)},
    )
    contents = fingerprint({"random": (forward.vocab_size, forward.seed)})
    info = replace(info, fingerprint=engine_fingerprint(contents, info, config, device))
    engine = Engine(runner, limits, blocks, info, config)
    engine.start()
    on_progress(LoadProgress(model, "ready"))
    return engine
