"""The forward pass through transformers' modules with our attention, checked against transformers' own at load."""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from lmtool.core.errors import ModelLoadError
from lmtool.inference.engine.kv_cache import LayerShape
from lmtool.inference.engine.model_folder import ADVICE
from lmtool.inference.engine.model_runner import AttentionCall, attend
from lmtool.inference.engine.plan import Plan, Sequence, Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from transformers import PreTrainedModel

    from lmtool.inference.engine.model_runner import Batch, BlockAttention, ModelRunner


_logger = logging.getLogger(__name__)

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
    """Reason why a pass of the model cannot be captured (a decision on the host); None if none is known.

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
        """Reason why a pass cannot be captured, see `host_choices`; None if none is known."""
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


_LENGTHS = (21, 13, 2)
"""Tokens of the prompts that are compared."""

_QUERIES, _MOST_KEYS = 9, 1 << 18
"""A model's masks are compared at this many queries, and every key up to this position."""

_KNOWN_EXTRAS = frozenset({"dropout", "is_causal", "position_ids", "use_cache", "output_attentions", "cache_position"})
"""Keywords of an attention call that change nothing here."""


@dataclass(frozen=True, slots=True)
class RecordedLayer:
    """The parameters of one attention layer's call."""

    layer: object
    """The attention module."""
    shape: LayerShape
    window: int | None
    """Number of positions that a query sees, itself included; None for all."""
    heads: int
    """Number of query heads."""
    scaling: float
    softcap: float | None


class Recorder:
    """Plain causal attention over one sequence that records each layer's parameters."""

    def __init__(self, context: int) -> None:
        """context: positions up to which a layer's mask must be causal, or a sliding window."""
        self.layers: list[RecordedLayer] = []
        self.unsupported: set[str] = set()
        self._keys = torch.arange(min(context, _MOST_KEYS))
        self._queries = torch.linspace(0, len(self._keys) - 1, _QUERIES, dtype=torch.float32).long()

    def mask(self, arguments: Mapping[str, Any]) -> Tensor | None:
        """The model's own mask for a few queries spread over the context: [1, 1, queries, keys], True where visible."""
        zero = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
        queries, keys = self._queries.view(1, 1, -1, 1), self._keys.view(1, 1, 1, -1)
        visible: Tensor = arguments["mask_function"](zero, zero, queries, keys)
        return visible.expand(1, 1, len(self._queries), len(self._keys))

    def attend(self, call: AttentionCall) -> Tensor:
        """The attention output [T, H, Dv]."""
        self._note(call)
        tokens = call.query.shape[1]
        keys = torch.arange(tokens, device=call.query.device)
        mask = keys > keys.unsqueeze(1)
        if call.sliding_window is not None:
            mask |= keys <= keys.unsqueeze(1) - call.sliding_window
        query = call.query.transpose(0, 1).reshape(1, tokens, call.key.shape[0], -1, call.query.shape[-1])
        output = attend(query, call.key, call.value, mask.unsqueeze(0), call.scaling, call.softcap)
        return output.reshape(tokens, -1, call.value.shape[-1])

    def _note(self, call: AttentionCall) -> None:
        if any(known.layer is call.layer for known in self.layers):
            self.unsupported.add("an attention layer that runs twice in one pass")
        shape = LayerShape(call.key.shape[0], call.key.shape[-1], call.value.shape[-1])
        heads = call.query.shape[0]
        self.layers.append(RecordedLayer(call.layer, shape, call.sliding_window, heads, call.scaling, call.softcap))
        known = {name for name, value in call.extras.items() if value is not None and value is not False}
        self.unsupported |= {
            f"attention keyword {name!r}" for name in known - _KNOWN_EXTRAS if isinstance(call.extras[name], Tensor)
        }
        if call.extras.get("is_causal") is False or getattr(call.layer, "is_causal", True) is False:
            self.unsupported.add("attention that looks ahead")
        if call.mask is not None and not self._as_expected(call):
            self.unsupported.add("an attention mask that is neither causal nor a sliding window")

    def _as_expected(self, call: AttentionCall) -> bool:
        keys, queries = self._keys, self._queries.unsqueeze(1)
        expected = keys <= queries
        if call.sliding_window is not None:
            expected = expected & (keys > queries - call.sliding_window)
        return bool(torch.equal(call.mask[0, 0].to(expected.device), expected))


def record_layers(model: PreTrainedModel, name: str, context: int) -> list[RecordedLayer]:
    """Each attention layer with what it needs.

    Leaves the model switched to our attention. Raises `ModelLoadError` for attention that the engine cannot compute.
    """
    recorder = Recorder(context)
    _switch(model, name, RECORDING)
    with attending(recorder), _explained(name, type(model).__name__):
        ids = _ids(model, _prompt(model, _LENGTHS[0]))
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        model(input_ids=ids, position_ids=positions, attention_mask=None, use_cache=False)
    if not recorder.layers:
        recorder.unsupported.add("no attention through transformers' AttentionInterface")
    if recorder.unsupported:
        raise _refusal(name, type(model).__name__, f"it needs {', '.join(sorted(recorder.unsupported))}")
    _switch(model, name, IMPLEMENTATION)
    return recorder.layers


