"""How far from float32 the compiled pass is in each number format, on trained models: no further than its peers are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import pad

from lmtool.inference.engine.cpu.forward import CompiledForward
from lmtool.inference.engine.decoder import decoder_config
from lmtool.inference.engine.kv_cache import KVCache
from lmtool.inference.engine.model_runner import BlockAttention, build
from lmtool.inference.engine.plan import Plan, Sequence, Span
from lmtool.inference.tiny.path import MODEL_DIR

CPU = torch.device("cpu")
TEXT = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day she saw a big"
    " red ball near the tree. She wanted to play with it, but it was too high. Her mom said: 'Lily, wait, I will help"
    " you.' They were happy, and shared the ball with a friend named Tom. What is the capital of France?"
)
MODELS = {"stories260K": Path(__file__).parents[3] / "data/stories260K", "embedded": MODEL_DIR}


@dataclass(frozen=True)
class Subject:
    """A trained model, ids of a text, and its logits after each of them: [T, V], exact."""

    folder: str
    ids: list[int]
    exact: Tensor

    def model(self, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
        """By transformers."""
        return transformers.AutoModelForCausalLM.from_pretrained(self.folder, dtype=dtype).eval()

    def divergence(self, logits: Tensor) -> float:
        """Kullback-Leibler divergence from the exact distributions, in nats, the mean of all positions."""
        exact = self.exact.double().log_softmax(-1)
        return float((exact.exp() * (exact - logits.double().log_softmax(-1))).sum(-1).mean())

    def theirs(self, model: transformers.PreTrainedModel) -> Tensor:
        """Logits of a model of transformers."""
        with torch.inference_mode():
            return model(input_ids=torch.tensor([self.ids]), use_cache=False).logits[0, :-1].float()

    def ours(self, kernels, dtype: torch.dtype) -> Tensor:
        """Logits of the compiled pass, weights stored as `dtype`."""
        model = self.model()
        config, weights = decoder_config(model.config.to_dict()), dict(model.named_parameters())
        rotary = dict(model.named_buffers())["model.rotary_emb.inv_freq"]
        with torch.inference_mode():
            forward = CompiledForward(kernels, config, weights, rotary, 512, dtype)
            blocks = len(self.ids) // 16 + 1
            layers = [(layer, config.layer_shape) for layer in forward.layers]
            cache = KVCache(layers, blocks + 1, forward.cache_dtype, CPU)
            cache.clear(torch.arange(blocks + 1))
            sequence = Sequence(1, self.ids, prompt_length=1, max_length=len(self.ids), scoring=True)
            sequence.blocks = list(range(1, blocks + 1))
            batch = build(Plan(spans=[Span(sequence, 0, len(self.ids) - 1)]), 512, 1, CPU)
            return forward.logits(batch, BlockAttention(cache, batch.slots, batch.groups))


@pytest.fixture(scope="module", params=MODELS)
def subject(request) -> Subject:
    """Each trained model that is at hand."""
    folder = str(MODELS[request.param])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = Subject(folder, tokenizer(TEXT)["input_ids"], torch.empty(0))
    assert 64 < len(found.ids) < 400
    return Subject(folder, found.ids, found.theirs(found.model()))


def in_groups(weight: Tensor, bits: int) -> Tensor:
    """Weights [out, in] as llama.cpp has them in Q8_0 and Q4_0: groups of 32 with a scale in float16."""
    groups = pad(weight, (0, -weight.shape[1] % 32)).view(len(weight), -1, 32)
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scale = largest.abs() / 127 if bits == 8 else largest / -8
    whole = (groups / scale.where(scale != 0, torch.ones(()))).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return (whole * scale.half().float()).view(len(weight), -1)[:, : weight.shape[1]]


def quantized(model: transformers.PreTrainedModel, bits: int) -> transformers.PreTrainedModel:
    """The model with the matrices of its layers rounded so; embedding and head stay exact."""
    for name, weight in model.named_parameters():
        if "layers" in name and weight.dim() == 2:
            weight.data = in_groups(weight.data, bits)
    return model


def in_rows(numbers: Tensor) -> Tensor:
    """Numbers [rows, n] as bytes with a scale a row."""
    scales = numbers.abs().amax(dim=-1, keepdim=True) / 127
    return (numbers / scales).round() * scales


def in_bytes(model: transformers.PreTrainedModel, rounded: Callable[[Tensor], Tensor]) -> transformers.PreTrainedModel:
    """The model with weights and inputs of all products rounded so."""
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.weight = torch.nn.Parameter(rounded(layer.weight.data))  # a copy: the embedding may be the same
            layer.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0][0])[None],))
    return model


def test_float32(kernels, subject):
    """Nothing but rounding of the last bit."""
    assert subject.divergence(subject.ours(kernels, torch.float32)) < 1e-9


def test_bfloat16(kernels, subject):
    """Weights and inputs of products are rounded, all else is float32: at most half as far as transformers is."""
    ours = subject.divergence(subject.ours(kernels, torch.bfloat16))
    assert 0 < ours < 0.5 * subject.divergence(subject.theirs(subject.model(torch.bfloat16)))


def test_int8(kernels, subject):
    """As close as llama.cpp's Q8_0: weights and inputs of products have a scale for 32; one a row loses far more."""
    ours, groups, rows = (
        subject.divergence(logits)
        for logits in (
            subject.ours(kernels, torch.int8),
            subject.theirs(in_bytes(subject.model(), lambda numbers: in_groups(numbers, 8))),
            subject.theirs(in_bytes(subject.model(), in_rows)),
        )
    )
    assert 0 < ours < 1.25 * groups
    assert ours < 0.7 * rows


def test_int4(kernels, subject):
    """Closer than Q4_0, although inputs of products are rounded to bytes, too."""
    ours = subject.divergence(subject.ours(kernels, torch.int4))
    assert 0 < ours < subject.divergence(subject.theirs(quantized(subject.model(), 4)))
