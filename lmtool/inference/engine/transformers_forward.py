"""The forward pass through transformers' own modules, with our attention in place of theirs."""

from __future__ import annotations

import inspect
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from lmtool.inference.engine.model_runner import AttentionCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from lmtool.inference.engine.model_runner import Batch, BlockAttention

IMPLEMENTATION = "lmtool"
"""The name under which the function is registered with transformers; models make no mask for it."""

RECORDING = "lmtool_recording"
"""The same function under a name for which models do make masks, for the self-check to compare."""


class Attender(Protocol):
    """Computes attention for this thread's current forward pass."""

    def attend(self, call: AttentionCall) -> Tensor:
        """The attention output [T, H, Dv]."""

    def mask(self, arguments: Mapping[str, Any]) -> Tensor | None:
        """The attention mask that the model hands to its layers under `RECORDING`."""


class _Active(threading.local):
    attender: Attender | None = None


_active = _Active()


@contextmanager
def attending(attender: Attender) -> Iterator[None]:
    """Send this thread's attention to `attender` for the length of a forward pass."""
    _active.attender = attender
    try:
        yield
    finally:
        _active.attender = None


def register() -> None:
    """Make both names known to transformers; harmless when done twice."""
    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionInterface.register(RECORDING, _attention)
    AttentionMaskInterface.register(RECORDING, _mask)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,  # noqa: ANN401  # whatever `_mask` returned, passed through by transformers
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **extras: Any,  # noqa: ANN401  # transformers' keywords differ from model to model
) -> tuple[Tensor, None]:
    """The signature that transformers calls: [1, H, T, D] in, [1, T, H, Dv] out."""
    assert _active.attender is not None, "a forward pass outside of `attending`"
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = AttentionCall(module, query[0], key[0], value[0], scaling, sliding_window, softcap, attention_mask, extras)
    return _active.attender.attend(call).unsqueeze(0), None


def _mask(**arguments: Any) -> Tensor | None:  # noqa: ANN401  # transformers' keywords differ from version to version
    assert _active.attender is not None, "a forward pass outside of `attending`"
    return _active.attender.mask(arguments)


def fix_frequencies(model: nn.Module) -> None:
    """Keep a model's rotary frequencies as they are, which suits texts up to the length that they were made for.

    Those that grow with the text, `dynamic` and `longrope`, are chosen anew in each pass: for that the host waits for
    the positions, and such a pass cannot be captured. No stream is longer here, see `transformers_loader`.
    """
    for module in model.modules():
        kind = vars(module).get("rope_type")
        if isinstance(kind, str) and _grows(kind):
            vars(module)["rope_type"] = "default"
        elif isinstance(kind, dict):  # by the type of layer
            vars(module)["rope_type"] = {layer: "default" if _grows(own) else own for layer, own in kind.items()}


def _grows(rope_type: str) -> bool:
    return "dynamic" in rope_type or rope_type == "longrope"


_ASKED_OF_DEVICE = frozenset({"nonzero", "where", "tolist", "item"})
"""Methods that wait for the device."""


def host_choices(model: PreTrainedModel) -> str | None:
    """What a pass of the model decides on the host, so that it cannot be captured, in words; None: nothing known.

    Mixtures of experts whose experts run one after the other, as the host finds tokens for them. Most of transformers'
    own do not: they multiply groups of tokens on the device.
    """
    for module in model.modules():
        forward = type(module).forward
        if not type(module).__name__.endswith("Experts"):
            continue
        grouped = getattr(getattr(module, "config", None), "_experts_implementation", "eager") != "eager"
        if hasattr(forward, "__wrapped__") and grouped:  # by transformers' `use_experts_implementation`
            continue
        code = getattr(inspect.unwrap(forward), "__code__", None)
        if code is not None and _ASKED_OF_DEVICE & set(code.co_names):
            return f"the experts of {type(model).__name__} run one after the other, as the host finds tokens for them"
    return None


@dataclass(frozen=True, slots=True)
class TransformersForward:
    """A `Forward` over a transformers model that uses our attention."""

    model: PreTrainedModel

    @property
    def host_choices(self) -> str | None:
        """Why a pass cannot be captured, see `host_choices`; None: nothing known."""
        return host_choices(self.model)

    def logits(self, batch: Batch, attention: BlockAttention) -> Tensor:
        """See `Forward.logits`."""
        inputs = {
            "input_ids": batch.input_ids,
            "position_ids": batch.positions,
            "attention_mask": None,
            "use_cache": False,
        }
        with attending(attention):
            if not batch.logits:
                self.model.base_model(**inputs)
                return torch.empty(0, 0, device=batch.input_ids.device)
            logits: Tensor = self.model(**inputs, logits_to_keep=batch.logit_rows).logits
        return logits[0]