@dataclass(frozen=True, slots=True)
class Distance:
    """Distance of logits [T, V] from others."""

    largest: float
    """Largest distance of any logit."""
    rms: float
    """Root mean square distance of a position's logits, at the position where it is largest."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Logits of transformers' own forward pass and attention for the check prompts."""

    architecture: str
    """The model's class."""
    prompts: list[list[int]]
    logits: list[Tensor]
    """[T, V] float32 for each prompt."""
    dtype: torch.dtype
    """Dtype of the computation."""
    rounding: Distance | None
    """From the first prompt's logits in half precision to those of the same weights in float32; None where that was not
    measured, and in float32."""


def reference_logits(model: PreTrainedModel, name: str) -> Reference:
    """The reference for this model: one plain pass for each prompt."""
    _switch(model, name, "eager")
    prompts = [_prompt(model, length) for length in _LENGTHS]
    with _explained(name, type(model).__name__, "transformers' own code fails on it: "):
        logits = [
            model(input_ids=_ids(model, prompt), attention_mask=None, use_cache=False).logits[0].float()
            for prompt in prompts
        ]
    if any(bool(torch.isnan(one).any()) for one in logits):
        raise ModelLoadError(f"the weights of {name} give logits that are not numbers", "download the model again")
    return Reference(type(model).__name__, prompts, logits, model.dtype, _rounding(model, prompts[0], logits[0]))


def _rounding(model: PreTrainedModel, prompt: list[int], logits: Tensor) -> Distance | None:
    """See `Reference.rounding`."""
    if model.dtype == torch.float32:
        return None
    try:
        with _widened(model):
            exact = model(input_ids=_ids(model, prompt), attention_mask=None, use_cache=False).logits[0].float()
    except (RuntimeError, TypeError, ValueError, AssertionError) as problem:  # its code mixes dtypes; out of memory
        _logger.info("the rounding of %s cannot be measured: %s", type(model).__name__, problem)
        return None
    return distance(logits, exact)


def distance(ours: Tensor, theirs: Tensor) -> Distance:
    """Distance of logits [T, V] from others where those are finite; NaN where ours are not numbers there."""
    finite = torch.isfinite(theirs)
    off = torch.where(finite, ours - theirs, 0.0)
    squares = off.square().sum(-1) / finite.sum(-1).clamp(min=1)
    return Distance(float(off.abs().max()), float(squares.max().sqrt()))


