"""How far from float32 eight bits take a model on a GPU, on trained models, with the rounding emulated on a CPU.

`lmtool/docs/performance.md` has the figures of `FIGURES`.
"""

from __future__ import annotations

import pytest
import torch
import transformers

from lmtool.core.errors import ModelLoadError
from lmtool.inference.engine import selfcheck
from lmtool.inference.engine.cuda.products import E4M3_LARGEST, rounded_weight
from lmtool.inference.engine.kv_cache import KVCache, PagedCache
from lmtool.inference.engine.model_runner import ModelRunner
from lmtool.inference.engine.plan import Plan, Sequence, Span
from lmtool.inference.engine.selfcheck import (
    QUANTIZED,
    TransformersForward,
    check_runner,
    record_layers,
    reference_logits,
)
from tests.inference.engine.cpu.test_accuracy import CPU, MODELS, TEXT, Subject


def e4m3(numbers, scale):
    """Numbers as they come back from e4m3, divided by a scale before and multiplied by it afterwards."""
    narrow = (numbers / scale).clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn)
    return narrow.to(numbers.dtype) * scale


def rounded(inputs):
    """Rows as our kernel rounds them before the library multiplies e4m3."""
    return e4m3(inputs, (inputs.abs().amax(dim=-1, keepdim=True) / E4M3_LARGEST).clamp(min=1e-12))


def narrowed(model, *, inputs):
    """The model with the weights of its layers in e4m3, and the inputs of their products, too, if asked."""
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and "layers" in name:
            stored, scale = rounded_weight(layer.weight.data)
            layer.weight = torch.nn.Parameter(stored.view(torch.float8_e4m3fn).float() * scale.unsqueeze(1))
            if inputs:
                layer.register_forward_pre_hook(lambda _, given: (rounded(given[0]),))
    return model


class RoundingCache(KVCache):
    """Keys and values that are what e4m3 leaves of them."""

    def __init__(self, layers, blocks, scales):
        super().__init__(layers, blocks, torch.float32, CPU)
        self._rounding = {id(layer): scale for (layer, _), scale in zip(layers, scales, strict=True)}

    def write(self, layer, slots, key, value):
        """Round, then store."""
        keys, values = self._rounding[id(layer)].unsqueeze(-1).unsqueeze(-1)
        super().write(layer, slots, e4m3(key, keys), e4m3(value, values))


def with_narrow_cache(model, name, ids):
    """Logits [T, V] over keys and values in e4m3, and the runner and reference of the check at load."""
    selfcheck.register()
    reference = reference_logits(model, name)
    layers = [(layer.layer, layer.shape) for layer in record_layers(model, name, 512)]
    forward = TransformersForward(model)
    wide = PagedCache(layers, 6, torch.float32, CPU)
    check_runner(ModelRunner(forward, wide, CPU, 16, 1), name, reference)
    blocks = len(ids) // 16 + 2
    cache = RoundingCache(layers, blocks, wide.e4m3_scales())
    cache.clear(torch.arange(blocks + 1))
    runner = ModelRunner(forward, cache, CPU, 16, 1)
    sequence = Sequence(1, ids, prompt_length=1, max_length=len(ids), scoring=True, blocks=list(range(1, blocks)))
    logits = torch.cat([runner.run(Plan([Span(sequence, at, 1)])) for at in range(len(ids) - 1)])
    return logits, runner, reference


@pytest.fixture(scope="module", params=MODELS)
def subject(request):
    """Each trained model that is at hand."""
    folder = str(MODELS[request.param])
    ids = transformers.AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]
    empty = Subject(folder, ids, torch.empty(0))
    return Subject(folder, ids, empty.theirs(empty.model()))


FIGURES = {
    "weights": {"stories260K": 9.4, "embedded": 5.9},
    "weights and inputs": {"stories260K": 13.7, "embedded": 12.7},
    "keys and values": {"stories260K": 24.2, "embedded": 4.4},
}
"""Divergence from float32 in thousandths of a nat."""


def as_documented(subject, kind, divergence):
    """Whether a divergence in nats is that of the manual."""
    name = next(name for name, folder in MODELS.items() if str(folder) == subject.folder)
    return 1000 * divergence == pytest.approx(FIGURES[kind][name], rel=0.2)


def test_weights(subject):
    """Rounding inputs of products costs about as much again as rounding the weights."""
    for kind, inputs in (("weights", False), ("weights and inputs", True)):
        logits = subject.theirs(narrowed(subject.model(), inputs=inputs))
        assert as_documented(subject, kind, subject.divergence(logits))


def test_keys_and_values(subject):
    """Nearly all that is lost with keys and values is lost with keys."""
    with torch.inference_mode():
        logits, runner, reference = with_narrow_cache(subject.model(), subject.folder, subject.ids)
        check_runner(runner, subject.folder, reference, QUANTIZED["fp8 keys and values"])
    assert as_documented(subject, "keys and values", subject.divergence(logits))


def test_the_check_at_load(subject):
    """The check at load lets quantized models pass with room to spare, and refuses one whose scales are mixed up."""
    with torch.inference_mode():
        model = subject.model()
        selfcheck.register()
        reference = reference_logits(model, subject.folder)
        layers = [(layer.layer, layer.shape) for layer in record_layers(model, subject.folder, 512)]
        runner = ModelRunner(TransformersForward(model), KVCache(layers, 6, torch.float32, CPU), CPU, 16, 1)
        check_runner(runner, subject.folder, reference)
        narrowed(model, inputs=True)
        check_runner(runner, subject.folder, reference, QUANTIZED["fp8"] / 2)
        for name, weight in model.named_parameters():
            if name.endswith("down_proj.weight"):  # as if outputs had each other's scales
                weight.data = weight.data.flip(0)
        with pytest.raises(ModelLoadError, match="differ"):
            check_runner(runner, subject.folder, reference, QUANTIZED["fp8"])
