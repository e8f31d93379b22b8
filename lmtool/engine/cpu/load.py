"""Which transformers models the compiled kernels compute, and making the compiled forward pass out of one."""

from __future__ import annotations

from collections import UserDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lmtool.engine.cpu.decoder import Shape, gpt2_names, gpt2_shape, llama_shape, take_gpt2, take_llama
from lmtool.engine.cpu.forward import CompiledModel
from lmtool.engine.lean_config import FAMILIES, lean_config
from lmtool.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import torch

    from lmtool.engine.cpu.decoder import LayerWeights
    from lmtool.engine.cpu.library import Kernels
    from lmtool.engine.kv_cache import LayerShape


def compiled_shape(
    raw: Mapping[str, Any], architecture: str, names: Collection[str], layers: list[tuple[LayerShape, int | None]]
) -> Shape | None:
    """The shape of a checkpoint that the kernels compute; None for any other.

    raw: its config.json, complete. architecture: the class of transformers that it was loaded as. names: its weights.
    layers: what each attention layer was seen to store, and its window.
    """
    shape = gpt2_shape(raw)
    if shape is not None:
        complete = set(names) == gpt2_names(shape)
    elif (config := lean_config(raw)) is not None:
        shape = llama_shape(config, FAMILIES[config.family])
        complete = config.accepts(names)
    if shape is None or not complete or architecture != shape.architecture or shape.head_dim % 2:
        return None
    return shape if layers == [(shape.layer_shape, window) for window in shape.windows] else None


def compiled_model(
    library: Kernels,
    shape: Shape,
    weights: dict[str, Tensor],
    frequencies: Tensor | None,
    context: int,
    dtype: torch.dtype,
) -> CompiledModel:
    """The compiled pass over these weights, which are taken out.

    frequencies: see `CompiledModel`. context: most tokens of a stream. dtype: see `numerics.choose_packed`.
    """
    taken = _Taken(weights)
    decoder = (take_gpt2 if shape.centred else take_llama)(shape, taken)
    decoder = replace(decoder, layers=_dropping(library, decoder.layers, taken))
    return CompiledModel(library, decoder, frequencies, context, dtype)


class _Taken(UserDict[str, Tensor]):
    """Weights that remembers which ones were taken out."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.data = weights
        self.places: list[tuple[int, int]] = []
        """Address and bytes."""

    def __delitem__(self, name: str) -> None:
        self.places.append((self.data[name].data_ptr(), self.data[name].nbytes))
        super().__delitem__(name)


def _dropping(library: Kernels, layers: Iterator[LayerWeights], taken: _Taken) -> Iterator[LayerWeights]:
    """Each layer in turn; what it was made from leaves memory when the next one is asked for.

    Else the whole checkpoint file would be in memory beside the packed weights.
    """
    for layer in layers:
        yield layer
        for place, size in taken.places:
            library.let_go(place, size)
        taken.places.clear()


def no_quantized_pass(name: str) -> ResourceError:
    """Why a model cannot be served with `--quantize`."""
    return ResourceError(
        f"{name} cannot be served with --quantize int8 here",
        "it needs a CPU, a C compiler, and a GPT-2, Llama, Mistral, Qwen2 or Qwen3 model; or leave --quantize out",
    )