@contextlib.contextmanager
def _widened(model: nn.Module) -> Iterator[None]:
    """Each module's own weights are float32 while it runs, so that no more than those are in memory twice."""
    narrow: dict[nn.Parameter, Tensor] = {}

    def widen(module: nn.Module, _: object) -> None:
        for weight in module.parameters(recurse=False):
            if weight not in narrow:  # a module within may have the same one
                narrow[weight] = weight.data
                weight.data = weight.data.float()

    def restore(module: nn.Module, *_: object) -> None:
        for weight in module.parameters(recurse=False):
            weight.data = narrow.pop(weight, weight.data)

    hooks = [module.register_forward_pre_hook(widen) for module in model.modules()]
    hooks += [module.register_forward_hook(restore, always_call=True) for module in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


QUANTIZED = {"int8": 0.3, "int4": 0.7, "fp8": 0.5, "fp8 keys and values": 0.3}
"""Tolerance for logits of quantized weights: root mean square, in standard deviations.

Logits that have nothing to do with the right ones are off by 1.4. `fp8` weights with rounded inputs, emulated: 0.07 for
the included model, 0.08 and 0.13 for random ones of 4 and 32 layers; keys and values 0.03 and 0.04 for these.
"""


def check_runner(runner: ModelRunner, name: str, reference: Reference, tolerance: float | None = None) -> None:
    """Run the check prompts through `runner`, together, in uneven pieces, and compare with `reference`.

    tolerance: how far logits may be off, in standard deviations; None: as rounding in the reference's dtype allows.

    Raises `ModelLoadError` when they differ by more than rounding.
    """
    sequences = [
        Sequence(index, list(prompt), prompt_length=1, max_length=len(prompt), scoring=True)
        for index, prompt in enumerate(reference.prompts)
    ]
    for index, sequence in enumerate(sequences):
        sequence.blocks = [2 * index + 2, 2 * index + 1]
    pieces = (
        [Span(sequences[0], 0, 5), Span(sequences[1], 0, 12)],
        [Span(sequences[2], 0, 1), Span(sequences[0], 5, 14)],
        [Span(sequences[0], 19, 1)],
    )
    rows: dict[int, list[Tensor]] = {sequence.number: [] for sequence in sequences}
    with _explained(name, reference.architecture):
        for index, spans in enumerate(pieces):
            fresh = list(range(1, 2 * len(sequences) + 1)) if index == 0 else []
            logits = runner.run(Plan(spans=list(spans), fresh_blocks=fresh))
            for span, part in zip(spans, torch.split(logits, [len(span.logits) for span in spans]), strict=True):
                rows[span.sequence.number].append(part)
    for sequence in sequences:
        _compare(name, reference, torch.cat(rows[sequence.number]), reference.logits[sequence.number][:-1], tolerance)


CHECK_BLOCKS = 2 * len(_LENGTHS)
"""Blocks of the key-value cache that the check needs."""


def _compare(name: str, reference: Reference, ours: Tensor, theirs: Tensor, tolerance: float | None) -> None:
    finite = torch.isfinite(theirs)
    if not bool(finite.any()):
        raise _refusal(name, reference.architecture, "transformers' own logits are not numbers")
    spread, largest = float(theirs[finite].std()), max(float(theirs[finite].abs().max()), 1e-2)
    if tolerance is not None:
        pairs = [(float((ours - theirs)[finite].square().mean().sqrt()), tolerance * spread)]
    else:
        off, allowed = distance(ours, theirs), _allowed(reference, largest, spread)
        pairs = [(off.largest, allowed.largest), (off.rms, allowed.rms)]
    for error, most in pairs:
        if not error <= most:
            reason = f"its logits differ from transformers' own by {error:.3g}, where {most:.2g} is allowed"
            raise _refusal(name, reference.architecture, reason)


def _allowed(reference: Reference, largest: float, spread: float) -> Distance:
    """Tolerance for logits. largest, spread: the reference's largest logit, and their standard deviation.

    In half precision that depends on the model: each layer's rounding is carried on by the next, so that two right
    ways to compute 64 layers may differ ten times as much as those of 4. Both are about as far from the exact logits,
    and that is the measure. In bfloat16 on a CPU, random models, as multiples of `Reference.rounding` (largest / rms):

    | layers x size, deviation of weights | 32x512, 0.02 | 32x512, 0.06 | 4x256, 0.25 | 1x16, 0.5 | GPT-2, 0.1 |
    |---|---|---|---|---|---|
    | `rounding` of the largest, of the deviation | 1.4, 1.5 % | 7.7, 9.7 % | 17, 21 % | 7.2, 11 % | 1.3, 1.7 % |
    | transformers' sdpa | 1.1 / 1.1 | 0.9 / 0.8 | 0.3 / 0.3 | 0.3 / 0.3 | 1.0 / 0.9 |
    | float32, as the C kernels compute | 1.2 / 1.3 | 1.0 / 1.0 | 1.0 / 1.0 | 1.0 / 1.0 | 1.0 / 1.0 |
    | one key of a text is not seen | 7.1 / 7.1 | 13 / 12 | 5.9 / 5.7 | 4.1 / 3.9 | 19 / 18 |
    | a wrong block of keys and values | 14 / 16 | 13 / 13 | 3.7 / 4.3 | 3.7 / 3.1 | 29 / 30 |
    | scaling times 1.44 | 4.2 / 4.3 | 11 / 12 | 1.3 / 1.2 | 3.8 / 3.3 | 17 / 15 |

    With the trained models of the tests, right ways are within 1.6 / 1.3, and faults beyond 9 / 12. Of the scaling,
    where nearly all of a position's weight is on one key, `attention_backends` takes care.
    """
    if reference.dtype == torch.float32:
        return Distance(1e-4 * largest, torch.inf)
    rounding = reference.rounding
    if rounding is None:
        return Distance(0.1 * largest, 0.1 * spread)
    return Distance(max(3 * rounding.largest, 1e-2 * largest), max(2 * rounding.rms, 1e-2 * spread))


def _prompt(model: PreTrainedModel, length: int) -> list[int]:
    """Ids that differ, spread over the vocabulary, the same each time."""
    vocabulary: int = model.config.get_text_config().vocab_size
    return [(number * 2_654_435_761 + 97 * length) % vocabulary for number in range(1, length + 1)]


def _ids(model: PreTrainedModel, prompt: list[int]) -> Tensor:
    return torch.tensor([prompt], device=next(model.parameters()).device)


def _switch(model: PreTrainedModel, name: str, implementation: str) -> None:
    model.set_attn_implementation(implementation)
    if model.config._attn_implementation != implementation:  # noqa: SLF001  # setting it may have no effect
        raise _refusal(name, type(model).__name__, "it does not use transformers' AttentionInterface")


@contextlib.contextmanager
def _explained(name: str, architecture: str, who: str = "its code fails with our attention: ") -> Iterator[None]:
    """Turn an exception inside the model's own code into a refusal of the model."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError) as problem:
        raise _refusal(name, architecture, f"{who}{type(problem).__name__}: {problem}") from problem


def _refusal(name: str, architecture: str, reason: str) -> ModelLoadError:
    return ModelLoadError(f"{name} ({architecture}) cannot be served: {reason}", ADVICE)
