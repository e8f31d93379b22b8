"""Has transformers read a checkpoint straight onto a GPU, which by itself it does only where accelerate is installed.

Otherwise all weights would be in the host's memory first: 16 GB of a model with 8B weights in bfloat16. Here its files
are mapped, so that they are in its page cache, and nothing else: a checkpoint of 972 MB in four shards that becomes
float32 took 12 MB beside that, and 1,949 MB when it was converted on the host (a device without memory stood for the
GPU).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, core_model_loading, modeling_utils

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch
    from torch import Tensor

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
    found: Tensor = tensor[...]
    if device is not None:
        found = found.to(device)
    return found if dtype is None else found.to(dtype)


def _with_device(function: Callable[..., Any], device: torch.device, *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401  # whatever transformers passes
    own = (_mapped(value, device) for value in arguments)
    return function(*own, **{name: _mapped(value, device) for name, value in keywords.items()})


def _mapped(value: Any, device: torch.device) -> Any:  # noqa: ANN401  # see above
    """The settings of a load with everything on one device; any other value as it is."""
    known = getattr(modeling_utils, "LoadStateDictConfig", None)
    if known is None or not isinstance(value, known) or value.hf_quantizer is not None:
        return value
    return dataclasses.replace(value, device_map={"": device})
