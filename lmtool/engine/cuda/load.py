"""Chooses at load what runs a model on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.engine.cuda.backends import Asked, Case, choose
from lmtool.engine.model_runner import ModelRunner
from lmtool.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import Tensor

    from lmtool.engine.cuda.lean_forward import CudaLeanModel
    from lmtool.engine.lean_config import LeanConfig
    from lmtool.engine.selfcheck import RecordedLayer


def paged_runner(
    runner: ModelRunner, layers: Iterable[RecordedLayer], dtype: torch.dtype, *, deterministic: bool
) -> ModelRunner:
    """A `CudaRunner` in place of `runner`, whose cache must be a `PagedCache`; `runner` where no kernel works here.

    Raises `ModelLoadError` for `deterministic` where no kernel works.
    """
    cases = dict.fromkeys(_case(layer) for layer in layers)
    backend = choose(list(cases), dtype, runner.device, deterministic=deterministic)
    if backend is None:
        if deterministic:
            raise ModelLoadError("--deterministic needs Triton, which does not work here", "leave --deterministic out")
        return runner
    from lmtool.engine.cuda.runner import CudaRunner

    return CudaRunner(
        runner.forward,
        runner.cache,
        runner.device,
        runner.chunk_tokens,
        runner.min_rows,
        backend,
        deterministic,
        kernels=backend.single_name,
    )


def _case(layer: RecordedLayer) -> Case:
    asked = Asked(layer.scaling, layer.window, layer.softcap)
    return Case(layer.heads, layer.shape.kv_heads, layer.shape.key_dim, layer.shape.value_dim, asked)


def lean_model(
    runner: ModelRunner, config: LeanConfig, weights: dict[str, Tensor], frequencies: Tensor, context: int
) -> CudaLeanModel | None:
    """The fused pass over the weights, which it takes; None, and nothing taken, where there is none for these."""
    if type(runner) is ModelRunner:
        return None
    from lmtool.engine.cuda.lean_forward import FAMILIES, CudaLeanModel
    from lmtool.engine.cuda.runner import CudaRunner

    if not isinstance(runner, CudaRunner) or config.family not in FAMILIES:
        return None
    return CudaLeanModel(config, weights, frequencies, context, deterministic=runner.deterministic)


def no_fixed_pass(name: str) -> ModelLoadError:
    """Why a model cannot be served with `--deterministic`."""
    return ModelLoadError(
        f"{name} cannot be served with --deterministic: its layers' own sums depend on the batch",
        "Llama, Mistral, Qwen2 and Qwen3 models can; or leave --deterministic out",
    )
