"""What a GGUF file's metadata says of a model, as transformers' config.json says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lmtool.core.errors import ModelLoadError
from lmtool.inference.engine.decoder_config import decoder_config, default_frequencies

if TYPE_CHECKING:
    from torch import Tensor

    from lmtool.inference.engine.decoder_config import DecoderConfig
    from lmtool.inference.engine.gguf.header import GgufFile

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Of `general.architecture`; Mistral's files say `llama`."""
OTHER_BACKEND = "llama.cpp may run it:  --backend llamacpp"

_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>"),
    *("<EOT>", "_<EOT>", "<\uff5cend▁of▁sentence\uff5c>", "<end_of_utterance>"),
)
"""Control tokens that end an answer whatever else the metadata names, as llama.cpp has them."""
_CONTROL = 3
"""`tokenizer.ggml.token_type` of special tokens."""
_MOST = 1 << 24
"""Of any size of a model."""


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model that our engine runs, as a file describes it."""

    raw: dict[str, Any]
    """The config.json that transformers would have."""
    decoder: DecoderConfig
    frequencies: Tensor
    """[head_dim / 2] float32, radians a position."""
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    @property
    def permuted(self) -> bool:
        """Whether the rows of queries' and keys' weights stand in pairs, as llama.cpp rotates them."""
        return self.raw["model_type"] in ("llama", "mistral")


def model_of(file: GgufFile) -> GgufModel:
    """The model of a file. Raises `ModelLoadError` for one that our engine does not run, with the reason."""
    _check_kind(file)
    raw = _config(file)
    decoder = decoder_config(raw)
    assert decoder is not None, "our passes compute what `_config` lets through"
    eos = tuple(token for token in _ends(file) if 0 <= token < decoder.vocabulary)
    bos = file.whole("tokenizer.ggml.bos_token_id")
    known_bos = bos if bos is not None and 0 <= bos < decoder.vocabulary else None
    return GgufModel(raw, decoder, _frequencies(file, raw), eos, known_bos)


def refusal(file: GgufFile, reason: str) -> ModelLoadError:
    """The error for a sound file whose model our engine does not run."""
    return ModelLoadError(f"{file.path} cannot be served by our own engine: {reason}", OTHER_BACKEND)


def _check_kind(file: GgufFile) -> None:
    """Refuse what is no model of the families that we run."""
    name = file.architecture
    if name not in ARCHITECTURES:
        raise refusal(
            file, f"its architecture is {name!r}; those of GGUF files that run are {', '.join(ARCHITECTURES)}"
        )
    if (file.whole("split.count") or 1) > 1:
        raise refusal(file, "it is one of several parts; llama-gguf-split --merge makes one file of them")
    if file.whole(f"{name}.expert_count"):
        raise refusal(file, "it is a mixture of experts")
    scaling = file.text(f"{name}.rope.scaling.type")
    if scaling not in {"", "none", "linear"}:
        raise refusal(file, f"its positions are scaled in the way {scaling!r}")
    for key in ("rope.scaling.attn_factor", "logit_scale", "residual_scale", "embedding_scale", "attention.scale"):
        if file.number(f"{name}.{key}") not in {None, 0.0, 1.0}:
            raise refusal(file, f"it has a {key} of {file.number(f'{name}.{key}')}")


def _config(file: GgufFile) -> dict[str, Any]:
    name = file.architecture
    hidden, heads = _size(file, "embedding_length"), _size(file, "attention.head_count")
    head_dim = _size(file, "attention.key_length", hidden // heads)
    widths = {
        "attention.value_length": _size(file, "attention.value_length", head_dim),
        "rope.dimension_count": _size(file, "rope.dimension_count", head_dim),
    }
    for key, width in widths.items():
        if width != head_dim:
            raise refusal(file, f"its {key} is {width}, and its heads have {head_dim} numbers")
    kv_heads = _size(file, "attention.head_count_kv", heads)
    if heads % kv_heads or head_dim % 2:
        raise file.fault(f"it has {heads} heads of {head_dim} numbers, and {kv_heads} of keys and values")
    window = _size(file, "attention.sliding_window", 0, fewest=0) if name == "llama" else 0
    eps = file.number(f"{name}.attention.layer_norm_rms_epsilon")
    if eps is None or not 0 <= eps < 1:
        raise file.fault(f"its {name}.attention.layer_norm_rms_epsilon is {eps}")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or embedding.shape[1:] != (hidden,) or not 0 < embedding.shape[0] <= _MOST:
        shape = None if embedding is None else list(embedding.shape)
        raise file.fault(f"its token_embd.weight is {shape}; expected [vocabulary, {hidden}]")
    return {
        "model_type": "mistral" if window else name,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": _size(file, "feed_forward_length"),
        "num_hidden_layers": _size(file, "block_count", most=1 << 12),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": _size(file, "context_length", most=1 << 31),
        "rms_norm_eps": eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": _base(file)},
        "sliding_window": window or None,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
    }


def _size(file: GgufFile, key: str, default: int | None = None, *, fewest: int = 1, most: int = _MOST) -> int:
    found = file.whole(f"{file.architecture}.{key}")
    size = default if found is None else found
    if size is None or not fewest <= size <= most:
        raise file.fault(f"its {file.architecture}.{key} is {found}; expected a number from {fewest} to {most}")
    return size


def _base(file: GgufFile) -> float:
    """The base of the rotary frequencies (theta)."""
    base = file.number(f"{file.architecture}.rope.freq_base")
    base = 10_000.0 if base is None else base
    if not 1 <= base < 1e12:
        raise file.fault(f"its {file.architecture}.rope.freq_base is {base}")
    return base


def _frequencies(file: GgufFile, raw: dict[str, Any]) -> Tensor:
    """Divided by the linear scale, and by a factor for each where the file has them (Llama 3's scaling)."""
    frequencies = default_frequencies(raw["head_dim"], raw["rope_parameters"]["rope_theta"])
    name = file.architecture
    if file.text(f"{name}.rope.scaling.type") != "none":  # linear where it is not named, as llama.cpp has it
        factor = file.number(f"{name}.rope.scaling.factor") or file.number(f"{name}.rope.scale_linear") or 1.0
        if not 0 < factor < 1e6:
            raise file.fault(f"its {name}.rope.scaling.factor is {factor}")
        frequencies /= factor
    entry = file.tensors.get("rope_freqs.weight")
    if entry is None:
        return frequencies
    end = entry.start + 4 * len(frequencies)
    if entry.kind != 0 or entry.shape != (len(frequencies),) or end > len(file.data):
        raise file.fault(f"its rope_freqs.weight is {list(entry.shape)}; expected [{len(frequencies)}] in float32")
    factors = torch.frombuffer(bytearray(file.data[entry.start : end]), dtype=torch.float32)
    if not bool((factors > 0).all()):
        raise file.fault("its rope_freqs.weight has numbers that are not above 0")
    return frequencies / factors


def _ends(file: GgufFile) -> list[int]:
    """Ids that end an answer, the main one first."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    named = [file.whole(f"tokenizer.ggml.{key}") for key in keys]
    tokens, kinds = (file.metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    known: list[int] = []
    if isinstance(tokens, list) and isinstance(kinds, list):
        pairs = enumerate(zip(tokens, kinds, strict=False))
        known = [number for number, (token, kind) in pairs if kind == _CONTROL and token in _ENDS]
    return list(dict.fromkeys([token for token in named if token is not None] + known))
